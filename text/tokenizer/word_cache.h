#pragma once
// A bounded cache of encoded words: most text repeats few words.
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace troupe {

/// Direct-mapped, fixed in size (about 0.5 MB), shared by all threads. A thread never waits: a slot that
/// another thread uses counts as a miss.
class WordCache {
 public:
  WordCache() : slots_(kSlots) {}

  /// Appends the word's tokens if they are cached. True if they were.
  bool find(std::string_view word, std::vector<TokenId>& out) {
    if (word.size() > kMaxBytes) return false;
    const std::size_t at = slot_of(word);
    const std::unique_lock lock(locks_[at % kLocks], std::try_to_lock);
    if (!lock) return false;
    const Slot& slot = slots_[at];
    if (slot.bytes != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0) return false;
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return true;
  }

  void put(std::string_view word, const TokenId* ids, std::size_t count) {
    if (word.size() > kMaxBytes || word.empty() || count > kMaxIds) return;
    const std::size_t at = slot_of(word);
    const std::unique_lock lock(locks_[at % kLocks], std::try_to_lock);
    if (!lock) return;
    Slot& slot = slots_[at];
    slot.bytes = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(count);
    std::memcpy(slot.word, word.data(), word.size());
    std::memcpy(slot.ids, ids, count * sizeof(TokenId));
  }

 private:
  static constexpr std::size_t kSlots = 8192;
  static constexpr std::size_t kLocks = 64;
  static constexpr std::size_t kMaxBytes = 30;
  static constexpr std::size_t kMaxIds = 8;

  struct Slot {
    std::uint8_t bytes = 0;  // 0: empty
    std::uint8_t count = 0;
    char word[kMaxBytes];
    TokenId ids[kMaxIds];
  };
  static_assert(sizeof(Slot) == 64);

  static std::size_t slot_of(std::string_view word) { return std::hash<std::string_view>()(word) % kSlots; }

  std::vector<Slot> slots_;
  std::array<std::mutex, kLocks> locks_;
};

}  // namespace troupe
