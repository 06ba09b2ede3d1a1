#pragma once
// Expert selection: softmax over a row's router logits, the top_k of p + bias, and their weights. One warp
// per row, so that the order of every sum is independent of the batch.
#include <cstdint>

#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/product/halved_norm.cuh"

namespace troupe::kernels::cuda::routing {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kMostTileRows = 64;
constexpr int kSmallTile = 16;

struct RoutingArgs {
  const void* x;
  const float* router;
  const float* bias;
  const KvSlot* slots;
  std::int32_t* chosen;
  Routing to;
  int rows, experts;
  int first, held;  ///< experts [first, first + held) have places
  int shared, top_k;
  int inputs;  ///< padded
  int stride;  ///< elements from one row of logits to the next
  int tile_rows, tiles;
  std::uint32_t* arrived;     ///< (1 + tiles) counters
  const std::uint8_t* kinds;  ///< Moe::kinds; null in kernels compiled without kKinds, which do not look
  std::uint8_t kind;
  ConsumedNorm norm{};

  __device__ bool holds(int expert) const { return expert >= first && expert < first + held; }
};

/// The sum over the lanes, in all lanes. Always added in the same order.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kWholeWarp, value, distance);
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

/// An integer that orders as the value does. At least 1; 1 for NaN.
__device__ inline std::uint32_t rank_key(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0f);  // -0 equals 0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The choices of a tile of rows, in shared memory.
struct RoutingTile {
  std::uint32_t mask[kMostTileRows / 32][kMostExperts];  ///< by expert: bit mask of the rows that chose it
  std::uint16_t expert[kMostTileRows * kMostChosen];     ///< (rows, top_k), rising; kNoExpert in padding rows
  float weight[kMostTileRows * kMostChosen];
  int counted;               ///< rows up to the last that is not padding
  float factor[kSmallTile];  ///< of the rows of a consumed norm

  static constexpr std::uint16_t kNoExpert = 0xffff;

  __device__ void clear(int experts) {
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
#pragma unroll
      for (int w = 0; w < kMostTileRows / 32; ++w) mask[w][e] = 0;
    }
    if (threadIdx.x == 0) counted = 0;
  }
  __device__ int count(int expert) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kMostTileRows / 32; ++w) sum += __popc(mask[w][expert]);
    return sum;
  }
  __device__ int rank(int row, int expert) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kMostTileRows / 32; ++w) {
      if (w < row / 32) sum += __popc(mask[w][expert]);
    }
    return sum + __popc(mask[row / 32][expert] & ((1u << row % 32) - 1));
  }
};

__device__ inline bool row_counts(const RoutingArgs& a, int row) {
  return a.slots == nullptr || a.slots[row].block != kPaddingBlock;
}

/// Softmax, selection and weights of kRows rows of a tile by one warp, interleaved: rows row, row + step, …
/// below `rows`. Lane l has experts l, l + 32, …; kHeld of them. kLocal: the logits are in this block's
/// shared memory. kKinds: rows of another kind choose nothing, and count.
template <int kRows, int kHeld, bool kLocal, bool kKinds>
__device__ inline void choose_rows(const RoutingArgs& a, const float* logits, int stride, int row, int step,
                                   int rows, int first_row, RoutingTile& tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  bool there[kRows];
  float p[kRows][kHeld], bias[kHeld];
  std::uint32_t key[kRows][kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) bias[j] = j * 32 + lane < a.experts ? a.bias[j * 32 + lane] : 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    there[i] = row + i * step < rows;
    const float* from = logits + static_cast<std::size_t>(there[i] ? row + i * step : row) * stride;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int e = j * 32 + lane;
      p[i][j] = -INFINITY;
      if (e < a.experts)
        p[i][j] = kLocal ? from[e] : __ldcg(from + e);  // other blocks may have written them: bypass L1
      if (a.norm.squares != nullptr) p[i][j] *= tile.factor[there[i] ? row + i * step : row];
    }
    if (there[i]) there[i] = row_counts(a, first_row + row + i * step);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float largest = p[i][0];
