#include "kernels/cuda/launch.cuh"
#include "kernels/rope_table.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 128;

// sinf and cosf reduce their argument exactly, however large the position.
__global__ void __launch_bounds__(kThreads)
    rope_table_kernel(float2* out, const std::int32_t* positions, const float* inverse_frequencies,
                      const std::uint8_t* axis, int axes, int rows, int half) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one (Attention::settled)
  const int at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= rows * half) return;
  const float angle =
      __fmul_rn(static_cast<float>(positions[at / half * axes + (axis != nullptr ? axis[at % half] : 0)]),
                inverse_frequencies[at % half]);
  float sine, cosine;
  sincosf(angle, &sine, &cosine);
  out[at] = make_float2(cosine, sine);
}

}  // namespace

void run(Cuda& device, const RopeTable& op) {
  const int half = op.head_dim / 2;
  const int blocks = (op.rows * half + kThreads - 1) / kThreads;
  troupe::cuda::launch(device, rope_table_kernel,
                       {.grid = unsigned(blocks), .block = kThreads, .overlap = {.holds_next = true}},
                       reinterpret_cast<float2*>(op.out), op.positions, op.inverse_frequencies, op.axis,
                       op.axes, op.rows, half);
}

}  // namespace troupe::kernels
