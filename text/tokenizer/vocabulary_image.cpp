#include "text/tokenizer/vocabulary_image.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "text/tokenizer/vocabulary.h"

namespace troupe {
namespace {

constexpr std::uint64_t kMagic = 0x3162636f76727474;  // "ttrvocb1"
constexpr std::uint8_t kSpecial = 1;

struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t tokens = 0;
  std::uint32_t spelled = 0;                  // tokens with a text
  std::int32_t bos = -1, eos = -1, pad = -1;  // -1: none
  std::uint32_t text_bytes = 0;
};
static_assert(sizeof(Header) == 32);

std::uint64_t bytes_for(const Header& header) {
  return sizeof(Header) + sizeof(std::uint32_t) * (std::uint64_t{header.tokens} + 1 + header.spelled) +
         header.tokens + header.text_bytes;
}

std::optional<TokenId> role(std::int32_t id) { return id < 0 ? std::nullopt : std::optional<TokenId>(id); }

template <class T>
void append(std::string& out, const std::vector<T>& items) {
  out.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
}

}  // namespace

std::string VocabularyImage::bytes_of(const TokenTexts& texts) {
  Header header;
  header.tokens = static_cast<std::uint32_t>(std::max(texts.vocab_size(), 0));
  header.bos = texts.bos_id().value_or(-1);
  header.eos = texts.eos_id().value_or(-1);
  header.pad = texts.pad_id().value_or(-1);
  std::vector<std::uint32_t> offsets{0}, order;
  std::vector<std::uint8_t> flags;
  offsets.reserve(header.tokens + 1);
  order.reserve(header.tokens);
  flags.reserve(header.tokens);
  for (std::uint32_t id = 0; id < header.tokens; ++id) {
    const std::string_view text = texts.token_bytes(static_cast<TokenId>(id));
    offsets.push_back(offsets.back() + static_cast<std::uint32_t>(text.size()));
    flags.push_back(texts.is_special(static_cast<TokenId>(id)) ? kSpecial : 0);
    if (!text.empty()) order.push_back(id);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const int less =
        texts.token_bytes(static_cast<TokenId>(a)).compare(texts.token_bytes(static_cast<TokenId>(b)));
    if (less != 0) return less < 0;
    return flags[a] != flags[b] ? flags[a] > flags[b] : a < b;
  });
  header.spelled = static_cast<std::uint32_t>(order.size());
  header.text_bytes = offsets.back();
  std::string out;
  out.reserve(bytes_for(header));
  out.append(reinterpret_cast<const char*>(&header), sizeof header);
  append(out, offsets);
  append(out, order);
  append(out, flags);
  for (std::uint32_t id = 0; id < header.tokens; ++id) out += texts.token_bytes(static_cast<TokenId>(id));
  return out;
}

Result<std::shared_ptr<const VocabularyImage>> VocabularyImage::view(std::span<const std::byte> bytes,
                                                                     std::shared_ptr<const void> owner) {
  Header header;
  if (bytes.size() < sizeof header ||
      reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint32_t) != 0) {
    return invalid("a vocabulary of " + std::to_string(bytes.size()) +
                   " bytes has no header, or is not aligned");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) return invalid("not a vocabulary of this program: its first word is another");
  if (header.tokens > static_cast<std::uint32_t>(kMaxTokenId) + 1 || header.spelled > header.tokens ||
      bytes_for(header) != bytes.size()) {
    return invalid("the vocabulary's header does not fit its " + std::to_string(bytes.size()) + " bytes");
  }
  std::shared_ptr<VocabularyImage> image(new VocabularyImage);
  image->owner_ = std::move(owner);
  image->bytes_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  const auto* words = reinterpret_cast<const std::uint32_t*>(bytes.data() + sizeof header);
  image->offsets_ = {words, header.tokens + std::size_t{1}};
  image->order_ = {words + image->offsets_.size(), header.spelled};
  image->flags_ = {reinterpret_cast<const std::uint8_t*>(words + image->offsets_.size() + header.spelled),
                   header.tokens};
  image->texts_ = image->bytes_.substr(bytes.size() - header.text_bytes);
  image->bos_ = role(header.bos);
  image->eos_ = role(header.eos);
  image->pad_ = role(header.pad);
  return std::shared_ptr<const VocabularyImage>(std::move(image));
}

std::shared_ptr<const VocabularyImage> VocabularyImage::copy_of(const TokenTexts& texts) {
  const auto bytes = std::make_shared<const std::string>(bytes_of(texts));
  return *view(std::as_bytes(std::span(*bytes)), bytes);
}

std::string_view VocabularyImage::token_bytes(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= flags_.size()) return {};
  const std::uint32_t begin = offsets_[static_cast<std::size_t>(id)],
                      end = offsets_[static_cast<std::size_t>(id) + 1];
  return begin <= end && end <= texts_.size() ? texts_.substr(begin, end - begin) : std::string_view();
}

bool VocabularyImage::is_special(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < flags_.size() &&
         (flags_[static_cast<std::size_t>(id)] & kSpecial) != 0;
}

std::optional<TokenId> VocabularyImage::token_id(std::string_view piece) const {
  const auto text = [this](std::uint32_t id) { return token_bytes(static_cast<TokenId>(id)); };
  const auto found =
      std::lower_bound(order_.begin(), order_.end(), piece,
                       [&](std::uint32_t id, std::string_view wanted) { return text(id) < wanted; });
  if (piece.empty() || found == order_.end() || text(*found) != piece) return std::nullopt;
  return static_cast<TokenId>(*found);
}

}  // namespace troupe
