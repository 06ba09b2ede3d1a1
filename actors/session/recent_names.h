#pragma once
// Where the KV blocks of prompts are likely to be found soon: the engines that they were sent to lately.
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "actors/cache/cached_names.h"

namespace troupe {

/// The engines that names were sent to, of the last kMost names.
class RecentNames {
 public:
  static constexpr std::size_t kMost = 1 << 14;

  void put(const BlockHash& name, std::uint32_t engine);
  /// Nothing when it is not known.
  std::optional<std::uint32_t> engine_of(const BlockHash& name) const;

 private:
  struct Entry {
    BlockHash name;
    std::uint32_t engine = 0;
  };
  std::list<Entry> entries_;  // the latest first
  std::unordered_map<BlockHash, std::list<Entry>::iterator, HashOfName> index_;
};

}  // namespace troupe
