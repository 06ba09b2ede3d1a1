#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/place_rows.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 128;

template <class Element>
__global__ void __launch_bounds__(kThreads)
    place_rows_kernel(float* out, const Element* rows, std::size_t count) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t at = std::size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count) out[at] = cuda::to_float(rows[at]);
}

}  // namespace

void run(Cuda& device, const PlaceRows& op) {
  const std::size_t count = std::size_t(op.count) * std::size_t(padded(op.cols));
  if (count == 0) return;
  cuda::with_element(op.dtype, [&](auto element) {
    using Element = decltype(element);
    troupe::cuda::launch(device, place_rows_kernel<Element>,
                         {.grid = unsigned((count + kThreads - 1) / kThreads), .block = kThreads}, op.out,
                         static_cast<const Element*>(op.rows), count);
  });
}

}  // namespace troupe::kernels
