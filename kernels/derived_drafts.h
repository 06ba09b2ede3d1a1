#pragma once
// The draft layer's rows behind a step: a GPU's side of drafts by multi-token prediction.
//
// How many tokens of a sequence were accepted, and which, is known on the GPU alone. So these kernels make
// what the runs of the draft layer read (model::DeviceDrafts), in the order of a step:
//   DeriveDrafts, behind AcceptDrafts: the rows of the first run, of every sequence of the step.
//   TakeDrafts, behind each run that drafts: keeps the draft tokens for DeriveRows, and makes the rows of the
//   next run.
//
// The first run has as many rows as the step, and a sequence has its own there. Where it lacks the KV slot
// before them, because the token there was not known, that slot comes first; if one row is too few for it
// and for the slot behind the last token, the latter waits for the next step, and nothing is drafted. So a
// sequence is never more than one slot behind.
#include <cstdint>

#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/batch.h"
#include "kernels/derived_rows.h"
#include "kernels/sample.h"
#include "kernels/step_inputs.h"

namespace troupe::kernels {

/// What a run of the draft layer reads; device memory.
struct DraftArrays {
  TokenId* tokens = nullptr;          ///< (rows)
  std::int32_t* positions = nullptr;  ///< (rows)
  std::int32_t* from = nullptr;       ///< (rows) of hidden rows: of the step, or -1 - slot of a kept one
  KvSlot* slots = nullptr;            ///< (rows)
  SequenceRows* sequences = nullptr;  ///< (sequences)
  std::int32_t* picks = nullptr;      ///< (sequences) the row that drafts
  SequenceRows* ends = nullptr;       ///< (sequences) that row alone, as row i of the picked ones
  SampleRow* samples = nullptr;       ///< (sequences)
  // Hidden rows to copy, CopyRows::to and from.
  std::int32_t* carry_to = nullptr;    ///< (sequences) before the run: a slot,
  std::int32_t* carry_from = nullptr;  ///< from the block before
  std::int32_t* keep_to = nullptr;     ///< (sequences) after it: a slot,
  std::int32_t* keep_from = nullptr;   ///< from a row of the step
  std::int32_t* fill_to = nullptr;     ///< (rows) after it: a block,
  std::int32_t* fill_from = nullptr;   ///< from a row of the step
};

/// Writes `into` for the step's sequences, of which `drafting` says more, and moves what SlotState says of
/// the draft layer. Where a sequence drafts, the id of its last token goes where its block has it. In
/// `drafting`, `drafts` becomes the number of draft tokens to make, and `known` is set.
struct DeriveDrafts {
  DraftingSequence* drafting = nullptr;  ///< (count)
  int count = 0;                         ///< sequences of the step
  int rows = 0;                          ///< of the step
  int most_drafts = 0;                   ///< the layer runs so often; 0: once, and drafts nothing
  SlotState* states = nullptr;           ///< (slots)
  const TokenId* sampled = nullptr;      ///< (slots)
  const Yield* yields = nullptr;
  StepArrays step{};
  TokenId* block_ids = nullptr;  ///< as StepInputs
  std::int64_t ids_to_next_block = 0;
  DraftArrays into{};
};

/// `results[i]` is draft token `made` of sequence i, counted from 1, if it has so many. With an error it has
/// not, and drafts no more. With `again` writes `into` for the next run, in which sequence i has row i.
struct TakeDrafts {
  DraftingSequence* drafting = nullptr;  ///< (count)
  int count = 0;
  int made = 0;
  bool again = false;
  const SampleResult* results = nullptr;  ///< (count)
  SlotState* states = nullptr;            ///< (slots)
  TokenId* drafted = nullptr;             ///< (slots, kMostDrafts)
  TokenId* block_ids = nullptr;           ///< as StepInputs
  std::int64_t ids_to_next_block = 0;
  DraftArrays into{};
};

void run(Cuda& device, const DeriveDrafts& op);
void run(Cuda& device, const TakeDrafts& op);

}  // namespace troupe::kernels
