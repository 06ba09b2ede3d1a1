#include "base/check.h"
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

/// What a tile has in shared memory: by expert, which of its rows chose it.
struct TileMasks {
  std::uint32_t word[kMostTileRows / 32][kMostExperts];

  __device__ void clear(int experts) {
    for (int e = threadIdx.x; e < experts; e += kThreads) {
#pragma unroll
      for (int w = 0; w < kMostTileRows / 32; ++w) word[w][e] = 0;
    }
  }
  __device__ void set(int row, int expert) { atomicOr(&word[row / 32][expert], 1u << row % 32); }
  __device__ int count(int expert) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kMostTileRows / 32; ++w) sum += __popc(word[w][expert]);
    return sum;
  }
  __device__ int rank(int row, int expert) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kMostTileRows / 32; ++w) {
      if (w < row / 32) sum += __popc(word[w][expert]);
    }
    return sum + __popc(word[row / 32][expert] & ((1u << row % 32) - 1));
  }
};

/// Softmax, selection and weights of one row by a warp; lane l has experts l, l + 32, …  The chosen, rising,
/// go to choices (without ranks) and weights.
template <int kHeld>
__device__ void choose_row(const Arguments& a, const float* logits, int row, int tile_row, TileMasks& masks) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float p[kHeld];
  std::uint32_t key[kHeld];
  float largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int e = j * 32 + lane;
    p[j] = e < a.experts ? __ldcg(logits + e) : -INFINITY;  // other blocks wrote some
    largest = fmaxf(largest, p[j]);
  }
  largest = warp_max(largest);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * 32 + lane < a.experts) sum += p[j] = expf(p[j] - largest);
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int e = j * 32 + lane;
    key[j] = 0;
    if (e < a.experts) {
      p[j] /= sum;
      key[j] = rank_key(p[j] + a.bias[e]);
    }
  }
  unsigned taken[kHeld] = {};
  for (int k = 0; k < a.top_k; ++k) {
    std::uint32_t best = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) best = max(best, key[j]);
    best = __reduce_max_sync(kWholeWarp, best);
    unsigned first = ~0u;
#pragma unroll
    for (int j = kHeld - 1; j >= 0; --j) {
      if (key[j] == best) first = static_cast<unsigned>(j * 32 + lane);
    }
    first = __reduce_min_sync(kWholeWarp, first);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (first == static_cast<unsigned>(j * 32 + lane)) key[j] = 0;
    }
  }
  float of_chosen = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const bool mine = j * 32 + lane < a.experts && key[j] == 0;
    taken[j] = __ballot_sync(kWholeWarp, mine);
    if (mine) of_chosen += p[j];
  }
  of_chosen = fmaxf(warp_sum(of_chosen), 1e-12f);
  int before = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if ((taken[j] >> lane & 1) != 0) {
      const int k = before + __popc(taken[j] & ((1u << lane) - 1));
      const int at = row * a.top_k + k;
      const int e = j * 32 + lane;
      a.to.choices[at] = static_cast<std::uint32_t>(e);
      a.to.weights[at] = p[j] / of_chosen;
      if (a.chosen != nullptr) a.chosen[at] = e;
      masks.set(tile_row, e);
    }
    before += __popc(taken[j]);
  }
}

__device__ void choose_row(const Arguments& a, const float* logits, int row, int tile_row, TileMasks& masks) {
  if (a.experts <= 32) {
    choose_row<1>(a, logits, row, tile_row, masks);
  } else if (a.experts <= 64) {
    choose_row<2>(a, logits, row, tile_row, masks);
  } else {
    choose_row<kMostExperts / 32>(a, logits, row, tile_row, masks);
  }
}

__device__ void choose_nobody(const Arguments& a, int row) {
  for (int k = static_cast<int>(threadIdx.x % 32); k < a.top_k; k += 32) {
    a.to.choices[row * a.top_k + k] = Routing::kNobody;
    if (a.chosen != nullptr) a.chosen[row * a.top_k + k] = -1;
  }
}

__device__ bool row_counts(const Arguments& a, int row) {
  return a.slots == nullptr || a.slots[row].block != kPaddingBlock;
}

