#include <string>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/moe/choose.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/moe/routing_choice.cuh"
#include "kernels/cuda/moe/routing_places.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace routing;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPlacingThreads = 512;
constexpr int kMostCluster = kRoutingMaxCluster;
static_assert(kSmallTile == kRoutingTileRows && kTilesPlacedAtOnce == kRoutingTilesInOneKernel);

/// Router logits for any dtype: one warp per (row, expert); lane l sums inputs 4l … 4l + 3 of every 128.
template <class Element>
__global__ void __launch_bounds__(kThreads) score_kernel(RoutingArgs a) {
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

template <bool kKinds>
__global__ void __launch_bounds__(kThreads) choose_kernel(RoutingArgs a) {
  __shared__ RoutingTile tile;
  tile.clear(a.experts);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  __syncthreads();
  const int index = static_cast<int>(blockIdx.x);
  choose_tile<1, false, kKinds>(a, a.to.logits + static_cast<std::size_t>(index) * a.tile_rows * a.stride,
                                a.stride, index, tile);
  publish_tile(a, index, tile);
}

/// Places the rows: one block per tile. Each block sums the counts of all tiles itself.
__global__ void __launch_bounds__(kPlacingThreads) place_kernel(RoutingArgs a) {
  __shared__ int partial[kPlacingThreads], partial_earlier[kPlacingThreads];
  __shared__ int earlier[kMostExperts + 1];
  __shared__ ExpertColumns columns;
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
      all = column < a.experts ? all + n : max(all, rows_through(t, a.tile_rows, n));
      before += t < tile ? n : 0;
    }
    partial[threadIdx.x] = all;
    partial_earlier[threadIdx.x] = before;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < width; e += kPlacingThreads) {
    int all = 0, before = 0;
    for (int p = 0; p < parts; ++p) {
      const int n = partial[p * width + e];
      all = e < a.experts ? all + n : max(all, n);
      before += partial_earlier[p * width + e];
    }
    columns.total[e] = all;
    earlier[e] = before;
  }
  __syncthreads();
  if (threadIdx.x < 32) columns.sum_totals(a);
  __syncthreads();
  const int first = tile * a.tile_rows;
  place_rows(a, columns, first, min(a.tile_rows, a.rows - first),
             [&](int i) { return published(a, first * a.top_k + i, [&](int e) { return earlier[e]; }); });
}

/// True in the last of `blocks` blocks to call it; what the others wrote before is then visible to loads that
/// bypass L1. The counter wraps to zero.
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

// ---- Router logits of bf16 rows on the tensor cores.
//
// An fp32 weight is the sum of three bf16 numbers (8 + 8 + 8 of its 24 bits) up to a relative error of 2^-24,
// and their products with bf16 inputs are exact in fp32. So three passes are as accurate as fp32
// multiply-adds. The fp32 weights are split in registers.
//
// Each warp of a block sums a part of the inputs; the parts depend only on the number of inputs. Within a
// part the order of additions is fixed, and the warps' sums are added in order. So a row's logits do not
// depend on the other rows.

constexpr int kChunk = 32;  // inputs per step: a lane has 8 adjacent inputs of a row, 16 bytes of bf16

/// Splits two fp32 weights into three registers of two bf16 each, the most significant part first.
__device__ __forceinline__ void split_weights(float low, float high, std::uint32_t (&parts)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const __nv_bfloat162 part = __floats2bfloat162_rn(low, high);
    parts[i] = *reinterpret_cast<const std::uint32_t*>(&part);
    low -= __uint_as_float(parts[i] << 16);
    high -= __uint_as_float(parts[i] & 0xffff0000u);
  }
}

