// Reads of the piece cross the bus to the host, about two microseconds each way. All arrays are taken as flat
// words, one per thread, without looking at the piece's counts first, so that one round trip carries a whole
// decode step; only deltas longer than a word need a second.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/step_inputs.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kMostBlocks = 264;
constexpr int kCollectThreads = 512;

using Word = std::uint64_t;
constexpr int kRowWords = 2;  // an InputRow and a KvSlot
constexpr int kSequenceWords = sizeof(Sequence) / sizeof(Word);
constexpr int kSampleWords = sizeof(SampleRow) / sizeof(Word);
constexpr int kResultWords = sizeof(SampleResult) / sizeof(Word);
static_assert(sizeof(InputRow) == sizeof(Word) && sizeof(KvSlot) == sizeof(Word));
static_assert(sizeof(Sequence) % sizeof(Word) == 0 && sizeof(SampleRow) % sizeof(Word) == 0);
static_assert(sizeof(SampleResult) % sizeof(Word) == 0 && sizeof(Sampled) == sizeof(Word));
static_assert(sizeof(StepPiece) == 2 * sizeof(Word) && sizeof(Delta) == 2 * sizeof(Word));
static_assert(kWordsOfDelta == 4 * kThreads);

// Pinned memory changes between two launches of a graph: nothing of it may stay in a multiprocessor's cache.
template <class T>
__device__ T fresh(const void* from) {
  if constexpr (sizeof(T) == 16) {
    ulonglong2 value;
    asm volatile("ld.global.L1::no_allocate.v2.b64 {%0, %1}, [%2];"
                 : "=l"(value.x), "=l"(value.y)
                 : "l"(from));
    return value;
  } else if constexpr (sizeof(T) == 8) {
    T value;
    asm volatile("ld.global.L1::no_allocate.b64 %0, [%1];" : "=l"(value) : "l"(from));
    return value;
  } else {
    T value;
    asm volatile("ld.global.L1::no_allocate.b32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
  }
}

__device__ Word global_ns() {
  Word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

constexpr __device__ Word pair(std::int32_t low, std::int32_t high) {
  return static_cast<std::uint32_t>(low) | static_cast<Word>(static_cast<std::uint32_t>(high)) << 32;
}

// One word of the arrays: where it comes from, where it goes, and what it is when it belongs to padding.
struct Item {
  std::uint32_t from = 0;
  Word* to = nullptr;
  int row = -1;  // of a row's token and position
  int index = 0;
  enum { of_rows, of_sequences, of_samples } kind = of_rows;
  Word padding = 0;
};

__device__ Item item_of(const StepInputs& op, int i) {
  Item item;
  if (i < op.rows) {
    item.from = op.layout.rows + i * sizeof(Word);
    item.row = item.index = i;
    return item;
  }
  i -= op.rows;
  if (i < op.rows) {
    item.from = op.layout.slots + i * sizeof(Word);
    item.to = reinterpret_cast<Word*>(op.into.slots) + i;
    item.index = i;
    item.padding = pair(kPaddingBlock, 0);
    return item;
  }
  i -= op.rows;
  if (i < op.sequences * kSequenceWords) {
    item.from = op.layout.sequences + i * sizeof(Word);
    item.to = reinterpret_cast<Word*>(op.into.sequences) + i;
    item.index = i / kSequenceWords;
    item.kind = Item::of_sequences;
    // Decode steps are the ones with padding: sequence s has row s.
    if (i % kSequenceWords == offsetof(Sequence, row) / sizeof(Word)) item.padding = pair(item.index, 0);
    return item;
  }
  i -= op.sequences * kSequenceWords;
  item.kind = Item::of_samples;
  if (i < op.samples * kSampleWords) {
    item.from = op.layout.samples + i * sizeof(Word);
    item.to = reinterpret_cast<Word*>(op.into.samples) + i;
    item.index = i / kSampleWords;
    if (i % kSampleWords == offsetof(SampleRow, logits_row) / sizeof(Word)) item.padding = pair(-1, 0);
    return item;
  }
  i -= op.samples * kSampleWords;
  item.from = op.layout.picks + i * sizeof(Word);  // two picks
  item.to = reinterpret_cast<Word*>(op.into.picks) + i;
  item.index = 2 * i;
  return item;
}

__host__ __device__ int items(const StepInputs& op) {
  return kRowWords * op.rows + kSequenceWords * op.sequences + kSampleWords * op.samples +
         (op.samples + 1) / 2;
}

__device__ void take_row(const StepInputs& op, int r, Word word) {
  auto token = static_cast<TokenId>(word);
  const auto position = static_cast<std::int32_t>(word >> 32);
  if (token < 0) token = op.ids[static_cast<std::size_t>(~token) * op.ids_per_slot + position];
  op.into.tokens[r] = token;
  op.into.positions[r] = position;
}

__global__ void __launch_bounds__(kThreads) step_inputs(const __grid_constant__ StepInputs op) {
  cuda::wait_for_previous();
  cuda::let_next_start();
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x) * kThreads;
  const std::byte* piece = op.ring + op.clock->collected % static_cast<unsigned>(op.pieces) * op.layout.bytes;
  const auto head = fresh<ulonglong2>(piece);
  const auto* deltas = reinterpret_cast<const Delta*>(piece + op.layout.deltas);
  auto delta = fresh<ulonglong2>(deltas + blockIdx.x);  // read whether it is there or not
  if (thread == 0) op.clock->started_ns = global_ns();

  const int all = items(op);
  for (int i = thread; i < all; i += threads) {
    const Item item = item_of(op, i);
    Word word = fresh<Word>(piece + item.from);
    const Word counted = item.kind == Item::of_samples ? head.y : head.x;
    const int count = static_cast<int>(item.kind == Item::of_sequences ? counted >> 32 : counted);
    if (item.index >= count) word = item.padding;
    if (item.row >= 0) {
      take_row(op, item.row, word);
    } else {
      *item.to = word;
    }
  }

  const int count = static_cast<int>(head.y >> 32);
  for (int d = static_cast<int>(blockIdx.x); d < count; d += static_cast<int>(gridDim.x)) {
    if (d != static_cast<int>(blockIdx.x)) delta = fresh<ulonglong2>(deltas + d);
    auto* to = reinterpret_cast<std::uint32_t*>(delta.x);
    const auto from = static_cast<std::uint32_t>(delta.y);
    const auto words = static_cast<unsigned>(delta.y >> 32);
    if (words == 1) {
      if (threadIdx.x == 0) *to = from;
      continue;
    }
    for (unsigned w = threadIdx.x; w < words; w += kThreads) {
      to[w] = fresh<std::uint32_t>(piece + from + w * sizeof(std::uint32_t));
    }
  }
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
  std::byte* outcome =
      op.ring + collected % static_cast<unsigned>(op.pieces) * outcome_bytes(op.most_samples);
  auto* sampled = reinterpret_cast<Sampled*>(outcome + sampled_at());
  auto* results = reinterpret_cast<Word*>(outcome + results_at(op.most_samples));
  const auto* from = reinterpret_cast<const Word*>(op.results);
  for (int first = 0; first < op.samples; first += kCollectThreads) {
    const int s = first + static_cast<int>(threadIdx.x);
    if (s < op.samples) {
      const std::int32_t logits_row = op.rows[s].logits_row;
      const std::int32_t logprobs = op.rows[s].logprobs;
      const Sampled one{op.results[s].token, op.results[s].error};
      if (logits_row >= 0) sampled[s] = one;
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
  if (threadIdx.x != 0) return;
  auto* head = reinterpret_cast<StepOutcome*>(outcome);
  head->started_ns = op.clock->started_ns;
  head->finished_ns = global_ns();
  op.clock->collected = collected + 1;
  // The barrier above and the release make all of the block's writes visible before the step's number.
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&head->step), "l"(collected + 1) : "memory");
}

}  // namespace

void run(Cuda& device, const StepInputs& op) {
  const int blocks = std::clamp(std::max((items(op) + kThreads - 1) / kThreads, op.deltas), 1, kMostBlocks);
  cuda::launch(device, step_inputs, {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)},
               op);
}

void run(Cuda& device, const CollectOutcome& op) {
  cuda::launch(device, collect_outcome, {.block = dim3(kCollectThreads)}, op);
}

}  // namespace troupe::kernels
