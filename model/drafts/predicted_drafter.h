#pragma once
// Drafts what the client predicts (the request field `prediction`).
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/drafts/drafter.h"

namespace troupe::model {

/// Follows the answer through the prediction and drafts what comes next there. Where the answer leaves it,
/// drafts are another drafter's until the last tokens of the answer stand in the prediction again: first
/// looked for behind the place where it was left, then from the beginning.
class PredictedDrafter final : public Drafter {
 public:
  /// Tokens of the answer by which its place in the prediction is found again.
  static constexpr std::size_t kAnchor = 3;

  PredictedDrafter(int slots, std::unique_ptr<Drafter> other);

  void start(std::uint32_t slot, std::int32_t prompt_tokens, std::span<const TokenId> prediction) override;
  void rewind(std::uint32_t slot) override;
  void advance(const StepBatch& batch, std::span<const Advanced> sequences) override {
    other_->advance(batch, sequences);
  }
  Drafts draft(std::uint32_t slot, std::span<const TokenId> ids, std::span<TokenId> out) override;

 private:
  struct Slot {
    std::vector<TokenId> prediction;
    std::size_t prompt = 0;  ///< tokens of the prompt
    std::size_t seen = 0;    ///< ids up to here have been followed
    std::size_t next = 0;    ///< index in the prediction of what comes next, or where it was left
    bool follows = false;
  };

  static void find_again(Slot& slot, std::span<const TokenId> ids);

  const std::unique_ptr<Drafter> other_;
  std::vector<Slot> slots_;
};

}  // namespace troupe::model
