#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/embed.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 128;

// One block per row, four elements per thread and iteration. The table's padding is zero, so the output's is
// too.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(float* out, const TokenId* tokens, const Element* table, int stride, int first, int held) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int row = tokens[blockIdx.x] - first;
  float* to = out + static_cast<std::size_t>(blockIdx.x) * stride;
  if (row < 0 || row >= held) {
    for (int i = threadIdx.x * 4; i < stride; i += kThreads * 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(0, 0, 0, 0);
    }
    return;
  }
  const Element* from = table + static_cast<std::size_t>(row) * stride;
  for (int i = threadIdx.x * 4; i < stride; i += kThreads * 4) {
    Element four[4];
    if constexpr (sizeof(Element) == 4) {
      *reinterpret_cast<uint4*>(four) = *reinterpret_cast<const uint4*>(from + i);
    } else {
      *reinterpret_cast<uint2*>(four) = *reinterpret_cast<const uint2*>(from + i);
    }
    *reinterpret_cast<float4*>(to + i) = make_float4(cuda::to_float(four[0]), cuda::to_float(four[1]),
                                                     cuda::to_float(four[2]), cuda::to_float(four[3]));
  }
}

}  // namespace

void run(Cuda& device, const Embed& op) {
  cuda::with_element(op.table.activations(), [&](auto element) {
    using Element = decltype(element);
    troupe::cuda::launch(device, embed_kernel<Element>, {.grid = unsigned(op.rows), .block = kThreads},
                         op.out, op.tokens, static_cast<const Element*>(op.table.data),
                         padded(op.table.inputs), op.first, op.table.outputs);
  });
}

}  // namespace troupe::kernels
