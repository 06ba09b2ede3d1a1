#pragma once
// The ids of one sequence. The prompt is shared by all its choices; each has an output of its own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/token_list.h"

namespace troupe {

/// The ids that end a sequence. Most other ids are told from them without a look at the list: it lies on a
/// page of its own, as TokenList explains.
class StopIds {
 public:
  StopIds() = default;
  explicit StopIds(std::vector<TokenId> ids) : list_(std::move(ids)) {
    for (TokenId id : list_) residues_ |= residue(id);
  }

  bool contains(TokenId id) const {
    return (residues_ & residue(id)) != 0 && std::find(list_.begin(), list_.end(), id) != list_.end();
  }
  const std::vector<TokenId>& list() const { return list_; }

 private:
  static std::uint64_t residue(TokenId id) {
    return std::uint64_t{1} << (static_cast<std::uint32_t>(id) % 64);
  }

  std::uint64_t residues_ = 0;  // bit id % 64 for each of them: rules most tokens out
  std::vector<TokenId> list_;
};

class KnownTokens {
 public:
  using Given = std::shared_ptr<const std::vector<TokenId>>;

  KnownTokens() = default;
  explicit KnownTokens(Given given, std::vector<TokenId> own = {})
      : given_count_(given == nullptr ? 0 : given->size()), own_(std::move(own)), given_(std::move(given)) {}

  std::size_t given() const { return given_count_; }
  std::size_t own() const { return own_.size(); }
  std::size_t size() const { return given() + own(); }
  void push_back(TokenId id) { own_.push_back(id); }

  /// The ids from `begin`, at least one and at most `most`, as far as they stand together in memory. Requires
  /// begin < size(). Valid until the next push_back().
  std::span<const TokenId> run(std::size_t begin, std::size_t most) const {
    const std::span<const TokenId> part =
        begin < given() ? std::span(*given_).subspan(begin) : own_.run(begin - given());
    return part.first(std::min(most, part.size()));
  }

  /// The `count` ids from `begin`, all of which are known; in `scratch` if they do not stand together. Valid
  /// as run().
  std::span<const TokenId> range(std::size_t begin, std::size_t count, std::vector<TokenId>& scratch) const {
    if (count == 0) return {};
    const std::span<const TokenId> first = run(begin, count);
    if (first.size() == count) return first;
    scratch.assign(first.begin(), first.end());
    while (scratch.size() < count) {
      const std::span<const TokenId> more = run(begin + scratch.size(), count - scratch.size());
      scratch.insert(scratch.end(), more.begin(), more.end());
    }
    return scratch;
  }

 private:
  std::size_t given_count_ = 0;
  TokenList own_;
  Given given_;
};

}  // namespace troupe
