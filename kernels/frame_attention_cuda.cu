// Attention within a frame: packed for the tensor cores (cuda/attention/frame.cuh, frame_mma.cuh) where those
// take it, else plainly, a warp for each query and head.
#include <numbers>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/frame.cuh"
#include "kernels/cuda/attention/frame_mma.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/frame_attention.h"

namespace troupe::kernels {
namespace {

using cuda::kFrameDim;
using cuda::kFrameTile;

constexpr int kThreads = 256;
constexpr int kPlainThreads = 128;
constexpr int kPlainQueries = kPlainThreads / 32;  // of a block
constexpr int kMostDims = kMostHeadDim / 32;       // of a lane

struct QkvArgs {
  const void* qkv;
  const float* rope;
  int rows, heads, head_dim;
  int stride;  ///< elements of a row of qkv
};

struct PackArgs {
  QkvArgs from;
  std::byte* to;
  int first_tile, tiles;
  std::size_t units;
};

/// Eight neighbouring dimensions of the first half of a head, and those of the second half that turn with
/// them.
constexpr int kUnitDims = 8, kUnitsOfHead = kFrameDim / 2 / kUnitDims;

template <class T>
struct alignas(16) EightDims {
  T value[kUnitDims];
};

/// A thread packs a unit, rotated if it is of queries or keys; zeros behind the last row.
template <class T>
__global__ void __launch_bounds__(kThreads) pack_kernel(PackArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t at = std::size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.units) return;
  const int unit = static_cast<int>(at % kUnitsOfHead);
  const std::size_t head_of_row = at / kUnitsOfHead;
  const int heads = 3 * a.from.heads, head_of_three = static_cast<int>(head_of_row % heads);
  const int row = static_cast<int>(head_of_row / heads);
  const int part = head_of_three / a.from.heads, head = head_of_three % a.from.heads;
  EightDims<T> first, second;
  if (row < a.from.rows) {
    const T* from = static_cast<const T*>(a.from.qkv) + std::size_t(row) * a.from.stride +
                    head_of_three * kFrameDim + unit * kUnitDims;
    first = *reinterpret_cast<const EightDims<T>*>(from);
    second = *reinterpret_cast<const EightDims<T>*>(from + kFrameDim / 2);
    if (part < 2) {
      const float2* turn =
          reinterpret_cast<const float2*>(a.from.rope + std::size_t(row) * kFrameDim) + unit * kUnitDims;
#pragma unroll
      for (int i = 0; i < kUnitDims; ++i) {
        const float x = cuda::to_float(first.value[i]), y = cuda::to_float(second.value[i]);
        const float2 t = turn[i];
        first.value[i] = cuda::from_float<T>(x * t.x - y * t.y);
        second.value[i] = cuda::from_float<T>(y * t.x + x * t.y);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnitDims; ++i) first.value[i] = second.value[i] = cuda::from_float<T>(0.0f);
  }
  std::byte* tile =
      a.to + cuda::frame_tile_at(part, head, a.first_tile + row / kFrameTile, a.from.heads, a.tiles);
  const int in_tile = row % kFrameTile;
  *reinterpret_cast<EightDims<T>*>(tile + cuda::frame_chunk_at(in_tile, unit)) = first;
  *reinterpret_cast<EightDims<T>*>(tile + cuda::frame_chunk_at(in_tile, unit + kUnitsOfHead)) = second;
}

struct RotateArgs {
  QkvArgs from;
  void* to;   ///< may be from.qkv
  int parts;  ///< 2: queries and keys; 3: values are copied, too
};

/// A thread rotates a pair, or copies one of the values'.
template <class T>
__global__ void __launch_bounds__(kThreads) rotate_kernel(RotateArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int half = a.from.head_dim / 2;
  const std::size_t at = std::size_t(blockIdx.x) * kThreads + threadIdx.x;
  const int pairs = a.parts * a.from.heads * half;  // of a row
  const std::size_t row = at / pairs;
  if (row >= std::size_t(a.from.rows)) return;
  const int pair = static_cast<int>(at % pairs), i = pair % half;
  const std::size_t first = row * a.from.stride + pair / half * a.from.head_dim + i;
  const T* from = static_cast<const T*>(a.from.qkv) + first;
  T* to = static_cast<T*>(a.to) + first;
  if (pair >= 2 * a.from.heads * half) {
    to[0] = from[0];
    to[half] = from[half];
    return;
  }
  const float x = cuda::to_float(from[0]), y = cuda::to_float(from[half]);
  const float* turn = a.from.rope + row * a.from.head_dim + 2 * i;
  to[0] = cuda::from_float<T>(x * turn[0] - y * turn[1]);
  to[half] = cuda::from_float<T>(y * turn[0] + x * turn[1]);
}

struct PlainArgs {
  const void* qkv;
  void* out;
  int rows, heads, head_dim;
  int stride, out_stride;  ///< elements of a row
  int first, queries;
  float scale;
};

/// A warp for each query and head. 32 keys at a time: a lane has the score of one of them, and then the
/// dimensions lane, lane + 32, … of the output.
template <class T>
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(PlainArgs a) {
  __shared__ float queries[kPlainQueries][kMostHeadDim];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int query = static_cast<int>(blockIdx.x) * kPlainQueries + warp;
  if (query >= a.queries) return;  // a whole warp, and no barrier of the block follows
  const int head = static_cast<int>(blockIdx.y), dim = a.head_dim, width = a.heads * dim;
  const auto stride = std::size_t(a.stride);
  const T* rows = static_cast<const T*>(a.qkv) + head * dim;
  for (int d = lane; d < dim; d += 32)
    queries[warp][d] = cuda::to_float(rows[(a.first + query) * stride + d]);
  __syncwarp();
  float most = -INFINITY, sum = 0, out[kMostDims] = {};
  for (int first = 0; first < a.rows; first += 32) {
    const int key = first + lane;
    float score = -INFINITY;
    if (key < a.rows) {
      const T* k = rows + key * stride + width;
      float dot = 0;
      for (int d = 0; d < dim; ++d) dot = fmaf(queries[warp][d], cuda::to_float(k[d]), dot);
      score = dot * a.scale;
    }
    float largest = score;
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float m = fmaxf(most, largest), factor = expf(most - m), p = expf(score - m);
    most = m;
    sum = sum * factor + p;
#pragma unroll
    for (int i = 0; i < kMostDims; ++i) out[i] *= factor;
    const int count = min(32, a.rows - first);
    for (int j = 0; j < count; ++j) {
      const float weight = __shfl_sync(~0u, p, j);
      const T* v = rows + (first + j) * stride + 2 * width;
#pragma unroll
      for (int i = 0; i < kMostDims; ++i) {
        const int d = lane + 32 * i;
        if (d < dim) out[i] = fmaf(weight, cuda::to_float(v[d]), out[i]);
      }
    }
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  T* to = static_cast<T*>(a.out) + std::size_t(query) * a.out_stride + head * dim;
#pragma unroll
  for (int i = 0; i < kMostDims; ++i) {
    const int d = lane + 32 * i;
    if (d < dim) to[d] = cuda::from_float<T>(out[i] / sum);
  }
}

template <class T>
void pack_tiles(Cuda& device, const PackFrame& op, const QkvArgs& from) {
  const PackArgs pack{
      .from = from,
      .to = static_cast<std::byte*>(op.packed),
      .first_tile = op.first / kFrameTile,
      .tiles = cuda::frame_tiles(op.rows),
      .units = std::size_t(cuda::frame_tiles(op.count)) * kFrameTile * 3 * op.heads * kUnitsOfHead};
  troupe::cuda::launch(device, pack_kernel<T>,
                       {.grid = unsigned((pack.units + kThreads - 1) / kThreads), .block = kThreads}, pack);
}

template <class T>
void rotate(Cuda& device, const PackFrame& op, const QkvArgs& from) {
  T* const to = static_cast<T*>(op.packed) + std::size_t(op.first) * from.stride;
  const RotateArgs arguments{.from = from, .to = to, .parts = to == op.qkv ? 2 : 3};
  const std::size_t pairs = std::size_t(op.count) * arguments.parts * op.heads * (op.head_dim / 2);
  troupe::cuda::launch(device, rotate_kernel<T>,
                       {.grid = unsigned((pairs + kThreads - 1) / kThreads), .block = kThreads}, arguments);
}

template <class T>
void run_tiles(Cuda& device, const FrameAttention& op) {
  const cuda::FrameArgs arguments{.packed = static_cast<const std::byte*>(op.packed),
                                  .out = op.out,
                                  .stride = padded(op.heads * op.head_dim),
                                  .rows = op.rows,
                                  .heads = op.heads,
                                  .tiles = cuda::frame_tiles(op.rows),
                                  .first_tile = op.first / kFrameTile,
                                  .queries = op.count,
                                  .scale_log2 = op.scale * std::numbers::log2e_v<float>};
  const auto launch = [&](auto kernel, int threads, std::size_t shared_bytes) {
    troupe::cuda::allow_shared(kernel, shared_bytes);
    troupe::cuda::launch(device, kernel,
                         {.grid = dim3(unsigned(cuda::frame_tiles(op.count)), unsigned(op.heads)),
                          .block = unsigned(threads),
                          .shared_bytes = shared_bytes},
                         arguments);
  };
  static_assert(sizeof(cuda::FrameShared) <= 227 * 1024);
  if (cuda::choose(op, cuda::traits_of(device)) == cuda::FrameWay::wgmma)
    launch(cuda::frame_kernel<T>, cuda::kFrameThreads, sizeof(cuda::FrameShared));
  else
    launch(cuda::frame_mma_kernel<T>, cuda::kFrameMmaThreads, cuda::kFrameMmaBytes);
}

template <class T>
void run_plain(Cuda& device, const FrameAttention& op) {
  troupe::cuda::launch(
      device, plain_kernel<T>,
      {.grid = dim3(unsigned((op.count + kPlainQueries - 1) / kPlainQueries), unsigned(op.heads)),
       .block = kPlainThreads},
      PlainArgs{.qkv = op.packed,
                .out = op.out,
                .rows = op.rows,
                .heads = op.heads,
                .head_dim = op.head_dim,
                .stride = padded(3 * op.heads * op.head_dim),
                .out_stride = padded(op.heads * op.head_dim),
                .first = op.first,
                .queries = op.count,
                .scale = op.scale});
}

/// Calls `tiled` or `plain` with a number of the op's type.
template <class Tiled, class Plain>
void choose(Cuda& device, const FrameAttention& op, Tiled&& tiled, Plain&& plain) {
  const bool packed = cuda::frame_is_packed(op, cuda::traits_of(device));
  cuda::with_element(op.dtype, [&](auto element) {
    if constexpr (sizeof(element) == 2) {
      if (packed) return tiled(element);
    }
    plain(element);
  });
}

}  // namespace

std::size_t packed_bytes(const Cuda& device, const FrameAttention& op) {
  return cuda::packed_bytes(op, cuda::traits_of(device));
}

bool packs_in_place(const Cuda& device, const FrameAttention& op) {
  return !cuda::frame_is_packed(op, cuda::traits_of(device));
}

MemoryLines keys_and_values(const Cuda& device, const FrameAttention& op, int first, int count) {
  return cuda::keys_and_values(op, first, count, cuda::traits_of(device));
}

void run(Cuda& device, const PackFrame& op) {
  TROUPE_CHECK(op.head_dim % 2 == 0 && op.first % kFrameQueries == 0 && op.first + op.count <= op.rows);
  if (op.count <= 0) return;
  const QkvArgs from{.qkv = op.qkv,
                     .rope = op.rope,
                     .rows = op.count,
                     .heads = op.heads,
                     .head_dim = op.head_dim,
                     .stride = padded(3 * op.heads * op.head_dim)};
  choose(
      device, {.dtype = op.dtype, .head_dim = op.head_dim},
      [&](auto element) { pack_tiles<decltype(element)>(device, op, from); },
      [&](auto element) { rotate<decltype(element)>(device, op, from); });
}

void run(Cuda& device, const FrameAttention& op) {
  TROUPE_CHECK(op.head_dim % 2 == 0 && op.head_dim <= kMostHeadDim && op.scale > 0);
  TROUPE_CHECK(op.first % kFrameQueries == 0 && op.first + op.count <= op.rows);
  if (op.count <= 0) return;
  choose(
      device, op, [&](auto element) { run_tiles<decltype(element)>(device, op); },
      [&](auto element) { run_plain<decltype(element)>(device, op); });
}

}  // namespace troupe::kernels
