#include "base/check.h"
#include "kernels/cuda/attention/static_kv.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/matrix.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kRows = 8;  // of a block

template <class Element, int kNeighbours>
struct alignas(sizeof(Element) * kNeighbours > 16 ? 16 : sizeof(Element) * kNeighbours) Neighbours {
  Element of[kNeighbours];
};

/// A thread for kNeighbours columns of kRows rows; a head has whole ones.
template <class Element, int kNeighbours>
__global__ void __launch_bounds__(kThreads) scale_outputs_kernel(const Heads h, const float* channels) {
  using Few = Neighbours<Element, kNeighbours>;
  const int column = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kNeighbours;
  if (column < h.heads * h.head_dim) {
    const int channel = column / h.head_dim / (h.heads / h.kv_heads) * h.head_dim + column % h.head_dim;
    float factor[kNeighbours];
#pragma unroll
    for (int i = 0; i < kNeighbours; ++i) factor[i] = channels[channel + i] * (1 / kLargestInt8);
    troupe::cuda::wait_for_previous();
    troupe::cuda::let_next_start();
    const int first = static_cast<int>(blockIdx.x) * kRows, count = min(kRows, h.rows - first);
    const auto stride = static_cast<std::size_t>(padded(h.heads * h.head_dim));
    Element* const from =
        static_cast<Element*>(h.numbers) + static_cast<std::size_t>(first) * stride + column;
    Few rows[kRows];  // all on their way before the first is multiplied
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) rows[r] = *reinterpret_cast<const Few*>(from + static_cast<std::size_t>(r) * stride);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= count) break;
#pragma unroll
      for (int i = 0; i < kNeighbours; ++i)
        rows[r].of[i] = from_float<Element>(to_float(rows[r].of[i]) * factor[i]);
      *reinterpret_cast<Few*>(from + static_cast<std::size_t>(r) * stride) = rows[r];
    }
  } else {
    troupe::cuda::wait_for_previous();
    troupe::cuda::let_next_start();
  }
}

template <int kNeighbours>
void launch_scaling(Cuda& device, const Heads& heads, const float* channels) {
  const int threads = heads.heads * heads.head_dim / kNeighbours;
  const troupe::cuda::Shape shape{
      .grid = dim3(unsigned((heads.rows + kRows - 1) / kRows), unsigned((threads + kThreads - 1) / kThreads)),
      .block = kThreads};
  with_element(heads.dtype, [&](auto element) {
    troupe::cuda::launch(device, scale_outputs_kernel<decltype(element), kNeighbours>, shape, heads,
                         channels);
  });
}

}  // namespace

void scale_outputs(Cuda& device, const Heads& heads, const float* channels) {
  TROUPE_CHECK(heads.head_dim % 2 == 0 && heads.heads % heads.kv_heads == 0);
  heads.head_dim % 8 == 0 ? launch_scaling<8>(device, heads, channels)
                          : launch_scaling<2>(device, heads, channels);
}

}  // namespace troupe::kernels::cuda
