#pragma once
// The input of one decoder step: which tokens run, where their keys and values are stored, and which rows'
// logits are wanted. Host memory, reused from step to step; the worker's sequence table fills it.
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/media_positions.h"
#include "kernels/batch.h"
#include "kernels/derived_rows.h"
#include "kernels/sample.h"
#include "kernels/step_inputs.h"
#include "kernels/top_logprobs.h"

namespace troupe::model {

/// Kinds of rows, each with its own experts.
inline constexpr std::uint8_t kTextRow = 0, kVisionRow = 1;

/// Where the result of a plan row that samples is found. In plan order.
struct SamplingOutcome {
  SlotRef slot{};
  std::int32_t position = 0;    ///< of the sampled token in its sequence
  std::int32_t sample = -1;     ///< index in StepBatch::samples; -1: late, the slot holds another generation
  bool gated = false;           ///< a gated row of the step (model/step_gates.h), also if it is late
  std::int32_t first_top = -1;  ///< index in the step's tops; -1: its top entries are in its result
  bool idle = false;            ///< with sample -1: the sequence has all its tokens, and the row yields none
  bool predicted = false;       ///< its draft tokens are of the client's prediction
  std::int32_t drafts =
      0;  ///< the next so many outcomes are of the same plan row, one behind each draft token
  std::int32_t masks = INT32_MAX;     ///< of a gated row that has its masks: it yields at most so many tokens
  std::span<const TokenId> forced{};  ///< RowMask::forced of the last of them; valid until the result is out
  std::int32_t proposed = 0;          ///< its part of StepBatch::proposed
};

/// The prompt token whose logprob a ScoreRow asks for.
struct ScoreOutcome {
  SlotRef slot{};
  std::int32_t position = 0;
  std::int32_t first_top = -1;  ///< as SamplingOutcome's
};

/// Rows of a step whose embedding a vision tower made.
struct EmbeddedRows {
  SlotRef slot{};
  std::int32_t item = 0;   ///< of the sequence
  std::int32_t first = 0;  ///< token of the item
  std::int32_t row = 0;    ///< of the step, the first
  std::int32_t count = 0;
  const void* rows = nullptr;  ///< device memory, (count, padded(hidden)) of the model's dtype
};

/// Pointers in it lead into the sequence table and are valid until that changes. SampleRow::logits_row is an
/// index into `sample_rows`, ScoreRow::logits_row into `score_rows`; both of those hold rows of the batch.
struct StepBatch {
  std::vector<TokenId> tokens;                   ///< one per row; kUnsampled if a step in flight samples it
  std::vector<kernels::SequenceRows> sequences;  ///< in row order
  std::vector<std::uint32_t> slots;              ///< slot of sequences[i]
  std::vector<BlockId> last_blocks;              ///< block that the last row of sequences[i] writes to
  std::vector<kernels::SampleRow> samples;
  std::vector<std::int32_t> sample_rows;  ///< row of samples[i]
  bool logprobs = false;                  ///< some of `samples` want logprobs
  std::vector<SamplingOutcome> outcomes;
  std::vector<kernels::ScoreRow> scores;
  std::vector<std::int32_t> score_rows;  ///< row of scores[i]
  std::vector<ScoreOutcome> scored;      ///< prompt token of scores[i]
  /// Of `samples` and `scores`, in their order, those that want more than kMaxTopLogprobs top entries; the
  /// entries of all of them lie in one array.
  std::vector<kernels::TopRow> sample_tops;
  std::vector<kernels::TopRow> score_tops;
  std::int32_t tops = 0;  ///< elements of that array

  std::vector<std::int32_t> embeds;  ///< of `samples`, those whose hidden row the result says, in order

  std::vector<TokenId> proposed;  ///< draft tokens that the result says, in the order of the outcomes

  // Of a step with a sequence that has images or videos; empty otherwise.
  std::vector<TokenPosition> positions;  ///< one per row; empty: rows stand where `sequences` says
  std::vector<std::uint8_t> kinds;       ///< one per row, kVisionRow or kTextRow; empty: all are text
  std::vector<EmbeddedRows> embedded;

  // Where the device derives rows from a last token (kernels/derived_rows.h). In `tokens` and `samples`
  // stands what is known of them: nothing, and the parameters.
  std::vector<kernels::DerivedSequence> derived;
  std::vector<std::size_t> derived_outcomes;  ///< of derived[i]: index of its first in `outcomes`
  /// Not 0: every sequence decodes and has so many rows and samples, of which the last ones may be padding.
  std::int32_t width = 0;
  std::int32_t most_tokens = 0;                     ///< where rows may be derived: no sequence has more
  std::vector<kernels::DraftingSequence> drafting;  ///< beside `sequences`; `derived`: index in `derived`
  /// Those whose results say their next draft tokens, without what their masks tell.
  std::vector<kernels::ProposingSequence> proposing;

  int rows() const { return static_cast<int>(tokens.size()); }

  /// Tokens that the plan row of outcomes[first] yields: the first, and each behind a draft token that is
  /// what was sampled in its place. An error behind a draft token ends them before it, and so does a place
  /// without a mask. `results`: of `samples`.
  int yield(std::size_t first, std::span<const kernels::SampleResult> results) const {
    const SamplingOutcome& outcome = outcomes[first];
    if (outcome.sample < 0) return 0;
    const auto sample = static_cast<std::size_t>(outcome.sample);
    const auto row = static_cast<std::size_t>(sample_rows[sample]);
    int count = 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(outcome.drafts); ++i, ++count) {
      if (count >= outcome.masks || results[sample + i].token != tokens[row + i + 1] ||
          results[sample + i + 1].error != kernels::SampleError::none)
        break;
    }
    return count;
  }

  void clear() {
    tokens.clear();
    sequences.clear();
    slots.clear();
    last_blocks.clear();
    samples.clear();
    sample_rows.clear();
    logprobs = false;
    outcomes.clear();
    scores.clear();
    score_rows.clear();
    scored.clear();
    sample_tops.clear();
    score_tops.clear();
    tops = 0;
    embeds.clear();
    proposed.clear();
    positions.clear();
    kinds.clear();
    embedded.clear();
    derived.clear();
    derived_outcomes.clear();
    width = 0;
    most_tokens = 0;
    drafting.clear();
    proposing.clear();
  }

  /// Adds a row of logits that wants so many top entries. Returns the index of the first in the step's tops,
  /// or -1 if they are few enough for a result.
  std::int32_t add_tops(std::vector<kernels::TopRow>& rows, std::int32_t logits_row, std::int32_t wanted) {
    if (wanted <= kernels::kMaxTopLogprobs) return -1;
    rows.push_back({.logits_row = logits_row, .count = wanted, .first = tops});
    tops += wanted;
    return rows.back().first;
  }
};

/// Takes from the front of `rows`, which rise, those of logits rows below `end`.
inline std::span<const kernels::TopRow> take_below(std::span<const kernels::TopRow>& rows, std::int32_t end) {
  std::size_t count = 0;
  while (count < rows.size() && rows[count].logits_row < end) ++count;
  const std::span<const kernels::TopRow> taken = rows.first(count);
  rows = rows.subspan(count);
  return taken;
}

}  // namespace troupe::model
