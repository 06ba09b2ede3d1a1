#pragma once
// The ids of one sequence. The prompt is shared by all its choices; each has an output of its own.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace troupe {

class KnownTokens {
 public:
  using Given = std::shared_ptr<const std::vector<TokenId>>;

  KnownTokens() = default;
  explicit KnownTokens(Given given, std::vector<TokenId> own = {})
      : given_(std::move(given)),
        given_count_(given_ == nullptr ? 0 : given_->size()),
        own_(std::move(own)) {}

  std::size_t given() const { return given_count_; }
  std::size_t own() const { return own_.size(); }
  std::size_t size() const { return given() + own(); }
  void push_back(TokenId id) { own_.push_back(id); }

  /// The ids from `begin`, at most `most`, as far as they stand together in memory: up to the last given one,
  /// or the last. Requires begin < size(). Valid until the next push_back().
  std::span<const TokenId> run(std::size_t begin, std::size_t most) const {
    const bool shared = begin < given();
    const std::span<const TokenId> part =
        shared ? std::span(*given_).subspan(begin) : std::span(own_).subspan(begin - given());
    return part.first(std::min(most, part.size()));
  }

  /// The `count` ids from `begin`, all of which are known; in `scratch` if they do not stand together. Valid
  /// as run().
  std::span<const TokenId> range(std::size_t begin, std::size_t count, std::vector<TokenId>& scratch) const {
    if (count == 0) return {};
    const std::span<const TokenId> first = run(begin, count);
    if (first.size() == count) return first;
    const std::span<const TokenId> rest = run(begin + first.size(), count - first.size());
    scratch.assign(first.begin(), first.end());
    scratch.insert(scratch.end(), rest.begin(), rest.end());
    return scratch;
  }

 private:
  Given given_;
  std::size_t given_count_ = 0;  // so that size() reads nothing but this object
  std::vector<TokenId> own_;
};

}  // namespace troupe
