// A dense layer's tail: four strips with the norms between them in halves where the chooser says so, else op
// by op.
#include "kernels/dense_tail.h"

#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/scratch.h"

namespace troupe::kernels {
namespace cuda {
namespace {

/// Splits `norm` between two products: `before` produces one half, `after` consumes it.
void halve(const AddRmsNorm& norm, float* squares, Linear& before, Linear& after) {
  before.produced_norm = after.consumed_norm = halves_of(norm, squares);
  after.norm = {};
}

void run_halved(Cuda& device, const DenseTail& op, const DenseTailChoice& choice) {
  Linear products[4] = {linear_of(op.attention_out), gate_up_of(op.mlp), down_of(op.mlp)};
  auto* const squares = static_cast<float*>(device.scratch(scratch_bytes(op, traits_of(device))));
  halve(op.mlp.norm, squares, products[0], products[1]);
  if (choice.count == 4) {
    products[3] = linear_of(op.next);
    halve(op.next.norm, squares, products[2], products[3]);
  }
  for (int i = 0; i < choice.count; ++i)
    run(device, products[i], choice.products[static_cast<std::size_t>(i)]);
  if (choice.count == 4) quantise_kv(device, op.next);
}

}  // namespace
}  // namespace cuda

void run(Cuda& device, const DenseTail& op) {
  if (op.mlp.rows == 0) return;
  const cuda::DenseTailChoice choice = cuda::choose(op, cuda::traits_of(device));
  choice.halved_norms ? cuda::run_halved(device, op, choice) : run_apart(device, op);
}

}  // namespace troupe::kernels
