#include "kernels/cuda/launch.cuh"
#include "kernels/join_rows.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;

/// Sizes in units.
struct JoinSizes {
  std::size_t units;  ///< of the output
  int width;          ///< of an output row
  int part;           ///< of an input row without its padding
  int pitch;          ///< with it
  int parts, step, stride;
};

// A thread copies a unit: 16 bytes, or an element where rows end in the middle of those.
template <class Unit>
__global__ void __launch_bounds__(kThreads) join_rows_kernel(Unit* out, const Unit* x, JoinSizes a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t at = std::size_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.units) return;
  const std::size_t row = at / a.width;
  const int column = static_cast<int>(at % a.width), p = column / a.part;
  Unit value{};
  if (p < a.parts) value = x[(row * a.step + std::size_t(p) * a.stride) * a.pitch + (column - p * a.part)];
  out[at] = value;
}

template <class Unit>
void launch_join(Cuda& device, const JoinRows& op) {
  const int of_unit = static_cast<int>(sizeof(Unit) / size_of(op.dtype));
  const JoinSizes sizes{.units = std::size_t(op.rows) * std::size_t(padded(op.parts * op.cols) / of_unit),
                        .width = padded(op.parts * op.cols) / of_unit,
                        .part = op.cols / of_unit,
                        .pitch = padded(op.cols) / of_unit,
                        .parts = op.parts,
                        .step = op.step,
                        .stride = op.stride};
  troupe::cuda::launch(device, join_rows_kernel<Unit>,
                       {.grid = unsigned((sizes.units + kThreads - 1) / kThreads), .block = kThreads},
                       static_cast<Unit*>(op.out), static_cast<const Unit*>(op.x), sizes);
}

}  // namespace

void run(Cuda& device, const JoinRows& op) {
  if (std::size_t(op.cols) * size_of(op.dtype) % sizeof(uint4) == 0) return launch_join<uint4>(device, op);
  size_of(op.dtype) == 2 ? launch_join<std::uint16_t>(device, op) : launch_join<std::uint32_t>(device, op);
}

}  // namespace troupe::kernels
