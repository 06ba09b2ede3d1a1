#include "actors/cache/block_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they are stored");

/// The state of SipHash-2-4-128 (Aumasson and Bernstein).
class SipState {
 public:
  explicit SipState(const HashKey& key)
      : v0_(key.low ^ 0x736f6d6570736575ull),
        v1_(key.high ^ 0x646f72616e646f6dull ^ 0xee),
        v2_(key.low ^ 0x6c7967656e657261ull),
        v3_(key.high ^ 0x7465646279746573ull) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
  }

  BlockHash finish() {
    v2_ ^= 0xee;
    const std::uint64_t first = four_rounds();
    v1_ ^= 0xdd;
    return {first, four_rounds()};
  }

 private:
  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }
  std::uint64_t four_rounds() {
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

/// Adds whole words; returns what is left, less than one word.
std::span<const std::byte> add_words(SipState& state, std::span<const std::byte> bytes) {
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    state.add(word);
    bytes = bytes.subspan(8);
  }
  return bytes;
}

/// Adds the last, padded word, which holds the number of bytes hashed.
BlockHash close(SipState& state, std::span<const std::byte> rest, std::size_t size) {
  std::uint64_t word = 0;
  if (!rest.empty()) std::memcpy(&word, rest.data(), rest.size());
  state.add(word | static_cast<std::uint64_t>(size) << 56);
  return state.finish();
}

}  // namespace

HashKey random_key() {
  std::random_device random;
  const auto word = [&random] { return (std::uint64_t{random()} << 32) | random(); };
  return {word(), word()};
}

BlockHash siphash(const HashKey& key, std::span<const std::byte> bytes) {
  SipState state(key);
  return close(state, add_words(state, bytes), bytes.size());
}

BlockHash BlockHasher::root(std::string_view salt) const {
  return siphash(key_, std::as_bytes(std::span(salt)));
}

BlockHash BlockHasher::next(const BlockHash& previous, std::span<const TokenId> tokens,
                            std::span<const BlockHash> media) const {
  SipState state(key_);
  state.add(previous.hi);
  state.add(previous.lo);
  // The count separates tokens from media hashes that happen to have the same bits.
  state.add(tokens.size());
  for (const BlockHash& hash : media) {
    state.add(hash.hi);
    state.add(hash.lo);
  }
  const std::span<const std::byte> bytes = std::as_bytes(tokens);
  return close(state, add_words(state, bytes), bytes.size());
}

}  // namespace troupe
