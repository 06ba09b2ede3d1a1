#include "base/check.h"
#include "kernels/cuda/attention/static_kv.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/matrix.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread for each pair of neighbours.
template <class Element>
__global__ void __launch_bounds__(kThreads) scale_heads_kernel(const Heads h, const float* channels) {
  const int pairs = h.heads * h.head_dim / 2;
  const auto item = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto row = item / static_cast<std::size_t>(pairs);
  const int column = 2 * static_cast<int>(item % static_cast<std::size_t>(pairs));
  const int channel = column / h.head_dim / (h.heads / h.kv_heads) * h.head_dim + column % h.head_dim;
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  if (row >= static_cast<std::size_t>(h.rows)) return;
  Element* const at = static_cast<Element*>(h.numbers) +
                      row * static_cast<std::size_t>(padded(h.heads * h.head_dim)) + column;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    at[i] = from_float<Element>(to_float(at[i]) * (channels[channel + i] * (1 / kLargestInt8)));
}

}  // namespace

void scale_heads(Cuda& device, const Heads& heads, const float* channels) {
  TROUPE_CHECK(heads.head_dim % 2 == 0 && heads.heads % heads.kv_heads == 0);
  const std::size_t items = std::size_t(heads.rows) * std::size_t(heads.heads * heads.head_dim / 2);
  with_element(heads.dtype, [&](auto element) {
    troupe::cuda::launch(
        device, scale_heads_kernel<decltype(element)>,
        {.grid = static_cast<unsigned>((items + kThreads - 1) / kThreads), .block = kThreads}, heads,
        channels);
  });
}

}  // namespace troupe::kernels::cuda
