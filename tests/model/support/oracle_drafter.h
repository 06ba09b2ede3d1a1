#pragma once
// A drafter that knows what the test tells it.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/drafts/drafter.h"

namespace troupe::model::test {

/// Drafts what the test says.
class OracleDrafter final : public Drafter {
 public:
  explicit OracleDrafter(const std::vector<TokenId>& drafts) : drafts_(drafts) {}
  void start(std::uint32_t, std::int32_t, std::span<const TokenId>) override {}
  void rewind(std::uint32_t) override {}
  Drafts draft(std::uint32_t, std::span<const TokenId>, std::span<TokenId> out) override {
    const std::size_t count = std::min(out.size(), drafts_.size());
    std::copy_n(drafts_.begin(), count, out.begin());
    return {count};
  }

 private:
  const std::vector<TokenId>& drafts_;
};

}  // namespace troupe::model::test