#pragma unroll
    for (int j = 1; j < kHeld; ++j) largest = fmaxf(largest, p[i][j]);
    largest = warp_max(largest);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (j * 32 + lane < a.experts) sum += p[i][j] = expf(p[i][j] - largest);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      key[i][j] = 0;
      if (j * 32 + lane < a.experts) {
        p[i][j] /= sum;
        key[i][j] = rank_key(p[i][j] + bias[j]);
      }
    }
  }
  for (int k = 0; k < a.top_k; ++k) {
    std::uint32_t best[kRows];
    unsigned first[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      best[i] = key[i][0];
#pragma unroll
      for (int j = 1; j < kHeld; ++j) best[i] = max(best[i], key[i][j]);
      best[i] = __reduce_max_sync(kWholeWarp, best[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      first[i] = ~0u;
#pragma unroll
      for (int j = kHeld - 1; j >= 0; --j) {
        if (key[i][j] == best[i]) first[i] = static_cast<unsigned>(j * 32 + lane);
      }
      first[i] = __reduce_min_sync(kWholeWarp, first[i]);
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if (first[i] == static_cast<unsigned>(j * 32 + lane)) key[i][j] = 0;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    unsigned taken[kHeld];
    float of_chosen = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const bool mine = j * 32 + lane < a.experts && key[i][j] == 0;
      taken[j] = __ballot_sync(kWholeWarp, mine);
      if (mine) of_chosen += p[i][j];
    }
    of_chosen = fmaxf(warp_sum(of_chosen), 1e-12f);
    const int r = row + i * step;
    if constexpr (kKinds) {
      if (there[i] && a.kinds[first_row + r] != a.kind) {
        there[i] = false;
        if (lane == 0) atomicMax(&tile.counted, r + 1);
      }
    }
    if (there[i]) {
      int before = 0;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if ((taken[j] >> lane & 1) != 0) {
          const int at = r * a.top_k + before + __popc(taken[j] & ((1u << lane) - 1));
          const int e = j * 32 + lane;
          tile.expert[at] = static_cast<std::uint16_t>(e);
          tile.weight[at] = p[i][j] / of_chosen;
          atomicOr(&tile.mask[r / 32][e], 1u << r % 32);
        }
        before += __popc(taken[j]);
      }
      if (lane == 0) atomicMax(&tile.counted, r + 1);
    } else if (r < rows) {
      for (int k = lane; k < a.top_k; k += 32) tile.expert[r * a.top_k + k] = RoutingTile::kNoExpert;
    }
  }
}

/// Selects the experts of a tile's rows. `logits` begins at the tile's first row. Each warp takes kRows rows
/// at a time. Ends the writes to `tile` with a block barrier.
template <int kRows, bool kLocal, bool kKinds>
__device__ inline void choose_tile(const RoutingArgs& a, const float* logits, int stride, int index,
                                   RoutingTile& tile) {
  const int first = index * a.tile_rows;
  const int rows = min(a.tile_rows, a.rows - first);
  const int warps = static_cast<int>(blockDim.x / 32);
  for (int r = static_cast<int>(threadIdx.x / 32); r < rows; r += kRows * warps) {
    if (a.experts <= 32) {
      choose_rows<kRows, 1, kLocal, kKinds>(a, logits, stride, r, warps, rows, first, tile);
    } else if (a.experts <= 64) {
      choose_rows<kRows, 2, kLocal, kKinds>(a, logits, stride, r, warps, rows, first, tile);
    } else {
      choose_rows<kRows, kMostExperts / 32, kLocal, kKinds>(a, logits, stride, r, warps, rows, first, tile);
    }
  }
  __syncthreads();
  if (a.chosen != nullptr) {
    for (int i = threadIdx.x; i < rows * a.top_k; i += blockDim.x) {
      a.chosen[first * a.top_k + i] = tile.expert[i] == RoutingTile::kNoExpert ? -1 : int{tile.expert[i]};
    }
  }
}

/// Writes a tile's choices and counts to global memory, for the blocks that place the rows of all tiles.
__device__ inline void publish_tile(const RoutingArgs& a, int index, const RoutingTile& tile) {
  const int first = index * a.tile_rows;
  const int rows = min(a.tile_rows, a.rows - first);
  for (int i = threadIdx.x; i < rows * a.top_k; i += blockDim.x) {
    const int e = tile.expert[i];
    const int at = first * a.top_k + i;
    a.to.choices[at] =
        e == RoutingTile::kNoExpert
            ? Routing::kNoExpert
            : static_cast<std::uint32_t>(e) | static_cast<std::uint32_t>(tile.rank(i / a.top_k, e)) << 16;
    a.to.weights[at] = tile.weight[i];
  }
  std::int32_t* counts = a.to.counts + static_cast<std::size_t>(index) * (a.experts + 1);
  for (int e = threadIdx.x; e <= a.experts; e += blockDim.x) {
    counts[e] = e < a.experts ? tile.count(e) : tile.counted;
  }
}

}  // namespace troupe::kernels::cuda::routing
