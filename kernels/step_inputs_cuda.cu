// The first and the last kernel of a step: they read the step's inputs from pinned host memory and write its
// outcome there.
//
// A read of host memory takes about two microseconds, and reads of one word by several blocks are served one
// after another. So no word is read by all blocks: the arrays are read as flat words, one per thread, and
// each block reads its own delta. One round trip carries a whole decode step; deltas longer than a word need
// a second.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/derived_rows.h"
#include "kernels/step_inputs.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kMostBlocks = kMostDeltaBlocks;
constexpr int kGateThreads = 128;
constexpr int kCollectThreads = 512;

using Word = std::uint64_t;
constexpr int kSequenceWords = sizeof(SequenceRows) / sizeof(Word);
constexpr int kSampleWords = sizeof(SampleRow) / sizeof(Word);
constexpr int kDerivedWords = sizeof(DerivedSequence) / sizeof(Word);
constexpr int kDraftingWords = sizeof(DraftingSequence) / sizeof(Word);
constexpr int kResultWords = sizeof(SampleResult) / sizeof(Word);
constexpr int kProposalWords = sizeof(Proposal) / sizeof(Word);
static_assert(sizeof(InputRow) == sizeof(Word) && sizeof(KvSlot) == sizeof(Word));
static_assert(sizeof(SequenceRows) % sizeof(Word) == 0 && sizeof(SampleRow) % sizeof(Word) == 0);
static_assert(sizeof(SampleResult) % sizeof(Word) == 0 && sizeof(Sampled) == sizeof(Word));
static_assert(sizeof(DerivedSequence) % sizeof(Word) == 0 && sizeof(DraftingSequence) % sizeof(Word) == 0);
static_assert(sizeof(Yield) == sizeof(Word) && sizeof(Proposal) == kProposalBytes);
static_assert(kProposalBytes % sizeof(Word) == 0);
static_assert(sizeof(Delta) == 2 * sizeof(Word));
static_assert(kWordsOfDelta == 4 * kThreads);

// For pinned memory: the host changes it between two launches of a graph, so it must not stay in an L1 cache.
using ptx::load_no_allocate;

// One word of the arrays: its source, and its destination unless it is a row's token and position. The thread
// of a row takes its KvSlot too.
struct WordCopy {
  std::uint32_t from = 0;
  Word* to = nullptr;
  int row = -1;
};

__device__ WordCopy word_copy(const StepInputs& op, int i) {
  const auto at = [&i](std::uint32_t array) { return array + i * static_cast<std::uint32_t>(sizeof(Word)); };
  if (i < op.rows) return {at(op.layout.rows), nullptr, i};
  i -= op.rows;
  if (i < op.sequences * kSequenceWords) {
    return {at(op.layout.sequences), reinterpret_cast<Word*>(op.into.sequences) + i};
  }
  i -= op.sequences * kSequenceWords;
  if (i < op.samples * kSampleWords) {
    return {at(op.layout.samples), reinterpret_cast<Word*>(op.into.samples) + i};
  }
  i -= op.samples * kSampleWords;
  if (i < op.derived * kDerivedWords) {
    return {at(op.layout.derived), reinterpret_cast<Word*>(op.into.derived) + i};
  }
  i -= op.derived * kDerivedWords;
  if (i < op.drafting * kDraftingWords) {
    return {at(op.layout.drafting), reinterpret_cast<Word*>(op.into.drafting) + i};
  }
  i -= op.drafting * kDraftingWords;
  return {at(op.layout.picks), reinterpret_cast<Word*>(op.into.picks) + i};  // two picks
}

__host__ __device__ int total_words(const StepInputs& op) {
  return op.rows + kSequenceWords * op.sequences + kSampleWords * op.samples + kDerivedWords * op.derived +
         kDraftingWords * op.drafting + (op.samples + 1) / 2;
}

__device__ void store_row(const StepInputs& op, int r, Word word, Word slot_word) {
  auto token = static_cast<TokenId>(word);
  if (token < 0) token = op.sampled[~token];
  op.into.tokens[r] = token;
  op.into.positions[r] = static_cast<std::int32_t>(word >> 32);
  reinterpret_cast<Word*>(op.into.slots)[r] = slot_word;
  const auto block = static_cast<BlockId>(slot_word);
  if (op.block_ids != nullptr && block != kPaddingBlock)
    op.block_ids[block * op.ids_to_next_block + static_cast<std::int32_t>(slot_word >> 32)] = token;
}

__global__ void __launch_bounds__(kThreads) step_inputs(const __grid_constant__ StepInputs op) {
  cuda::wait_for_previous();
  cuda::let_next_start();
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x) * kThreads;
  if (thread == 0) op.clock->started_ns = ptx::global_timer_ns();
  const std::byte* piece = op.ring + op.clock->collected % static_cast<unsigned>(op.pieces) * op.layout.bytes;
  const auto* deltas = reinterpret_cast<const Delta*>(piece + op.layout.deltas);
  auto delta = load_no_allocate<ulonglong2>(deltas + blockIdx.x);

  const int all = total_words(op);
  for (int i = thread; i < all; i += threads) {
    const WordCopy copy = word_copy(op, i);
    const Word word = load_no_allocate<Word>(piece + copy.from);
    if (copy.row >= 0) {
      const std::size_t slot = op.layout.slots + static_cast<std::size_t>(copy.row) * sizeof(Word);
      store_row(op, copy.row, word, load_no_allocate<Word>(piece + slot));
    } else {
      *copy.to = word;
    }
  }

  for (auto d = blockIdx.x;;) {
    auto* to = reinterpret_cast<std::uint32_t*>(delta.x);
    const auto from = static_cast<std::uint32_t>(delta.y);
    const auto words = static_cast<unsigned>(delta.y >> 32);
    if (words == 0) return;
    if (words == 1) {
      if (threadIdx.x == 0) *to = from;
    } else {
      for (unsigned w = threadIdx.x; w < words; w += kThreads) {
        to[w] = load_no_allocate<std::uint32_t>(piece + from + w * sizeof(std::uint32_t));
      }
    }
    d += gridDim.x;
    delta = load_no_allocate<ulonglong2>(deltas + d);
  }
}

