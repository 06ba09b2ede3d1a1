#pragma once
// What a KV connection carries behind its greeting (README.md beside this, "KV blocks"): wants one
// way, an answer for each, in their order, the other.
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>

#include "actors/remote/stream.h"
#include "base/clock.h"
#include "base/ids.h"

namespace troupe::remote {

/// The rank of the decode instance for which a connection carries KV blocks, in its greeting; the answer
/// repeats it. What several ranks of the engine hold of such a block is gathered by the engine's relay.
struct KvPart {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::uint64_t block_bytes = 0;  ///< of that rank
};

enum class KvAnswer : std::uint32_t {
  block = 1,  ///< its bytes follow
  gone,       ///< the block does not hold these contents any more, or the memory is another
  beat,       ///< the answer to a want without a memory
};

/// A block is asked for by its contents: who knows their name may have them.
struct KvWant {
  std::uint64_t number = 0;  ///< rises by one, from 1
  std::uint64_t memory = 0;  ///< the life of the KV memory; 0: a sign of life, each kBeatPeriod
  BlockHash contents{};
  BlockId block = kNoBlock;
  std::uint32_t padding = 0;
};

struct KvAnswerHead {
  std::uint64_t number = 0;  ///< the want's
  KvAnswer kind{};
  std::uint32_t padding = 0;
  std::uint64_t bytes = 0;     ///< that follow; 0 unless it is a block
  std::uint64_t checksum = 0;  ///< of these (model/swap/checksum.h)
};
static_assert(sizeof(KvWant) == 40 && sizeof(KvAnswerHead) == 32);

/// Reads until `into` is full. "" or why not, in words that follow the peer's name; that is so too when
/// nothing has come for kLost, or when asked to stop.
std::string read_all(Stream& stream, std::span<std::byte> into, const std::stop_token& stop);

/// Writes all, piece by piece, each within 10 s. "" or why not, likewise.
std::string write_all(Stream& stream, std::span<const std::byte> bytes, const std::stop_token& stop);

}  // namespace troupe::remote
