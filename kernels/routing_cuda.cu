#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/routing.h"

namespace troupe::kernels::cuda {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostTileRows = 64;
constexpr int kSmallTile = 16;
constexpr int kPlacingThreads = 512;
constexpr int kMostCluster = 8;
constexpr int kTilesPlacedAtOnce = 16;  // of kSmallTile rows: by the last block of the router itself

struct Arguments {
  const void* x;
  const float* router;
  const float* bias;
  const KvSlot* slots;
  std::int32_t* chosen;
  Routing to;
  int rows, experts, shared, top_k;
  int inputs;  ///< padded
  int stride;  ///< of logits
  int tile_rows, tiles;
  std::uint32_t* arrived;  ///< counters: (1 + tiles)
};

/// A warp's sum in every lane; the same order always.
__device__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kWholeWarp, value, distance);
  return value;
}

__device__ float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

/// Rises with the value; at least 1; 1 for NaN.
__device__ std::uint32_t rank_key(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0f);  // -0 equals 0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// What a tile has in shared memory.
struct Tile {
  std::uint32_t mask[kMostTileRows / 32][kMostExperts];  ///< by expert: which of the rows chose it
  std::uint16_t expert[kMostTileRows * kMostChosen];  ///< (rows, top_k), rising; kNobody: the row counts not
  float weight[kMostTileRows * kMostChosen];
  int counted;  ///< rows that do

  static constexpr std::uint16_t kNobody = 0xffff;

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

__device__ bool row_counts(const Arguments& a, int row) {
  return a.slots == nullptr || a.slots[row].block != kPaddingBlock;
}

/// Softmax, selection and weights of kRows rows of a tile by a warp, side by side: rows row, row + step, … of
/// `rows`. Lane l has experts l, l + 32, …
template <int kRows, int kHeld, bool kLocal>
__device__ void choose_rows(const Arguments& a, const float* logits, int stride, int row, int step, int rows,
                            int first_row, Tile& tile) {
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
      if (e < a.experts) p[i][j] = kLocal ? from[e] : __ldcg(from + e);  // other blocks wrote some
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
      if (lane == 0) atomicAdd(&tile.counted, 1);
    } else if (r < rows) {
      for (int k = lane; k < a.top_k; k += 32) tile.expert[r * a.top_k + k] = Tile::kNobody;
    }
  }
}

/// The rows of a tile whose logits are there, in shared memory where kLocal; `logits` begins at the tile's
/// first row. A warp takes kRows rows side by side. The results are behind a barrier.
template <int kRows, bool kLocal>
__device__ void choose_tile(const Arguments& a, const float* logits, int stride, int index, Tile& tile) {
  const int first = index * a.tile_rows;
  const int rows = min(a.tile_rows, a.rows - first);
  const int warps = static_cast<int>(blockDim.x / 32);
  for (int r = static_cast<int>(threadIdx.x / 32); r < rows; r += kRows * warps) {
    if (a.experts <= 32) {
      choose_rows<kRows, 1, kLocal>(a, logits, stride, r, warps, rows, first, tile);
    } else if (a.experts <= 64) {
      choose_rows<kRows, 2, kLocal>(a, logits, stride, r, warps, rows, first, tile);
    } else {
      choose_rows<kRows, kMostExperts / 32, kLocal>(a, logits, stride, r, warps, rows, first, tile);
    }
  }
  __syncthreads();
  if (a.chosen != nullptr) {
    for (int i = threadIdx.x; i < rows * a.top_k; i += blockDim.x) {
      a.chosen[first * a.top_k + i] = tile.expert[i] == Tile::kNobody ? -1 : int{tile.expert[i]};
    }
  }
}

