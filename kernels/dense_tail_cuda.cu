// Few rows: four strips one behind the other, and each norm in halves between them. Else op by op.
#include "kernels/dense_tail.h"

#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/strip.h"

namespace troupe::kernels {
namespace cuda {
namespace {

/// Makes `norm` in halves: `before` leaves one, `behind` takes it.
void halve(const AddRmsNorm& norm, float* squares, Linear& before, Linear& behind) {
  before.leaves = {
      .weighted = norm.out, .squares = squares, .weight = norm.weight, .cols = norm.cols, .eps = norm.eps};
  behind.takes = before.leaves;
  behind.norm = {};
}

/// Whether it did.
bool run_all_by_strips(Cuda& device, const DenseTail& op) {
  if (!device.hopper() || device.batch_invariant() || op.mlp.rows > kStripRows) return false;
  const auto plain = [](const AddRmsNorm& norm) {
    return norm.weight != nullptr && norm.add == nullptr && norm.pick == nullptr;
  };
  const bool next = op.next.weight.data != nullptr;
  if (!plain(op.mlp.norm) || (next && !plain(op.next.norm))) return false;

  constexpr int kMost = 4;
  const int count = next ? kMost : kMost - 1;
  Linear products[kMost] = {linear_of(op.attention_out), gate_up_of(op.mlp), down_of(op.mlp)};
  auto* const squares = static_cast<float*>(
      device.scratch(static_cast<std::size_t>(kStripRows) *
                     static_cast<std::size_t>(squares_of_row(op.mlp.norm.cols)) * sizeof(float)));
  halve(op.mlp.norm, squares, products[0], products[1]);
  if (next) {
    products[3] = linear_of(op.next);
    halve(op.next.norm, squares, products[2], products[3]);
  }
  StripPlan plans[kMost];
  for (int i = 0; i < count; ++i) {
    plans[i] = strip_plan(products[i], device.multiprocessors());
    if (plans[i].height == 0) return false;
  }
  for (int i = 0; i < count; ++i) run_strips(device, products[i], plans[i]);
  return true;
}

}  // namespace
}  // namespace cuda

void run(Cuda& device, const DenseTail& op) {
  if (op.mlp.rows > 0 && !cuda::run_all_by_strips(device, op)) run_apart(device, op);
}

}  // namespace troupe::kernels
