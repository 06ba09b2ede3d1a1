#pragma once
// Drafts by the checkpoint's layer for multi-token prediction.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/decoder.h"
#include "model/drafts/drafter.h"
#include "model/drafts/ngram_drafter.h"

namespace troupe::model {

/// Runs the draft layer over every row of every step, so that its keys and values are those of the tokens
/// that were accepted, and as often again as more draft tokens are wanted. A sequence that wants none, or
/// whose next slot has no block yet, gets none; its last row is made up for in the next step.
class MtpDrafter final : public Drafter {
 public:
  /// `decoder` has a draft layer and outlives the last call. `steps`: draft tokens that the layer makes, at
  /// least 1. `more`: appends its drafts to the layer's; may be null.
  MtpDrafter(Decoder<Cpu>& decoder, int slots, int steps, std::unique_ptr<NgramDrafter> more);

  void start(std::uint32_t slot, std::int32_t prompt_tokens, std::span<const TokenId> prediction) override;
  void rewind(std::uint32_t slot) override;
  void advance(const StepBatch& batch, std::span<const Advanced> sequences) override;
  Drafts draft(std::uint32_t slot, std::span<const TokenId> ids, std::span<TokenId> out) override;

 private:
  struct Slot {
    bool fresh = true;        ///< its sequence has run nothing here
    bool carried = false;     ///< the last row of its last step is to be made up for
    std::int32_t behind = 0;  ///< tokens of the sequence when `drafts` were made
    std::vector<TokenId> drafts;
  };
  /// A sequence that drafts in this step.
  struct Drafting {
    std::uint32_t slot = 0;
    std::int32_t left = 0;  ///< draft tokens that it may still make
    kernels::SampleRow sample{};
  };

  void again();

  Decoder<Cpu>& decoder_;
  const std::int32_t steps_;
  const std::unique_ptr<NgramDrafter> more_;
  std::vector<Slot> slots_;

  // Of the step; memory is reused.
  std::vector<DraftRows> rows_;
  std::vector<Drafting> drafting_;
  std::vector<DraftAgain> again_;
  std::vector<kernels::SampleResult> results_;
};

}  // namespace troupe::model