/// The rows of a tile whose logits are there; `logits` begins at the tile's first row.
__device__ void choose_tile(const Arguments& a, const float* logits, int stride, int tile) {
  __shared__ TileMasks masks;
  __shared__ int counted;
  masks.clear(a.experts);
  if (threadIdx.x == 0) counted = 0;
  __syncthreads();
  const int first = tile * a.tile_rows;
  const int rows = min(a.tile_rows, a.rows - first);
  for (int r = static_cast<int>(threadIdx.x / 32); r < rows; r += kWarps) {
    if (row_counts(a, first + r)) {
      choose_row(a, logits + static_cast<std::size_t>(r) * stride, first + r, r, masks);
      if (threadIdx.x % 32 == 0) atomicAdd(&counted, 1);
    } else {
      choose_nobody(a, first + r);
    }
  }
  __syncthreads();  // orders the block's own choices in global memory too
  for (int i = threadIdx.x; i < rows * a.top_k; i += kThreads) {
    std::uint32_t& choice = a.to.choices[first * a.top_k + i];
    const std::uint32_t expert = choice;
    if (expert != Routing::kNobody) {
      choice = expert | static_cast<std::uint32_t>(masks.rank(i / a.top_k, static_cast<int>(expert))) << 16;
    }
  }
  std::int32_t* counts = a.to.counts + static_cast<std::size_t>(tile) * (a.experts + 1);
  for (int e = threadIdx.x; e <= a.experts; e += kThreads)
    counts[e] = e < a.experts ? masks.count(e) : counted;
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
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int tile = static_cast<int>(blockIdx.x);
  choose_tile(a, a.to.logits + static_cast<std::size_t>(tile) * a.tile_rows * a.stride, a.stride, tile);
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

/// Rows [first, first + rows), and the offsets with those that begin at 0; earlier(row, expert) are the rows
/// of earlier tiles that the expert has.
template <class Earlier>
__device__ void place_rows(const Arguments& a, const Columns& columns, int first, int rows,
                           Earlier&& earlier) {
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
    const int at = first * a.top_k + i;
    const std::uint32_t choice = __ldcg(a.to.choices + at);
    const float weight = __ldcg(a.to.weights + at);
    int place = -1;
    if (choice != Routing::kNobody) {
      const int e = static_cast<int>(choice & 0xffffu);
      const int row = first + i / a.top_k;
      place = columns.first_place[e] + earlier(row, e) + static_cast<int>(choice >> 16);
      a.to.gather[place] = row;
      a.to.scale[place] = weight;
    }
    a.to.places[at] = place;
  }
  for (int i = threadIdx.x; i < rows * a.shared; i += threads) {  // padding comes last
    const int row = first + i / a.shared;
    if (row >= counted) break;
    const int place = shared_place + i % a.shared * counted + row;
    a.to.gather[place] = row;
    a.to.scale[place] = 1;
  }
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
  place_rows(a, columns, first, min(a.tile_rows, a.rows - first), [&](int, int e) { return earlier[e]; });
}