__global__ void __launch_bounds__(kGateThreads) open_gates(const __grid_constant__ OpenGates op) {
  cuda::wait_for_previous();
  cuda::let_next_start();
  const auto s = static_cast<int>(blockIdx.x * kGateThreads + threadIdx.x);
  if (s == 0) op.clock->held = 0;
  if (s >= op.samples) return;
  const std::int32_t gate = op.gates[s];
  SampleRow row{.logits_row = -1};
  if (gate != kClosedGate && op.rows[s].known_tokens > 0) {
    row = op.rows[s];
    row.logits_row = s;
    row.mask = gate == kGateWithoutMask ? nullptr : op.masks + static_cast<std::size_t>(gate) * op.mask_words;
    op.rows[s] = row;
  }
  op.held_rows[s] = row;
}

__global__ void __launch_bounds__(kCollectThreads)
    collect_outcome(const __grid_constant__ CollectOutcome op) {
  __shared__ int wanting;  // rows that want logprobs
  __shared__ int rows[kCollectThreads];
  if (threadIdx.x == 0) wanting = 0;
  cuda::wait_for_previous();
  cuda::let_next_start();
  __syncthreads();
  const Word collected = op.clock->collected;
  if (op.clock->held != 0) return;
  std::byte* outcome =
      op.ring + collected % static_cast<unsigned>(op.pieces) * outcome_bytes(op.most_samples);
  auto* sampled = reinterpret_cast<Sampled*>(outcome + sampled_at());
  auto* results = reinterpret_cast<Word*>(outcome + results_at(op.most_samples));
  const auto* from = reinterpret_cast<const Word*>(op.results);
  for (int first = 0; first < op.samples; first += kCollectThreads) {
    const int s = first + static_cast<int>(threadIdx.x);
    if (s < op.samples) {
      const SampleRow& row = op.rows[s];
      const std::int32_t logits_row = row.logits_row;
      const std::int32_t logprobs = row.logprobs;
      const Sampled one{op.results[s].token, op.results[s].error};
      if (logits_row >= 0) sampled[s] = one;
      if (op.states != nullptr && logits_row >= 0 && row.next != nullptr)
        op.states[row.next - op.sampled].known = row.known_tokens + 1;
      if (logits_row >= 0 && logprobs >= 0) rows[atomicAdd(&wanting, 1)] = s;
    }
    __syncthreads();
    const int words = wanting * kResultWords;
    for (int i = static_cast<int>(threadIdx.x); i < words; i += kCollectThreads) {
      const int at = rows[i / kResultWords] * kResultWords + i % kResultWords;
      results[at] = from[at];
    }
    __syncthreads();
    if (threadIdx.x == 0) wanting = 0;
    __syncthreads();
  }
  auto* yields = reinterpret_cast<Yield*>(outcome + yields_at(op.most_samples));
  for (int i = static_cast<int>(threadIdx.x); i < op.derived; i += kCollectThreads) yields[i] = op.yields[i];
  auto* proposals = reinterpret_cast<Word*>(outcome + proposals_at(op.most_samples));
  for (int i = static_cast<int>(threadIdx.x); i < op.proposing_count * kProposalWords; i += kCollectThreads) {
    const std::int32_t slot = op.proposing[i / kProposalWords].slot;
    if (slot >= 0) proposals[i] = reinterpret_cast<const Word*>(op.proposals + slot)[i % kProposalWords];
  }
  if (op.derived > 0 || op.proposing_count > 0) __syncthreads();
  if (threadIdx.x != 0) return;
  auto* head = reinterpret_cast<StepOutcome*>(outcome);
  head->started_ns = op.clock->started_ns;
  head->finished_ns = ptx::global_timer_ns();
  op.clock->collected = collected + 1;
  // The barrier above and the release make all of the block's writes visible before the step's number.
  ptx::store_release_system(&head->step, collected + 1);
}

}  // namespace

void run(Cuda& device, const StepInputs& op) {
  const int blocks =
      std::clamp(std::max((total_words(op) + kThreads - 1) / kThreads, op.deltas), 1, kMostBlocks);
  cuda::launch(device, step_inputs,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .overlap = {.holds_next = true, .writes_settled = op.into.sequences}},
               op);
}

void run(Cuda& device, const OpenGates& op) {
  const auto blocks = static_cast<unsigned>(std::max(1, (op.samples + kGateThreads - 1) / kGateThreads));
  cuda::launch(device, open_gates, {.grid = dim3(blocks), .block = dim3(kGateThreads)}, op);
}

void run(Cuda& device, const CollectOutcome& op) {
  cuda::launch(device, collect_outcome, {.block = dim3(kCollectThreads)}, op);
}

}  // namespace troupe::kernels
