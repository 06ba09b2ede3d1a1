#pragma once
// What callers tell the decoder about drafts: docs/speculation.md.
#include <concepts>
#include <cstdint>

#include "base/ids.h"
#include "gpu/cpu.h"
#include "kernels/sample.h"

namespace troupe::model {

/// Devices that have the ops of the draft layer.
template <class D>
concept RunsDraftLayer = std::same_as<D, Cpu>;

/// Which rows the final norm has passed. The defaults are what ERNIE-4.5 was published for.
struct DraftNorms {
  bool hidden = true;  ///< of the hidden rows that the layer reads
  bool output = true;  ///< of the layer's output before the head
};

/// No token: that of a row is not known yet.
inline constexpr TokenId kNoToken = -1;

/// What the draft layer runs of one sequence of the step that has just run. With h(p) the hidden row of
/// position p and t(p) its token, KV slot i of the layer is a function of h(i - 1) and t(i). The step's rows
/// [position, position + rows) fill the slots position + 1 … position + rows - 1 and, with `next`, position +
/// rows; with `carried` also the slot `position`.
struct DraftRows {
  std::int32_t sequence = 0;  ///< index in StepBatch::sequences
  std::int32_t rows = 0;      ///< of its rows the first ones, whose tokens were accepted; at least 1
  /// Block table that covers every slot that this call and draft_again() fill.
  const BlockId* blocks = nullptr;
  /// The token after the last of `rows`: a draft of the token behind it is wanted. kNoToken: the prompt goes
  /// on in a later step, which will be `carried`.
  TokenId next = kNoToken;
  /// True if the layer has not filled the KV slot `position`: because the last draft_rows() of this slot had
  /// no `next`, or because the blocks before come from another sequence. The layer runs it too, with the
  /// hidden row that was kept for the slot, or where a block begins with the one that lies in the block
  /// before.
  bool carried = false;
  kernels::SampleRow sample{};  ///< with `next`: of the row that will verify the draft; logits_row is ignored
};

/// One more draft token of a sequence.
struct DraftAgain {
  std::int32_t of = 0;          ///< index among the results of the last draft_rows() or draft_again()
  TokenId token = 0;            ///< of that result
  kernels::SampleRow sample{};  ///< as DraftRows::sample
};

}  // namespace troupe::model
