#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/draft_rows.h"

namespace troupe::kernels {
namespace {

using cuda::kNormThreads;
using cuda::kNormTogether;
using cuda::load_four;

constexpr int kHeld = 3;  // times four columns of a thread in registers; those behind are read twice
constexpr int kThreads = 128;

struct JoinArgs {
  void* out;
  float* residual;
  const void* hidden;
  const void* kept;
  const std::int32_t* from;
  const float* norms[2];  // of the embedding, of the hidden row
  int cols, stride, out_stride;
  float eps;
};

template <class Element>
__device__ __forceinline__ float4 four_of(const Element* from) {
  if constexpr (sizeof(Element) == 4) return load_four(from);
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  const auto* four = reinterpret_cast<const Element*>(&bits);
  return make_float4(cuda::to_float(four[0]), cuda::to_float(four[1]), cuda::to_float(four[2]),
                     cuda::to_float(four[3]));
}

/// One block makes a half of a row: blockIdx.y 0 that of the embedding, 1 that of the hidden row. A thread
/// has the columns that it has in AddRmsNorm, so the sums are the same.
template <class Element>
__global__ void __launch_bounds__(kNormThreads) join_norms_kernel(const JoinArgs a) {
  const int first = int(threadIdx.x) * 4;
  const bool of_hidden = blockIdx.y != 0;
  const float* const weights = of_hidden ? a.norms[1] : a.norms[0];
  float4 weight[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kNormTogether;
    if (i < a.stride) weight[k] = load_four(weights + i);  // constant while the step runs
  }
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t row = blockIdx.x;
  float* const embedding = a.residual + row * a.stride;
  const Element* hidden = nullptr;
  if (of_hidden) {
    const int from = a.from[row];
    hidden = static_cast<const Element*>(from < 0 ? a.kept : a.hidden) +
             std::size_t(from < 0 ? -1 - from : from) * a.stride;
  }
  const auto value = [&](int i) { return of_hidden ? four_of(hidden + i) : load_four(embedding + i); };
  float4 held[kHeld];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kNormTogether;
    if (i < a.stride) squares += cuda::squares_of(held[k] = value(i));
  }
  for (int i = first + kHeld * kNormTogether; i < a.stride; i += kNormTogether)
    squares += cuda::squares_of(value(i));
  const float factor = cuda::norm_factor(squares, a.cols, a.eps);

  Element* const out_row = static_cast<Element*>(a.out) + row * a.out_stride;
  Element* const out = out_row + (of_hidden ? a.cols : 0);
  const bool whole = a.cols % 4 == 0;  // else the halves' fours are not aligned
  const auto finish = [&](int i, float4 v, float4 w) {
    if (!of_hidden) *reinterpret_cast<float4*>(embedding + i) = float4{};
    const float4 y = cuda::normed<Element>(v, factor, w);
    if (whole) {
      if (i < a.cols) cuda::store_four(out + i, y.x, y.y, y.z, y.w);
      return;
    }
    const float four[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < a.cols) out[i + j] = cuda::from_float<Element>(four[j]);
    }
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int i = first + k * kNormTogether;
    if (i < a.stride) finish(i, held[k], weight[k]);
  }
  for (int i = first + kHeld * kNormTogether; i < a.stride; i += kNormTogether)
    finish(i, value(i), load_four(weights + i));
  if (!of_hidden) return;
  for (int i = 2 * a.cols + int(threadIdx.x); i < a.out_stride; i += kNormThreads)
    out_row[i] = cuda::from_float<Element>(0);
}

struct RoundArgs {
  void* out;
  const float* rows;
  const std::int32_t* pick;
  int stride;
};

/// A block rounds one row.
template <class Element>
__global__ void __launch_bounds__(kThreads) round_rows_kernel(const RoundArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t row = blockIdx.x, from = a.pick != nullptr ? std::size_t(a.pick[row]) : row;
  for (int i = int(threadIdx.x) * 4; i < a.stride; i += kThreads * 4) {
    const float4 v = load_four(a.rows + from * a.stride + i);
    cuda::store_four(static_cast<Element*>(a.out) + row * a.stride + i, v.x, v.y, v.z, v.w);
  }
}

/// A block copies one row.
__global__ void __launch_bounds__(kThreads) copy_rows_kernel(const CopyRows op) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int to = op.to != nullptr ? op.to[blockIdx.x] : int(blockIdx.x);
  if (to < 0) return;
  const int from = op.from != nullptr ? op.from[blockIdx.x] : int(blockIdx.x);
  auto* const out =
      reinterpret_cast<uint4*>(static_cast<std::byte*>(op.out) + std::size_t(to) * op.out_stride);
  const auto* const row = reinterpret_cast<const uint4*>(static_cast<const std::byte*>(op.rows) +
                                                         std::size_t(from) * op.row_stride);
  for (unsigned i = threadIdx.x; i < op.row_bytes / sizeof(uint4); i += kThreads) out[i] = row[i];
}

}  // namespace

void run(Cuda& device, const DraftInput& op) {
  const JoinArgs arguments{.out = op.out,
                           .residual = op.residual,
                           .hidden = op.hidden,
                           .kept = op.kept,
                           .from = op.from,
                           .norms = {op.embedding_norm, op.hidden_norm},
                           .cols = op.cols,
                           .stride = padded(op.cols),
                           .out_stride = padded(2 * op.cols),
                           .eps = op.eps};
  const troupe::cuda::Shape shape{.grid = dim3(unsigned(op.rows), 2),
                                  .block = kNormThreads,
                                  .overlap = {.reads_constant = op.embedding_norm}};
  cuda::with_element(op.dtype, [&](auto element) {
    troupe::cuda::launch(device, join_norms_kernel<decltype(element)>, shape, arguments);
  });
}

void run(Cuda& device, const RoundRows& op) {
  const RoundArgs arguments{op.out, op.rows, op.pick, padded(op.cols)};
  cuda::with_element(op.dtype, [&](auto element) {
    troupe::cuda::launch(device, round_rows_kernel<decltype(element)>,
                         {.grid = unsigned(op.count), .block = kThreads}, arguments);
  });
}

void run(Cuda& device, const CopyRows& op) {
  const auto address = [](const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); };
  TROUPE_CHECK((address(op.out) | address(op.rows) | op.out_stride | op.row_stride | op.row_bytes) %
                   sizeof(uint4) ==
               0);
  troupe::cuda::launch(device, copy_rows_kernel, {.grid = unsigned(op.count), .block = kThreads}, op);
}

}  // namespace troupe::kernels