/// All tiles at once, by one block: at most kTilesPlacedAtOnce.
__device__ void place_all(const Arguments& a) {
  __shared__ Columns columns;
  __shared__ std::uint16_t earlier[kTilesPlacedAtOnce][kMostExperts + 1];
  const int width = a.experts + 1;
  for (int e = threadIdx.x; e < width; e += kThreads) {
    int sum = 0;
#pragma unroll 4
    for (int t = 0; t < a.tiles; ++t) {
      earlier[t][e] = static_cast<std::uint16_t>(sum);
      sum += __ldcg(a.to.counts + t * width + e);
    }
    columns.total[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.place(a.experts);
  __syncthreads();
  place_rows(a, columns, 0, a.rows, [&](int row, int e) { return int{earlier[row / kSmallTile][e]}; });
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

/// Block (g, t): experts [8 kNs g, 8 kNs (g + 1)) for rows [16 kMs t, 16 kMs (t + 1)). kHeld chunks of
/// weights are on their way before the kernel before this one ends.
template <int kMs, int kNs, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) tensor_route_kernel(Arguments a) {
  constexpr int kRows = 16 * kMs, kExperts = 8 * kNs;
  extern __shared__ float partial[];  // [kWarps][kRows][kExperts]
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int line = lane / 4, quarter = lane % 4;
  const int chunks = a.inputs / kChunk;
  const int begin = chunks * warp / kWarps, end = chunks * (warp + 1) / kWarps;
  const int first_expert = static_cast<int>(blockIdx.x) * kExperts;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;

  float4 held[kHeld][kNs][2];
  const auto fetch = [&](int chunk, float4(&to)[kNs][2]) {
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
#pragma unroll
  for (int h = 0; h < kHeld; ++h) fetch(begin + h, held[h]);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();

  float sums[kMs][kNs][4] = {};
  for (int base = begin; base < end; base += kHeld) {
    uint4 x[kHeld][kMs][2];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
#pragma unroll
      for (int m = 0; m < 2 * kMs; ++m) {
        const int row = first_row + 8 * m + line;
        const bool there = row < a.rows && base + h < end;
        x[h][m / 2][m % 2] = there
                                 ? *reinterpret_cast<const uint4*>(static_cast<const Bf16*>(a.x) +
                                                                   static_cast<std::size_t>(row) * a.inputs +
                                                                   (base + h) * kChunk + quarter * 8)
                                 : uint4{};
      }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
#pragma unroll
      for (int n = 0; n < kNs; ++n) {
        const float4 low = held[h][n][0], high = held[h][n][1];
        std::uint32_t w[4][3];
        take_apart(low.x, low.y, w[0]);
        take_apart(low.z, low.w, w[1]);
        take_apart(high.x, high.y, w[2]);
        take_apart(high.z, high.w, w[3]);
#pragma unroll
        for (int part = 2; part >= 0; --part) {
#pragma unroll
          for (int m = 0; m < kMs; ++m) {
            const uint4 up = x[h][m][0], down = x[h][m][1];
            multiply(sums[m][n], up.x, down.x, up.y, down.y, w[0][part], w[1][part]);
            multiply(sums[m][n], up.z, down.z, up.w, down.w, w[2][part], w[3][part]);
          }
        }
      }
      if (base + kHeld < end) fetch(base + kHeld + h, held[h]);
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
  for (int i = threadIdx.x; i < kRows * kExperts; i += kThreads) {
    const int row = first_row + i / kExperts, expert = first_expert + i % kExperts;
    if (row >= a.rows || expert >= a.experts) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w * kRows * kExperts + i];
    a.to.logits[static_cast<std::size_t>(row) * a.stride + expert] = sum;
  }

  const int tile = static_cast<int>(blockIdx.y);
  __syncthreads();
  if (!last_to_arrive(a.arrived + 1 + tile, static_cast<int>(gridDim.x))) return;
  choose_tile(a, a.to.logits + static_cast<std::size_t>(first_row) * a.stride, a.stride, tile);
  if (a.tile_rows != kSmallTile || a.tiles > kTilesPlacedAtOnce) return;
  __syncthreads();
  if (last_to_arrive(a.arrived, a.tiles)) place_all(a);
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

template <int kMs, int kNs, int kHeld>
void launch_tensor_route(Cuda& device, Arguments a) {
  constexpr std::size_t kBytes = sizeof(float) * kWarps * 16 * kMs * 8 * kNs;
  a.tile_rows = 16 * kMs;
  a.tiles = (a.rows + a.tile_rows - 1) / a.tile_rows;
  troupe::cuda::allow_shared(tensor_route_kernel<kMs, kNs, kHeld>, kBytes);
  troupe::cuda::launch(device, tensor_route_kernel<kMs, kNs, kHeld>,
                       {.grid = dim3(unsigned((a.experts + 8 * kNs - 1) / (8 * kNs)), unsigned(a.tiles)),
                        .block = kThreads,
                        .shared_bytes = kBytes},
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
    return small ? launch_tensor_route<1, 1, 10>(device, a) : launch_tensor_route<4, 4, 1>(device, a);
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