/// For whoever places the rows of several tiles.
__device__ void publish_tile(const Arguments& a, int index, const Tile& tile) {
  const int first = index * a.tile_rows;
  const int rows = min(a.tile_rows, a.rows - first);
  for (int i = threadIdx.x; i < rows * a.top_k; i += blockDim.x) {
    const int e = tile.expert[i];
    const int at = first * a.top_k + i;
    a.to.choices[at] = e == Tile::kNobody ? Routing::kNobody
                                          : static_cast<std::uint32_t>(e) |
                                                static_cast<std::uint32_t>(tile.rank(i / a.top_k, e)) << 16;
    a.to.weights[at] = tile.weight[i];
  }
  std::int32_t* counts = a.to.counts + static_cast<std::size_t>(index) * (a.experts + 1);
  for (int e = threadIdx.x; e <= a.experts; e += blockDim.x) {
    counts[e] = e < a.experts ? tile.count(e) : tile.counted;
  }
}

/// Any dtype: a warp a row and an expert; lane l sums inputs 4l … 4l + 3 of every 128.
template <class Element>
__global__ void __launch_bounds__(kThreads) score_kernel(Arguments a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int expert = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (expert >= a.experts) return;
  const int row = static_cast<int>(blockIdx.x);
  const Element* x = static_cast<const Element*>(a.x) + static_cast<std::size_t>(row) * a.inputs;
  const float* w = a.router + static_cast<std::size_t>(expert) * a.inputs;
  float sum = 0;
  for (int i = lane * 4; i < a.inputs; i += 128) {
    const float4 four = *reinterpret_cast<const float4*>(w + i);
    sum = fmaf(to_float(x[i]), four.x, sum);
    sum = fmaf(to_float(x[i + 1]), four.y, sum);
    sum = fmaf(to_float(x[i + 2]), four.z, sum);
    sum = fmaf(to_float(x[i + 3]), four.w, sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) a.to.logits[static_cast<std::size_t>(row) * a.stride + expert] = sum;
}

__global__ void __launch_bounds__(kThreads) choose_kernel(Arguments a) {
  __shared__ Tile tile;
  tile.clear(a.experts);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  __syncthreads();
  const int index = static_cast<int>(blockIdx.x);
  choose_tile<1, false>(a, a.to.logits + static_cast<std::size_t>(index) * a.tile_rows * a.stride, a.stride,
                        index, tile);
  publish_tile(a, index, tile);
}

/// By expert: where its rows begin, and how many it has. The last column counts rows.
struct Columns {
  int first_place[kMostExperts + 1], total[kMostExperts + 1];

  /// Exclusive sums of total; by the first warp.
  __device__ void place(int experts) {
    const int lane = static_cast<int>(threadIdx.x);
    int carry = 0;
    for (int first = 0; first <= experts; first += 32) {
      const int e = first + lane;
      const int own = e < experts ? total[e] : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (e <= experts) first_place[e] = carry + sum - own;
      carry += __shfl_sync(kWholeWarp, sum, 31);
    }
  }
};

struct Choice {
  int expert;  ///< -1: nobody
  int before;  ///< rows of the expert before this one
  float weight;
};

/// Rows [first, first + rows), and the offsets with those that begin at 0. choice(i): of the i-th of the
/// rows' choices.
template <class Choices>
__device__ void place_rows(const Arguments& a, const Columns& columns, int first, int rows,
                           Choices&& choices) {
  const int threads = static_cast<int>(blockDim.x);
  const int counted = columns.total[a.experts];
  const int shared_place = columns.first_place[a.experts];
  if (first == 0) {
    for (int g = threadIdx.x; g <= a.experts + a.shared; g += threads) {
      a.to.offsets[g] = g < a.experts ? columns.first_place[g] : shared_place + (g - a.experts) * counted;
    }
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * a.top_k; i += threads) {
    const Choice choice = choices(i);
    int place = -1;
    if (choice.expert >= 0) {
      place = columns.first_place[choice.expert] + choice.before;
      a.to.gather[place] = first + i / a.top_k;
      a.to.scale[place] = choice.weight;
    }
    a.to.places[first * a.top_k + i] = place;
  }
  for (int i = threadIdx.x; i < rows * a.shared; i += threads) {  // padding comes last
    const int row = first + i / a.shared;
    if (row >= counted) break;
    const int place = shared_place + i % a.shared * counted + row;
    a.to.gather[place] = row;
    a.to.scale[place] = 1;
  }
}

/// A published choice.
template <class Earlier>
__device__ Choice published(const Arguments& a, int at, Earlier&& earlier) {
  const std::uint32_t choice = __ldcg(a.to.choices + at);
  const float weight = __ldcg(a.to.weights + at);
  if (choice == Routing::kNobody) return {-1, 0, 0};
  const int e = static_cast<int>(choice & 0xffffu);
  return {e, earlier(e) + static_cast<int>(choice >> 16), weight};
}

/// One block a tile. Each sums up the tiles' counts for itself.
__global__ void __launch_bounds__(kPlacingThreads) place_kernel(Arguments a) {
  __shared__ int partial[kPlacingThreads], partial_earlier[kPlacingThreads];
  __shared__ int earlier[kMostExperts + 1];
  __shared__ Columns columns;
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int tile = static_cast<int>(blockIdx.x);
  const int width = a.experts + 1;
  const int parts = kPlacingThreads / width;
  const int part = static_cast<int>(threadIdx.x) / width, column = static_cast<int>(threadIdx.x) % width;
  if (part < parts) {
    int all = 0, before = 0;
#pragma unroll 8
    for (int t = part; t < a.tiles; t += parts) {
      const int n = a.to.counts[static_cast<std::size_t>(t) * width + column];
      all += n;
      before += t < tile ? n : 0;
    }
    partial[threadIdx.x] = all;
    partial_earlier[threadIdx.x] = before;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < width; e += kPlacingThreads) {
    int all = 0, before = 0;
    for (int p = 0; p < parts; ++p) {
      all += partial[p * width + e];
      before += partial_earlier[p * width + e];
    }
    columns.total[e] = all;
    earlier[e] = before;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.place(a.experts);
  __syncthreads();
  const int first = tile * a.tile_rows;
  place_rows(a, columns, first, min(a.tile_rows, a.rows - first),
             [&](int i) { return published(a, first * a.top_k + i, [&](int e) { return earlier[e]; }); });
}

/// All tiles at once, by one block: at most kTilesPlacedAtOnce.
__device__ void place_all(const Arguments& a) {
  __shared__ Columns columns;
  __shared__ std::uint16_t earlier[kTilesPlacedAtOnce][kMostExperts + 1];
  const int width = a.experts + 1;
  for (int e = threadIdx.x; e < width; e += blockDim.x) {
    int count[kTilesPlacedAtOnce];
#pragma unroll
    for (int t = 0; t < kTilesPlacedAtOnce; ++t)
      count[t] = t < a.tiles ? __ldcg(a.to.counts + t * width + e) : 0;
    int sum = 0;
#pragma unroll
    for (int t = 0; t < kTilesPlacedAtOnce; ++t) {
      earlier[t][e] = static_cast<std::uint16_t>(sum);
      sum += count[t];
    }
    columns.total[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.place(a.experts);
  __syncthreads();
  place_rows(a, columns, 0, a.rows, [&](int i) {
    return published(a, i, [&](int e) { return int{earlier[i / a.top_k / kSmallTile][e]}; });
  });
}

/// The only tile.
__device__ void place_tile(const Arguments& a, const Tile& tile) {
  __shared__ Columns columns;
  for (int e = threadIdx.x; e <= a.experts; e += blockDim.x) {
    columns.total[e] = e < a.experts ? tile.count(e) : tile.counted;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.place(a.experts);
  __syncthreads();
  place_rows(a, columns, 0, a.rows, [&](int i) {
    const int e = tile.expert[i];
    if (e == Tile::kNobody) return Choice{-1, 0, 0};
    return Choice{e, tile.rank(i / a.top_k, e), tile.weight[i]};
  });
}

/// Whether this block is the last of `blocks` to come here; what the others wrote before is then visible to
/// loads that miss L1. The counter is zero again.
__device__ bool last_to_arrive(std::uint32_t* counter, int blocks) {
  __shared__ bool last;
  if (blocks == 1) return true;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    last = atomicInc(counter, static_cast<unsigned>(blocks - 1)) == static_cast<unsigned>(blocks - 1);
  __syncthreads();
  __threadfence();
  return last;
}

// ---- Scores of bf16 rows on the tensor cores.
//
// A weight in fp32 is the sum of three numbers in bf16 (8 + 8 + 8 bits of its 24) but for 2^-24 of it, and
// their products with bf16 inputs are exact in fp32: three passes give what fp32 multiply-adds would. The
// weights are taken apart in registers, from the fp32 matrix.
//
// The block's warps have a part of the inputs each, with borders that hang on their number alone; within it a
// sum runs over the inputs in one order, and the warps' sums are added in order. So a row's logits are its
// own.

constexpr int kChunk = 32;  // inputs at a time: 8 neighbours of each row to a lane, 16 bytes of bf16

__device__ __forceinline__ void multiply(float (&sum)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Two weights as three registers of two bf16 each, the largest part first.
__device__ __forceinline__ void take_apart(float low, float high, std::uint32_t (&parts)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const __nv_bfloat162 part = __floats2bfloat162_rn(low, high);
    parts[i] = *reinterpret_cast<const std::uint32_t*>(&part);
    low -= __uint_as_float(parts[i] << 16);
    high -= __uint_as_float(parts[i] & 0xffff0000u);
  }
}

/// Block (g, t): experts [8 kNs g, 8 kNs (g + 1)) for rows [16 kMs t, 16 kMs (t + 1)). The first kHeld chunks
/// of weights are on their way before the kernel before this one ends; kAhead: later ones while a chunk is
/// multiplied. kCluster: the blocks of a row tile are a cluster, and the first of them gets the logits in its
/// shared memory; else they go through global memory, and the last block to arrive goes on.
template <int kMs, int kNs, int kWarps, int kHeld, bool kAhead, bool kCluster>
__global__ void __launch_bounds__(32 * kWarps, 1) tensor_route_kernel(Arguments a) {
  constexpr int kRows = 16 * kMs, kExperts = 8 * kNs;
  extern __shared__ float partial[];  // [kWarps][kRows][kExperts]
  __shared__ Tile tile;
  __shared__ float logits[kCluster ? kRows * kExperts * kMostCluster : 1];
  if constexpr (kCluster) troupe::cuda::cluster_come();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int line = lane / 4, quarter = lane % 4;
  const int chunks = a.inputs / kChunk;
  const int begin = chunks * warp / kWarps, end = chunks * (warp + 1) / kWarps;
  const int first_expert = static_cast<int>(blockIdx.x) * kExperts;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;

  float4 weights[kHeld][kNs][2];
  uint4 x[kHeld][kMs][2];
  const auto fetch_weights = [&](int chunk, float4(&to)[kNs][2]) {
#pragma unroll
    for (int n = 0; n < kNs; ++n) {
      const int expert = first_expert + 8 * n + line;
      const float4* at = reinterpret_cast<const float4*>(
          a.router + static_cast<std::size_t>(expert) * a.inputs + chunk * kChunk + quarter * 8);
      const bool there = expert < a.experts && chunk < end;
      to[n][0] = there ? __ldg(at) : float4{};
      to[n][1] = there ? __ldg(at + 1) : float4{};
    }
  };
  const auto fetch_x = [&](int chunk, uint4(&to)[kMs][2]) {
#pragma unroll
    for (int m = 0; m < 2 * kMs; ++m) {
      const int row = first_row + 8 * m + line;
      const bool there = row < a.rows && chunk < end;
      to[m / 2][m % 2] = there ? *reinterpret_cast<const uint4*>(static_cast<const Bf16*>(a.x) +
                                                                 static_cast<std::size_t>(row) * a.inputs +
                                                                 chunk * kChunk + quarter * 8)
                               : uint4{};
    }
  };
  float sums[kMs][kNs][4] = {};
  const auto multiply_chunk = [&](const float4(&w)[kNs][2], const uint4(&v)[kMs][2]) {
#pragma unroll
    for (int n = 0; n < kNs; ++n) {
      std::uint32_t parts[4][3];
      take_apart(w[n][0].x, w[n][0].y, parts[0]);
      take_apart(w[n][0].z, w[n][0].w, parts[1]);
      take_apart(w[n][1].x, w[n][1].y, parts[2]);
      take_apart(w[n][1].z, w[n][1].w, parts[3]);
#pragma unroll
      for (int i = 2; i >= 0; --i) {
#pragma unroll
        for (int m = 0; m < kMs; ++m) {
          const uint4 up = v[m][0], down = v[m][1];
          multiply(sums[m][n], up.x, down.x, up.y, down.y, parts[0][i], parts[1][i]);
          multiply(sums[m][n], up.z, down.z, up.w, down.w, parts[2][i], parts[3][i]);
        }
      }
    }
  };

#pragma unroll
  for (int h = 0; h < kHeld; ++h) fetch_weights(begin + h, weights[h]);
  tile.clear(a.experts);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
#pragma unroll
  for (int h = 0; h < kHeld; ++h) fetch_x(begin + h, x[h]);
  if constexpr (kAhead) {
    static_assert(kHeld == 1);
    float4 next_weights[kNs][2];
    uint4 next_x[kMs][2];
    for (int chunk = begin; chunk < end; chunk += 2) {
      fetch_weights(chunk + 1, next_weights);
      fetch_x(chunk + 1, next_x);
      multiply_chunk(weights[0], x[0]);
      fetch_weights(chunk + 2, weights[0]);
      fetch_x(chunk + 2, x[0]);
      if (chunk + 1 < end) multiply_chunk(next_weights, next_x);
    }
  } else {
    for (int chunk = begin; chunk < end; chunk += kHeld) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        multiply_chunk(weights[h], x[h]);
        if (chunk + kHeld + h < end) {
          fetch_weights(chunk + kHeld + h, weights[h]);
          fetch_x(chunk + kHeld + h, x[h]);
        } else if (chunk + kHeld < end) {
#pragma unroll
          for (int m = 0; m < kMs; ++m) x[h][m][0] = x[h][m][1] = uint4{};
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMs; ++m) {
#pragma unroll
    for (int n = 0; n < kNs; ++n) {
      float* to = partial + (warp * kRows + 16 * m + line) * kExperts + 8 * n + 2 * quarter;
      *reinterpret_cast<float2*>(to) = make_float2(sums[m][n][0], sums[m][n][1]);
      *reinterpret_cast<float2*>(to + 8 * kExperts) = make_float2(sums[m][n][2], sums[m][n][3]);
    }
  }
  __syncthreads();
  constexpr int kLocalStride = kExperts * kMostCluster;
  if constexpr (kCluster) troupe::cuda::cluster_await();  // all of them run
  for (int i = threadIdx.x; i < kRows * kExperts; i += 32 * kWarps) {
    const int row = i / kExperts, expert = first_expert + i % kExperts;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w * kRows * kExperts + i];
    if constexpr (kCluster) {
      troupe::cuda::store_in(0, logits + row * kLocalStride + expert, sum);
    } else if (first_row + row < a.rows && expert < a.experts) {
      a.to.logits[static_cast<std::size_t>(first_row + row) * a.stride + expert] = sum;
    }
  }

  const int index = static_cast<int>(blockIdx.y);
  if constexpr (kCluster) {
    troupe::cuda::cluster_come();
    if (blockIdx.x != 0) return;
    troupe::cuda::cluster_await();
    choose_tile<1, true>(a, logits, kLocalStride, index, tile);
  } else {
    __syncthreads();
    if (!last_to_arrive(a.arrived + 1 + index, static_cast<int>(gridDim.x))) return;
    choose_tile<kRows == kSmallTile ? 1 : 2, false>(
        a, a.to.logits + static_cast<std::size_t>(first_row) * a.stride, a.stride, index, tile);
  }
  if constexpr (kRows == kSmallTile) {
    if (a.tiles == 1) return place_tile(a, tile);
  }
  publish_tile(a, index, tile);
  if constexpr (kRows == kSmallTile) {
    if (a.tiles > kTilesPlacedAtOnce) return;
    __syncthreads();
    if (last_to_arrive(a.arrived, a.tiles)) place_all(a);
  }
}

}  // namespace

std::size_t lay_out(Routing& routing, const Moe& op, std::byte* memory) {
  std::size_t bytes = 0;
  const auto take = [&]<class T>(T*& array, std::size_t count) {
    array = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
    bytes += (count * sizeof(T) + 255) / 256 * 256;
  };
  const auto rows = static_cast<std::size_t>(op.rows);
  const auto places = static_cast<std::size_t>(most_places(op));
  const auto choices = rows * static_cast<std::size_t>(op.top_k);
  take(routing.offsets, static_cast<std::size_t>(op.experts + op.shared + 1));
  take(routing.gather, places);
  take(routing.scale, places);
  take(routing.places, choices);
  take(routing.logits, rows * static_cast<std::size_t>(padded(op.experts)));
  take(routing.choices, choices);
  take(routing.weights, choices);
  take(routing.counts, (rows + kSmallTile - 1) / kSmallTile * static_cast<std::size_t>(op.experts + 1));
  return bytes;
}

template <int kMs, int kNs, int kWarps, int kHeld, bool kAhead, bool kCluster = false>
void launch_tensor_route(Cuda& device, Arguments a) {
  constexpr std::size_t kBytes = sizeof(float) * kWarps * 16 * kMs * 8 * kNs;
  const auto kernel = tensor_route_kernel<kMs, kNs, kWarps, kHeld, kAhead, kCluster>;
  a.tile_rows = 16 * kMs;
  a.tiles = (a.rows + a.tile_rows - 1) / a.tile_rows;
  troupe::cuda::allow_shared(kernel, kBytes);
  const int blocks = (a.experts + 8 * kNs - 1) / (8 * kNs);
  troupe::cuda::launch(device, kernel,
                       {.grid = dim3(unsigned(blocks), unsigned(a.tiles)),
                        .block = 32 * kWarps,
                        .shared_bytes = kBytes,
                        .cluster = kCluster ? blocks : 1},
                       a);
  if (a.tile_rows == kSmallTile && a.tiles <= kTilesPlacedAtOnce) return;
  troupe::cuda::launch(device, place_kernel, {.grid = unsigned(a.tiles), .block = kPlacingThreads}, a);
}

void route(Cuda& device, const Moe& op, const Routing& routing) {
  const Arguments a{.x = op.x,
                    .router = static_cast<const float*>(op.router.data),
                    .bias = op.bias,
                    .slots = op.slots,
                    .chosen = op.chosen,
                    .to = routing,
                    .rows = op.rows,
                    .experts = op.experts,
                    .shared = op.shared,
                    .top_k = op.top_k,
                    .inputs = padded(op.router.inputs),
                    .stride = padded(op.experts),
                    .arrived = device.counters()};
  const DType dtype = op.down.first.dtype;
  if (dtype == DType::bf16) {
    // Whole tiles of rows read the weights less often; the small tile alone is the invariant way.
    const bool small = op.rows <= kSmallTile * kTilesPlacedAtOnce || device.batch_invariant();
    if (!small) return launch_tensor_route<4, 4, 8, 1, true>(device, a);
    return device.hopper() && op.experts <= 8 * kMostCluster
               ? launch_tensor_route<1, 1, 16, 5, false, true>(device, a)
               : launch_tensor_route<1, 1, 16, 5, false>(device, a);
  }
  Arguments plain = a;
  plain.tile_rows = kMostTileRows;
  plain.tiles = (op.rows + kMostTileRows - 1) / kMostTileRows;
  with_element(dtype, [&](auto element) {
    troupe::cuda::launch(
        device, score_kernel<decltype(element)>,
        {.grid = dim3(unsigned(op.rows), unsigned((op.experts + kWarps - 1) / kWarps)), .block = kThreads},
        plain);
  });
  troupe::cuda::launch(device, choose_kernel, {.grid = unsigned(plain.tiles), .block = kThreads}, plain);
  troupe::cuda::launch(device, place_kernel, {.grid = unsigned(plain.tiles), .block = kPlacingThreads},
                       plain);
}

}  // namespace troupe::kernels::cuda
