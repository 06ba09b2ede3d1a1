#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/normalise_patches.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPlane = kPatchBytes / 3;
constexpr int kFours = padded(kPatchBytes) / 4;  // of a row of the output
static_assert(kPatchBytes % 4 == 0 && kPlane % 4 == 0);

// A thread makes four neighbouring numbers, which are of one colour.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    normalise_patches_kernel(Element* out, const std::uint8_t* patches, const float* table, int rows) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t at = std::size_t(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t row = at / kFours;
  if (row >= std::size_t(rows)) return;
  const int column = static_cast<int>(at % kFours) * 4;
  Element* to = out + row * padded(kPatchBytes) + column;
  if (column >= kPatchBytes) return cuda::store_four<Element>(to, 0, 0, 0, 0);
  const uchar4 four = *reinterpret_cast<const uchar4*>(patches + row * kPatchBytes + column);
  const float* colour = table + column / kPlane * 256;
  cuda::store_four(to, colour[four.x], colour[four.y], colour[four.z], colour[four.w]);
}

}  // namespace

void run(Cuda& device, const NormalisePatches& op) {
  const std::size_t threads = std::size_t(op.rows) * kFours;
  cuda::with_element(op.dtype, [&](auto element) {
    using Element = decltype(element);
    troupe::cuda::launch(device, normalise_patches_kernel<Element>,
                         {.grid = unsigned((threads + kThreads - 1) / kThreads), .block = kThreads},
                         static_cast<Element*>(op.out), op.patches, op.table, op.rows);
  });
}

}  // namespace troupe::kernels
