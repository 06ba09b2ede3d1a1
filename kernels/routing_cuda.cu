#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/routing.h"

namespace troupe::kernels::cuda {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = kRoutingTile;
constexpr int kPlacingThreads = 512;

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
  std::uint32_t word[kTile / 32][kMostExperts];

  __device__ void clear(int experts) {
    for (int e = threadIdx.x; e < experts; e += kThreads) {
#pragma unroll
      for (int w = 0; w < kTile / 32; ++w) word[w][e] = 0;
    }
  }
  __device__ void set(int row, int expert) { atomicOr(&word[row / 32][expert], 1u << row % 32); }
  __device__ int count(int expert) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kTile / 32; ++w) sum += __popc(word[w][expert]);
    return sum;
  }
  __device__ int rank(int row, int expert) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kTile / 32; ++w) {
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
    p[j] = e < a.experts ? logits[e] : -INFINITY;
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
  const int first = tile * kTile;
  const int rows = min(kTile, a.rows - first);
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
  choose_tile(a, a.to.logits + static_cast<std::size_t>(tile) * kTile * a.stride, a.stride, tile);
}

/// One block a tile. Each sums up the tiles' counts for itself.
__global__ void __launch_bounds__(kPlacingThreads) place_kernel(Arguments a, int tiles) {
  __shared__ int partial[kPlacingThreads], earlier[kPlacingThreads];
  __shared__ int first_place[kMostExperts + 1], earlier_rows[kMostExperts + 1], total[kMostExperts + 1];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int tile = static_cast<int>(blockIdx.x);
  const int columns = a.experts + 1;
  const int parts = kPlacingThreads / columns;
  const int part = static_cast<int>(threadIdx.x) / columns, column = static_cast<int>(threadIdx.x) % columns;
  if (part < parts) {
    int all = 0, before = 0;
#pragma unroll 8
    for (int t = part; t < tiles; t += parts) {
      const int n = a.to.counts[static_cast<std::size_t>(t) * columns + column];
      all += n;
      before += t < tile ? n : 0;
    }
    partial[threadIdx.x] = all;
    earlier[threadIdx.x] = before;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < columns; e += kPlacingThreads) {
    int all = 0, before = 0;
    for (int p = 0; p < parts; ++p) {
      all += partial[p * columns + e];
      before += earlier[p * columns + e];
    }
    total[e] = all;
    earlier_rows[e] = before;
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // exclusive sums over the experts
    int carry = 0;
    for (int first = 0; first < columns; first += 32) {
      const int e = first + static_cast<int>(threadIdx.x);
      const int own = e < a.experts ? total[e] : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sum, distance);
        if (static_cast<int>(threadIdx.x) >= distance) sum += other;
      }
      if (e < columns) first_place[e] = carry + sum - own;
      carry += __shfl_sync(kWholeWarp, sum, 31);
    }
  }
  __syncthreads();
  const int counted = total[a.experts];
  const int shared_place = first_place[a.experts];
  if (tile == 0) {
    for (int g = threadIdx.x; g <= a.experts + a.shared; g += kPlacingThreads) {
      a.to.offsets[g] = g < a.experts ? first_place[g] : shared_place + (g - a.experts) * counted;
    }
  }
  const int first = tile * kTile;
  const int rows = min(kTile, a.rows - first);
  for (int i = threadIdx.x; i < rows * a.top_k; i += kPlacingThreads) {
    const int at = first * a.top_k + i;
    const std::uint32_t choice = a.to.choices[at];
    int place = -1;
    if (choice != Routing::kNobody) {
      const int e = static_cast<int>(choice & 0xffffu);
      place = first_place[e] + earlier_rows[e] + static_cast<int>(choice >> 16);
      a.to.gather[place] = first + i / a.top_k;
      a.to.scale[place] = a.to.weights[at];
    }
    a.to.places[at] = place;
  }
  for (int i = threadIdx.x; i < rows * a.shared; i += kPlacingThreads) {  // padding comes last
    const int row = first + i / a.shared;
    if (row >= counted) break;
    const int place = shared_place + i % a.shared * counted + row;
    a.to.gather[place] = row;
    a.to.scale[place] = 1;
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
  take(routing.counts, (rows + kTile - 1) / kTile * static_cast<std::size_t>(op.experts + 1));
  return bytes;
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
                    .stride = padded(op.experts)};
  const int tiles = (op.rows + kTile - 1) / kTile;
  with_element(op.down.first.dtype, [&](auto element) {
    troupe::cuda::launch(
        device, score_kernel<decltype(element)>,
        {.grid = dim3(unsigned(op.rows), unsigned((op.experts + kWarps - 1) / kWarps)), .block = kThreads},
        a);
  });
  troupe::cuda::launch(device, choose_kernel, {.grid = unsigned(tiles), .block = kThreads}, a);
  troupe::cuda::launch(device, place_kernel, {.grid = unsigned(tiles), .block = kPlacingThreads}, a, tiles);
}

}  // namespace troupe::kernels::cuda