/// Block (g, t) computes experts [8 kNs g, 8 kNs (g + 1)) for rows [16 kMs t, 16 kMs (t + 1)). The first
/// kHeld chunks of weights are loaded before the wait for the previous kernel. kCluster: the blocks of a row
/// tile are a cluster and send their logits to the shared memory of its first block, which selects the
/// experts. Otherwise logits go through global memory, and the last block to finish selects.
template <int kMs, int kNs, int kWarps, int kHeld, bool kCluster, bool kKinds>
__global__ void __launch_bounds__(32 * kWarps, kMs == 1 ? 1 : 2) tensor_route_kernel(RoutingArgs a) {
  constexpr int kRows = 16 * kMs, kExperts = 8 * kNs;
  extern __shared__ float partial[];  // [kWarps][kRows][kExperts]
  __shared__ RoutingTile tile;
  __shared__ float logits[kCluster ? kRows * kExperts * kMostCluster : 1];
  if constexpr (kCluster) ptx::cluster_arrive();
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
      split_weights(w[n][0].x, w[n][0].y, parts[0]);
      split_weights(w[n][0].z, w[n][0].w, parts[1]);
      split_weights(w[n][1].x, w[n][1].y, parts[2]);
      split_weights(w[n][1].z, w[n][1].w, parts[3]);
#pragma unroll
      for (int i = 2; i >= 0; --i) {
#pragma unroll
        for (int m = 0; m < kMs; ++m) {
          const uint4 up = v[m][0], down = v[m][1];
          ptx::mma<Bf16>(sums[m][n], up.x, down.x, up.y, down.y, parts[0][i], parts[1][i]);
          ptx::mma<Bf16>(sums[m][n], up.z, down.z, up.w, down.w, parts[2][i], parts[3][i]);
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
  if (a.norm.squares != nullptr && warp < a.rows) {
    const float factor = a.norm.factor(warp);
    if (lane == 0) tile.factor[warp] = factor;
  }
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
  if constexpr (kCluster) ptx::cluster_wait();  // all blocks of the cluster have started
  for (int i = threadIdx.x; i < kRows * kExperts; i += 32 * kWarps) {
    const int row = i / kExperts, expert = first_expert + i % kExperts;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w * kRows * kExperts + i];
    if constexpr (kCluster) {
      ptx::store_peer(ptx::peer_address(logits + row * kLocalStride + expert, 0), sum);
    } else if (first_row + row < a.rows && expert < a.experts) {
      a.to.logits[static_cast<std::size_t>(first_row + row) * a.stride + expert] = sum;
    }
  }

  const int index = static_cast<int>(blockIdx.y);
  if constexpr (kCluster) {
    ptx::cluster_arrive();
    if (blockIdx.x != 0) return;
    ptx::cluster_wait();
    choose_tile<1, true, kKinds>(a, logits, kLocalStride, index, tile);
  } else {
    __syncthreads();
    if (!last_to_arrive(a.arrived + 1 + index, static_cast<int>(gridDim.x))) return;
    choose_tile<kRows == kSmallTile ? 1 : 2, false, kKinds>(
        a, a.to.logits + static_cast<std::size_t>(first_row) * a.stride, a.stride, index, tile);
  }
  if constexpr (kRows == kSmallTile) {
    if (a.to.few) return publish_few(a, tile);
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

void launch_place(Cuda& device, const RoutingArgs& a) {
  troupe::cuda::launch(device, place_kernel,
                       {.grid = unsigned(a.tiles),
                        .block = kPlacingThreads,
                        .overlap = {.holds_next = true, .writes_settled = a.to.offsets}},
                       a);
}

template <int kMs, int kNs, int kWarps, int kHeld, bool kCluster = false>
void launch_tensor_route(Cuda& device, RoutingArgs a) {
  constexpr std::size_t kBytes = sizeof(float) * kWarps * 16 * kMs * 8 * kNs;
  const auto kernel = a.kinds == nullptr ? tensor_route_kernel<kMs, kNs, kWarps, kHeld, kCluster, false>
                                         : tensor_route_kernel<kMs, kNs, kWarps, kHeld, kCluster, true>;
  a.tile_rows = 16 * kMs;
  a.tiles = (a.rows + a.tile_rows - 1) / a.tile_rows;
  constexpr int kMostTiles = static_cast<int>(Cuda::kCounters) - 1;  // one counter per tile, and one for all
  if (a.tiles > kMostTiles) {
    throw CudaError("a step of " + std::to_string(a.rows) + " tokens; at most " +
                    std::to_string(kMostTiles * a.tile_rows) +
                    " go to experts at once here (--max-num-batched-tokens)");
  }
  troupe::cuda::allow_shared(kernel, kBytes);
  const int blocks = (a.experts + 8 * kNs - 1) / (8 * kNs);
  troupe::cuda::launch(device, kernel,
                       {.grid = dim3(unsigned(blocks), unsigned(a.tiles)),
                        .block = 32 * kWarps,
                        .shared_bytes = kBytes,
                        .cluster = kCluster ? blocks : 1,
                        .overlap = {.holds_next = true,
                                    .reads_constant = a.router,
                                    .writes_settled = a.to.few ? a.to.experts : a.to.offsets}},
                       a);
  if (a.tile_rows == kSmallTile && a.tiles <= kTilesPlacedAtOnce) return;
  launch_place(device, a);
}

void route(Cuda& device, const Moe& op, const Routing& routing, const HalvedNorm& consumed) {
  const RoutingArgs a{.x = op.x,
                      .router = static_cast<const float*>(op.router.data),
                      .bias = op.bias,
                      .slots = op.slots,
                      .chosen = op.chosen,
                      .to = routing,
                      .rows = op.rows,
                      .experts = op.experts,
                      .first = op.first,
                      .held = op.in_stacks(),
                      .shared = op.shared,
                      .top_k = op.top_k,
                      .inputs = padded(op.router.inputs),
                      .stride = padded(op.experts),
                      .arrived = device.counters(),
                      .kinds = op.kinds,
                      .kind = op.kind,
                      .norm = ConsumedNorm(consumed)};
  TROUPE_CHECK(consumed.squares == nullptr || (routing.few && op.rows <= kSmallTile));
  const DType dtype = op.down.first.activations();
  const RoutingShape shape{.dtype = dtype, .experts = op.experts, .rows = op.rows};
  switch (choose(shape, traits_of(device)).way) {
    case RoutingWay::tiles_16: return launch_tensor_route<1, 1, 16, 5>(device, a);
    case RoutingWay::clusters_16: return launch_tensor_route<1, 1, 16, 5, true>(device, a);
    case RoutingWay::tiles_32: return launch_tensor_route<2, 2, 8, 2>(device, a);
    case RoutingWay::tiles_32_wide: return launch_tensor_route<2, 4, 8, 1>(device, a);
    case RoutingWay::generic: break;
  }
  RoutingArgs plain = a;
  plain.tile_rows = kMostTileRows;
  plain.tiles = (op.rows + kMostTileRows - 1) / kMostTileRows;
  with_element(dtype, [&](auto element) {
    troupe::cuda::launch(
        device, score_kernel<decltype(element)>,
        {.grid = dim3(unsigned(op.rows), unsigned((op.experts + kWarps - 1) / kWarps)), .block = kThreads},
        plain);
  });
  troupe::cuda::launch(device, op.kinds == nullptr ? choose_kernel<false> : choose_kernel<true>,
                       {.grid = unsigned(plain.tiles), .block = kThreads}, plain);
  launch_place(device, plain);
}

}  // namespace troupe::kernels::cuda
