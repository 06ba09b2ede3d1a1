// Reads of the piece cross the bus to the host: the fewer round trips follow one another, the better. So the
// arrays are copied as flat words by as many threads as there are words, and a delta by a whole block.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/step_inputs.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kMostBlocks = 264;

using Word = std::uint64_t;
static_assert(sizeof(InputRow) == 3 * sizeof(Word) && sizeof(Sequence) == 3 * sizeof(Word));
static_assert(sizeof(SampleRow) % sizeof(Word) == 0 && sizeof(SampleResult) % sizeof(Word) == 0);
static_assert(sizeof(Delta) == 2 * sizeof(Word) && sizeof(Sampled) == sizeof(Word));
static_assert(kWordsOfDelta == 4 * kThreads);

// Pinned memory changes between two launches of a graph: never taken from a cache.
template <class T>
__device__ T fresh(const T* from) {
  return __ldcv(from);
}

__device__ Word global_ns() {
  Word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Copies `count` elements of T and lets `pad` write those from there to `most`.
template <class T, class Pad>
__device__ void spread(T* to, const std::byte* from, int count, int most, int thread, int threads, Pad pad) {
  constexpr int kWords = sizeof(T) / sizeof(Word);
  const Word* in = reinterpret_cast<const Word*>(from);
  Word* out = reinterpret_cast<Word*>(to);
  for (int i = thread; i < count * kWords; i += threads) out[i] = fresh(in + i);
  for (int i = count + thread; i < most; i += threads) pad(i);
}

__device__ void take_row(const StepArrays& into, int r, const Word* in) {
  const Word token_position = fresh(in);
  const Word slot = fresh(in + 1);
  TokenId token = static_cast<TokenId>(token_position);
  if (token == kSampledToken) token = *reinterpret_cast<const TokenId*>(fresh(in + 2));
  into.tokens[r] = token;
  into.positions[r] = static_cast<std::int32_t>(token_position >> 32);
  into.slots[r] = {static_cast<BlockId>(slot), static_cast<std::int32_t>(slot >> 32)};
}

__global__ void __launch_bounds__(kThreads) step_inputs(StepInputs op) {
  __shared__ Word header[sizeof(StepPiece) / sizeof(Word)];
  cuda::wait_for_previous();
  cuda::let_next_start();
  const std::byte* piece = op.ring + op.clock->collected % static_cast<unsigned>(op.pieces) * op.piece_bytes;
  if (threadIdx.x < sizeof(StepPiece) / sizeof(Word)) {
    header[threadIdx.x] = fresh(reinterpret_cast<const Word*>(piece) + threadIdx.x);
  }
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x) * kThreads;
  if (thread == 0) op.clock->started_ns = global_ns();
  __syncthreads();
  const StepPiece& at = *reinterpret_cast<const StepPiece*>(header);

  const StepArrays& into = op.into;
  for (int r = thread; r < op.rows; r += threads) {
    if (r < at.rows) {
      take_row(into, r, reinterpret_cast<const Word*>(piece + at.rows_at) + 3 * r);
    } else {
      into.tokens[r] = 0;
      into.positions[r] = 0;
      into.slots[r] = {kPaddingBlock, 0};
    }
  }
  spread(into.sequences, piece + at.sequences_at, min(at.sequences, op.sequences), op.sequences, thread,
         threads, [&](int s) {
           into.sequences[s] = Sequence{nullptr, 0, 0, min(at.rows + s - at.sequences, op.rows)};
         });
  spread(into.samples, piece + at.samples_at, min(at.samples, op.samples), op.samples, thread, threads,
         [&](int s) { into.samples[s] = SampleRow{.logits_row = -1}; });
  const auto* picks = reinterpret_cast<const std::int32_t*>(piece + at.picks_at);
  for (int s = thread; s < op.samples; s += threads) into.picks[s] = s < at.samples ? fresh(picks + s) : 0;

  for (int d = static_cast<int>(blockIdx.x); d < at.deltas; d += static_cast<int>(gridDim.x)) {
    const Word* delta = reinterpret_cast<const Word*>(piece + at.deltas_at) + 2 * d;
    auto* to = reinterpret_cast<std::uint32_t*>(fresh(delta));
    const Word from_words = fresh(delta + 1);
    const auto* from = reinterpret_cast<const std::uint32_t*>(piece + static_cast<std::uint32_t>(from_words));
    const auto words = static_cast<unsigned>(from_words >> 32);
    for (unsigned w = threadIdx.x; w < words; w += kThreads) to[w] = fresh(from + w);
  }
}

__global__ void __launch_bounds__(256) collect_outcome(CollectOutcome op) {
  cuda::wait_for_previous();
  cuda::let_next_start();
  const Word collected = op.clock->collected;
  std::byte* outcome =
      op.ring + collected % static_cast<unsigned>(op.pieces) * outcome_bytes(op.most_samples);
  auto* sampled = reinterpret_cast<Sampled*>(outcome + sampled_at());
  auto* results = reinterpret_cast<Word*>(outcome + results_at(op.most_samples));
  constexpr int kWords = sizeof(SampleResult) / sizeof(Word);
  for (int s = static_cast<int>(threadIdx.x); s < op.samples; s += 256) {
    if (op.rows[s].logits_row >= 0) sampled[s] = {op.results[s].token, op.results[s].error};
  }
  const auto* from = reinterpret_cast<const Word*>(op.results);
  for (int i = static_cast<int>(threadIdx.x); i < op.samples * kWords; i += 256) {
    const SampleRow& row = op.rows[i / kWords];
    if (row.logits_row >= 0 && row.logprobs >= 0) results[i] = from[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  auto* head = reinterpret_cast<StepOutcome*>(outcome);
  head->started_ns = op.clock->started_ns;
  head->finished_ns = global_ns();
  op.clock->collected = collected + 1;
  __threadfence_system();
  *reinterpret_cast<volatile Word*>(&head->step) = collected + 1;
}

}  // namespace

void run(Cuda& device, const StepInputs& op) {
  const int words =
      3 * (op.rows + op.sequences) + static_cast<int>(sizeof(SampleRow) / sizeof(Word)) * op.samples;
  const int blocks = std::clamp(std::max((words + kThreads - 1) / kThreads, op.deltas), 1, kMostBlocks);
  cuda::launch(device, step_inputs, {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)},
               op);
}

void run(Cuda& device, const CollectOutcome& op) {
  cuda::launch(device, collect_outcome, {.block = dim3(256)}, op);
}

}  // namespace troupe::kernels
