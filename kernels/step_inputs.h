#pragma once
// How a step gets into the GPU and its tokens out of it, without the host waiting for either.
//
// The host writes one piece of pinned memory per step: what is new about the sequences, and the rows to run.
// The first kernel of the step reads it, brings what is new to where it belongs, and fills the arrays that
// all other kernels of the step read, whose addresses never change. So a step that was recorded once as a
// graph serves every batch of its size. The last kernel writes the sampled tokens to pinned memory. Which
// piece of the ring is meant they learn from a counter in device memory: the number of steps collected.
//
// A token that the step before sampled never passes the host: its row names the place where the sampling
// kernel has left it.
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/batch.h"
#include "kernels/sample.h"

namespace troupe::kernels {

/// One row of the step: a token at a position of a sequence.
struct InputRow {
  TokenId token = 0;  ///< kSampledToken: it is *from
  std::int32_t position = 0;
  KvSlot slot{};
  const TokenId* from = nullptr;  ///< device memory; set where the token is kSampledToken
};

inline constexpr TokenId kSampledToken = -1;

/// Words of the piece that go to device memory before the step's other kernels run. At most kWordsOfDelta,
/// so that long ones are carried by many thread blocks.
struct Delta {
  std::uint32_t* to = nullptr;
  std::uint32_t from = 0;  ///< bytes from the piece's first; a multiple of 4
  std::uint32_t words = 0;
};

inline constexpr std::uint32_t kWordsOfDelta = 512;

/// The beginning of a piece. Arrays lie behind it, at offsets that are multiples of 8. A picked row's number
/// counts within the batch. Deltas may not overlap what the rows' `from` names.
struct StepPiece {
  std::int32_t rows = 0;
  std::int32_t sequences = 0;
  std::int32_t samples = 0;
  std::int32_t deltas = 0;
  std::uint32_t rows_at = 0;       ///< InputRow
  std::uint32_t sequences_at = 0;  ///< Sequence
  std::uint32_t samples_at = 0;    ///< SampleRow
  std::uint32_t picks_at = 0;      ///< std::int32_t, beside the samples
  std::uint32_t deltas_at = 0;     ///< Delta
  std::uint32_t padding = 0;
};

/// What the step's kernels read; device memory.
struct StepArrays {
  TokenId* tokens = nullptr;          ///< (rows)
  std::int32_t* positions = nullptr;  ///< (rows)
  KvSlot* slots = nullptr;            ///< (rows)
  Sequence* sequences = nullptr;      ///< (sequences)
  SampleRow* samples = nullptr;       ///< (samples)
  std::int32_t* picks = nullptr;      ///< (samples)
};

/// Device memory that the two kernels share.
struct StepClock {
  std::uint64_t collected = 0;   ///< steps whose tokens were written
  std::uint64_t started_ns = 0;  ///< of the step that runs, on the GPU's clock
};

/// Reads piece `clock->collected % pieces`. Rows, sequences and samples beyond the piece's own, up to the
/// numbers given here, become padding: token 0 in kPaddingBlock, 0 tokens, logits_row -1.
struct StepInputs {
  const std::byte* ring = nullptr;  ///< pinned
  std::size_t piece_bytes = 0;
  int pieces = 0;
  StepClock* clock = nullptr;
  StepArrays into{};
  int rows = 0;
  int sequences = 0;
  int samples = 0;
  int deltas = 0;  ///< about how many to expect: it only sizes the launch
};

void run(Cuda& device, const StepInputs& op);

/// The beginning of what a step leaves behind, in pinned memory.
struct StepOutcome {
  std::uint64_t step = 0;  ///< number of this step, counted from 1; written last
  std::uint64_t started_ns = 0;
  std::uint64_t finished_ns = 0;  ///< both on the GPU's clock
  std::uint64_t padding = 0;
};

/// Behind the StepOutcome: Sampled for every sample, then SampleResults, of which only those of rows that
/// want logprobs are written.
struct Sampled {
  TokenId token = 0;
  SampleError error = SampleError::none;
};

constexpr std::size_t sampled_at() { return sizeof(StepOutcome); }
constexpr std::size_t results_at(int samples) {
  return sizeof(StepOutcome) + static_cast<std::size_t>(samples) * sizeof(Sampled);
}
/// Bytes of one outcome with room for so many samples.
constexpr std::size_t outcome_bytes(int samples) {
  return (results_at(samples) + static_cast<std::size_t>(samples) * sizeof(SampleResult) + 127) / 128 * 128;
}

/// Ends a step: writes outcome `clock->collected % pieces` and counts the step. The last kernel of each step.
struct CollectOutcome {
  std::byte* ring = nullptr;  ///< pinned; outcomes of outcome_bytes(most_samples)
  int pieces = 0;
  int most_samples = 0;
  StepClock* clock = nullptr;
  const SampleRow* rows = nullptr;        ///< (samples); null when there are none
  const SampleResult* results = nullptr;  ///< (samples)
  int samples = 0;
};

void run(Cuda& device, const CollectOutcome& op);

}  // namespace troupe::kernels
