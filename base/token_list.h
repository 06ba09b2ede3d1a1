#pragma once
// The ids of one of hundreds of sequences, to which each step appends one.
//
// A vector's end lies on a page of its own. Hundreds of those leave the caches between two steps of a large
// model, and to touch each again takes longer than all else that a step does for a sequence. So the newest
// ids stand in the object, and go to the vector several at a time.
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace troupe {

class TokenList {
 public:
  TokenList() = default;
  explicit TokenList(std::vector<TokenId> ids) : older_(std::move(ids)) {}

  std::size_t size() const { return older_.size() + newest_count_; }
  void push_back(TokenId id) {
    if (newest_count_ == newest_.size()) (void)whole();
    newest_[newest_count_++] = id;
  }
  void clear() {
    older_.clear();
    newest_count_ = 0;
  }

  /// The ids from `begin` on, as far as they stand together: one at least. Requires begin < size(). Valid
  /// until the list changes, or whole() is called.
  std::span<const TokenId> run(std::size_t begin) const {
    return begin < older_.size() ? std::span(older_).subspan(begin)
                                 : std::span(newest_).first(newest_count_).subspan(begin - older_.size());
  }
  /// All ids in one vector, which the caller may change. Reads and writes memory of the vector.
  std::vector<TokenId>& whole() {
    older_.insert(older_.end(), newest_.begin(),
                  newest_.begin() + static_cast<std::ptrdiff_t>(newest_count_));
    newest_count_ = 0;
    return older_;
  }
  /// Ids that are in one vector already: those of the last whole().
  const std::vector<TokenId>& gathered() const { return older_; }

 private:
  std::vector<TokenId> older_;
  std::size_t newest_count_ = 0;
  std::array<TokenId, 8> newest_{};  // behind older_
};

}  // namespace troupe
