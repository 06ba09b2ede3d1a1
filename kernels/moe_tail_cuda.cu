// The tail of a layer with experts: of a few rows with the norms between its products in halves, where the
// chooser says so, else op by op.
#include "kernels/moe_tail.h"

#include "kernels/cuda/moe/few_launch.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/scratch.h"

namespace troupe::kernels {
namespace cuda {
namespace {

void run_halved(Cuda& device, const MoeTail& op, const MoeTailChoice& choice) {
  const GpuTraits gpu = traits_of(device);
  auto* const memory = static_cast<std::byte*>(device.scratch(scratch_bytes(op, gpu)));
  const MoeLayout layout = lay_out(op.moe, gpu, memory);
  auto* const squares = reinterpret_cast<float*>(memory + layout.bytes);
  const HalvedNorm before = halves_of(op.moe.norm, squares, kSquaresPerSmallSum);
  const HalvedNorm after =
      choice.next_halved
          ? halves_of(op.next.norm,
                      squares + op.moe.rows * sums_of_squares(op.moe.norm.cols, kSquaresPerSmallSum))
          : HalvedNorm{};
  Linear attention_out = linear_of(op.attention_out);
  attention_out.produced_norm = before;
  run(device, attention_out, choice.attention_out);
  route(device, op.moe, layout.routing, before);
  run_few(device, op.moe, layout, before, after);
  if (!choice.next_halved) {
    if (op.next.weight.data != nullptr) run(device, op.next);
    return;
  }
  Linear next = linear_of(op.next);
  next.norm = {};
  next.consumed_norm = after;
  run(device, next, choice.next);
  quantise_kv(device, op.next);
}

}  // namespace
}  // namespace cuda

void run(Cuda& device, const MoeTail& op) {
  if (op.moe.rows == 0) return;
  const cuda::MoeTailChoice choice = cuda::choose(op, cuda::traits_of(device));
  choice.halved ? cuda::run_halved(device, op, choice) : run_apart(device, op);
}

}  // namespace troupe::kernels
