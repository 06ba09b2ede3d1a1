// The most likely tokens of a row: one block per row. It finds the smallest key to take, digit by digit, and
// sorts what is not smaller: in shared memory, or where the results go if they are too many.
//
// Keys are ordered() logits with their ids, all different: so neither the selection nor the order depends on
// the order of atomic operations. Few requests want more than 20 tokens; they do not need the speed of a
// cluster per row.
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sample/ordered.cuh"
#include "kernels/cuda/sample/team.cuh"
#include "kernels/top_logprobs.h"

namespace troupe::kernels {
namespace cuda {
namespace {

using Key = unsigned long long;

constexpr int kTopThreads = 1024;
constexpr int kTile = 4096;  // keys that are sorted in shared memory
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

// Without initial values, since it lies in shared memory.
struct Digit {
  int value;
  int above;   // keys with a larger one
  int number;  // keys with this one
};

struct TopShared {
  Key tile[kTile];
  Key of_warp[2][kTopThreads / 32];
  int bins[kDigits];
  Digit digit;
  int taken;
  float normaliser;
};
static_assert(sizeof(TopShared) <= 48 * 1024 && std::is_trivially_default_constructible_v<TopShared>);

struct TopArgs {
  TopLogprob* top;
  const TopRow* rows;
  const float* logits;
  int vocab;
  int stride;
};

__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

/// Calls f(i, inside) for all i below `count`, and with inside = false to complete the last round of the
/// block: all threads make the same number of calls, so f may use warp operations.
template <class F>
__device__ __forceinline__ void each_round(int count, F&& f) {
  for (int base = 0; base < count; base += kTopThreads) f(base + thread(), base + thread() < count);
}

/// ordered() of the row's largest logit, or kNotFinite if a logit is not finite.
__device__ Key largest_of(const float* logits, int vocab, Key* of_warp) {
  Key best = 0;
  bool finite = true;
  for (int i = thread(); i < vocab; i += kTopThreads) {
    const float z = logits[i];
    finite = finite && isfinite(z);
    best = max(best, ordered(z, i));
  }
  return block_max(finite ? best : kNotFinite, of_warp);
}

/// The log of the sum of e^z, by the same arithmetic as normalise().
__device__ float normaliser_of(const float* logits, int vocab, float largest, TopShared& shared) {
  Key sum = 0;
  for (int i = thread(); i < vocab; i += kTopThreads) {
    sum += __float2ull_rn(__expf(logits[i] - largest) * 0x1p40f);
  }
  sum = block_sum(sum, shared.of_warp[1]);
  if (thread() == 0) {
    shared.normaliser = static_cast<float>(largest + log(static_cast<double>(sum) * 0x1p-40));
  }
  __syncthreads();
  return shared.normaliser;
}

/// Finds the digit in which the wanted-th largest of the counted keys lies.
__device__ Digit digit_of(int wanted, TopShared& shared) {
  if (thread() == 0) {
    Digit found{.value = kDigits - 1, .above = 0, .number = 0};
    while (found.above + shared.bins[found.value] < wanted) found.above += shared.bins[found.value--];
    found.number = shared.bins[found.value];
    shared.digit = found;
  }
  __syncthreads();
  return shared.digit;
}

/// The wanted-th largest key: so many keys are not below it. 1 <= wanted <= vocab.
__device__ Key threshold_of(const float* logits, int vocab, int wanted, TopShared& shared) {
  Key prefix = 0;  // the digits of the threshold found so far
  for (int shift = 64 - kDigitBits;; shift -= kDigitBits) {
    if (thread() < kDigits) shared.bins[thread()] = 0;
    __syncthreads();
    each_round(vocab, [&](int i, bool inside) {
      const Key key = inside ? ordered(logits[i], i) : 0;
      const bool counts = inside && (shift + kDigitBits == 64 || key >> (shift + kDigitBits) == prefix);
      const int digit = counts ? static_cast<int>(key >> shift & (kDigits - 1)) : kDigits;
      // Logits are alike in their upper digits: a warp's equal digits are counted at once.
      const unsigned peers = __match_any_sync(kAll, digit);
      if (counts && lane() == __ffs(static_cast<int>(peers)) - 1)
        atomicAdd(shared.bins + digit, __popc(peers));
    });
    __syncthreads();
    const Digit digit = digit_of(wanted, shared);
    prefix = prefix << kDigitBits | static_cast<unsigned>(digit.value);
    wanted -= digit.above;
    if (digit.number == wanted || shift == 0) return prefix << shift;
    __syncthreads();  // all have read shared.digit
  }
}

/// Writes the keys that are not below `threshold`, in any order.
__device__ void collect(const float* logits, int vocab, Key threshold, Key* keys, int& taken) {
  if (thread() == 0) taken = 0;
  __syncthreads();
  each_round(vocab, [&](int i, bool inside) {
    const Key key = inside ? ordered(logits[i], i) : 0;
    const bool takes = inside && key >= threshold;
    const unsigned takers = __ballot_sync(kAll, takes);
    int first = 0;
    if (lane() == 0 && takers != 0) first = atomicAdd(&taken, __popc(takers));
    first = __shfl_sync(kAll, first, 0);
    if (takes) keys[first + __popc(takers & ((1u << lane()) - 1))] = key;
  });
  __syncthreads();
}

// A bitonic sort, largest first, in which every comparison moves the larger key to the lower index. So an
// array of any length may be taken for one that a power of two fills up with smallest keys: those never move.

/// Compares `low` with `high` for each pair that f(pair) names, of those of a network over `padded` keys.
template <class F>
__device__ __forceinline__ void compare(Key* keys, int count, int padded, F&& pair_of) {
  for (int pair = thread(); pair < padded / 2; pair += kTopThreads) {
    const int2 at = pair_of(pair);
    if (at.y >= count) continue;
    const Key low = keys[at.x], high = keys[at.y];
    if (low < high) {
      keys[at.x] = high;
      keys[at.y] = low;
    }
  }
  __syncthreads();
}

/// Begins to merge sorted runs of size / 2 keys to runs of `size`.
__device__ __forceinline__ void mirror(Key* keys, int count, int padded, int size) {
  compare(keys, count, padded, [size](int pair) {
    const int begin = pair / (size / 2) * size, offset = pair % (size / 2);
    return int2{begin + offset, begin + size - 1 - offset};
  });
}

/// Goes on with that, once for each power of two from size / 4 down to 1.
__device__ __forceinline__ void halve(Key* keys, int count, int padded, int stride) {
  compare(keys, count, padded, [stride](int pair) {
    const int low = pair / stride * 2 * stride + pair % stride;
    return int2{low, low + stride};
  });
}

__device__ int padded_to_power_of_two(int count) { return count <= 1 ? 1 : 1 << (32 - __clz(count - 1)); }

/// At most kTile keys in shared memory.
__device__ void sort_tile(Key* keys, int count) {
  const int padded = padded_to_power_of_two(count);
  for (int size = 2; size <= padded; size *= 2) {
    mirror(keys, count, padded, size);
    for (int stride = size / 4; stride > 0; stride /= 2) halve(keys, count, padded, stride);
  }
}

/// Calls f(keys of the tile, their number) for each tile of `keys`, in shared memory.
template <class F>
__device__ void each_tile(Key* keys, int count, Key* tile, F&& f) {
  for (int begin = 0; begin < count; begin += kTile) {
    const int length = min(kTile, count - begin);
    for (int i = thread(); i < length; i += kTopThreads) tile[i] = keys[begin + i];
    __syncthreads();
    f(tile, length);
    for (int i = thread(); i < length; i += kTopThreads) keys[begin + i] = tile[i];
    __syncthreads();
  }
}

/// Any number of keys in global memory.
__device__ void sort_long(Key* keys, int count, Key* tile) {
  each_tile(keys, count, tile, [](Key* part, int length) { sort_tile(part, length); });
  const int padded = padded_to_power_of_two(count);
  for (int size = 2 * kTile; size <= padded; size *= 2) {
    mirror(keys, count, padded, size);
    for (int stride = size / 4; stride >= kTile; stride /= 2) halve(keys, count, padded, stride);
    each_tile(keys, count, tile, [](Key* part, int length) {
      for (int stride = kTile / 2; stride > 0; stride /= 2) halve(part, length, kTile, stride);
    });
  }
}

__global__ void __launch_bounds__(kTopThreads, 1) top_logprobs_kernel(const TopArgs args) {
  __shared__ TopShared shared;
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const TopRow row = args.rows[blockIdx.x];
  if (row.logits_row < 0) return;
  const float* const logits =
      args.logits + static_cast<std::size_t>(row.logits_row) * static_cast<std::size_t>(args.stride);
  const Key best = largest_of(logits, args.vocab, shared.of_warp[0]);
  if (best == kNotFinite) return;
  const float normaliser = normaliser_of(logits, args.vocab, logit_of(best), shared);
  const int count = min(row.count, args.vocab);
  const Key threshold = count < args.vocab ? threshold_of(logits, args.vocab, count, shared) : 0;

  TopLogprob* const top = args.top + row.first;
  static_assert(sizeof(TopLogprob) == sizeof(Key));
  const bool fits = count <= kTile;
  Key* const keys = fits ? shared.tile : reinterpret_cast<Key*>(top);
  collect(logits, args.vocab, threshold, keys, shared.taken);
  if (fits)
    sort_tile(keys, count);
  else
    sort_long(keys, count, shared.tile);
  for (int i = thread(); i < count; i += kTopThreads) {
    const Key key = keys[i];
    top[i] = {id_of(key), logit_of(key) - normaliser};
  }
}

}  // namespace
}  // namespace cuda

void run(Cuda& device, const TopLogprobs& op) {
  if (op.count == 0) return;
  TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(op.top) % sizeof(cuda::Key) == 0);
  troupe::cuda::launch(
      device, cuda::top_logprobs_kernel,
      {.grid = static_cast<unsigned>(op.count), .block = cuda::kTopThreads},
      cuda::TopArgs{
          .top = op.top, .rows = op.rows, .logits = op.logits, .vocab = op.vocab, .stride = op.stride});
}

}  // namespace troupe::kernels
