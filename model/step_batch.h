#pragma once
// One step as a decoder sees it: which tokens run, where their keys and values lie, and which rows' logits
// are wanted. Host memory, reused from step to step; the SEQUENCE TABLE writes it.
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "kernels/batch.h"
#include "kernels/sample.h"

namespace troupe::model {

/// What becomes of one plan row that samples, in plan order.
struct SamplingOutcome {
  SlotRef slot{};
  std::int32_t position = 0;  ///< index in its sequence of the token to be sampled
  std::int32_t sample = -1;   ///< index in StepBatch::samples; -1: the slot holds another generation
};

/// The prompt token whose logprob a ScoreRow asks for.
struct ScoreOutcome {
  SlotRef slot{};
  std::int32_t position = 0;
};

/// Pointers lead into the SEQUENCE TABLE and are good until it changes. SampleRow::logits_row and
/// ScoreRow::logits_row count within `sample_rows` and `score_rows`, which name rows of the batch.
struct StepBatch {
  std::vector<TokenId> tokens;               ///< one per row; kUnsampled where an earlier step is still out
  std::vector<kernels::SequenceRows> sequences;  ///< in row order
  std::vector<std::uint32_t> slots;          ///< of the sequences, beside them
  std::vector<BlockId> last_blocks;          ///< beside them too: the block that the last row writes to
  std::vector<kernels::SampleRow> samples;
  std::vector<std::int32_t> sample_rows;  ///< rows that sample, beside `samples`
  std::vector<SamplingOutcome> outcomes;
  std::vector<kernels::ScoreRow> scores;
  std::vector<std::int32_t> score_rows;  ///< beside `scores`
  std::vector<ScoreOutcome> scored;      ///< beside `scores`

  int rows() const { return static_cast<int>(tokens.size()); }

  void clear() {
    tokens.clear();
    sequences.clear();
    slots.clear();
    last_blocks.clear();
    samples.clear();
    sample_rows.clear();
    outcomes.clear();
    scores.clear();
    score_rows.clear();
    scored.clear();
  }
};

}  // namespace troupe::model
