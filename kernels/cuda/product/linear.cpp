// Products of the ops as Linear, and their working memory: plain C++, the same with and without a GPU.
#include "kernels/cuda/product/linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/product/expanded.h"
#include "kernels/cuda/scratch.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {
namespace {

/// True for a norm that two products can halve: it neither adds to the stream first nor picks rows.
bool is_plain(const AddRmsNorm& norm) {
  return norm.weight != nullptr && norm.add == nullptr && norm.pick == nullptr;
}

}  // namespace

Linear linear_of(const LinearAdd& op) {
  return {.weight = op.weight, .x = op.x, .rows = op.rows, .ending = Ending::add, .out = op.residual};
}

Linear linear_of(const LmHead& op) {
  return {.weight = op.weight, .x = op.x, .rows = op.rows, .ending = Ending::store_f32, .out = op.logits};
}

Linear gate_up_of(const Mlp& op) {
  return {.weight = op.gate_up,
          .x = op.x,
          .rows = op.rows,
          .norm = op.norm,
          .ending = Ending::swiglu,
          .out = op.activation};
}

Linear down_of(const Mlp& op) {
  return {.weight = op.down, .x = op.activation, .rows = op.rows, .ending = Ending::add, .out = op.residual};
}

Linear linear_of(const QkvRopeKvWrite& op) {
  TROUPE_CHECK(op.kv.dtype == op.weight.activations() && op.kv.head_dim % 2 == 0);
  TROUPE_CHECK(op.weight.outputs == (op.heads + 2 * op.kv.kv_heads) * op.kv.head_dim);
  const bool plain = !op.kv.quantised();
  return {.weight = op.weight,
          .x = op.x,
          .rows = op.batch.rows,
          .norm = op.norm,
          .ending = Ending::qkv,
          .q = op.q,
          .rope = op.rope,
          .kv = plain ? op.kv : op.kv.unquantised(op.unquantised),
          .layer = plain ? op.layer : 0,
          .heads = op.heads,
          .slots = plain ? op.batch.slots : nullptr};
}

std::size_t coded_x_bytes(const Linear& linear) {
  const bool needed = takes_coded_x(linear.weight.format) && linear.x_codes == nullptr;
  return needed ? coded_bytes(linear.rows, linear.weight.inputs) : 0;
}

std::size_t working_bytes(const Linear& linear, LinearWay way) {
  if (way == LinearWay::expanded)
    return expanded_bytes(linear.weight, linear.groups.offsets != nullptr ? linear.groups.count : 1);
  if (way != LinearWay::unpacked || linear.x_is_interleaved || linear.x_is_int8 ||
      !unpacked_interleaves(linear.weight.format))
    return 0;
  return interleaved_bytes(linear.groups.gather != nullptr ? linear.x_rows : linear.rows,
                           linear.weight.inputs);
}

std::size_t scratch_bytes(const Linear& linear, LinearWay way) {
  return coded_x_bytes(linear) + (linear.working_memory != nullptr ? 0 : working_bytes(linear, way));
}

DenseTailChoice choose(const DenseTail& op, const GpuTraits& gpu) {
  const bool next = op.next.weight.data != nullptr;
  return choose(DenseTailShape{.attention_out = shape_of(linear_of(op.attention_out)),
                               .gate_up = shape_of(gate_up_of(op.mlp)),
                               .down = shape_of(down_of(op.mlp)),
                               .next = next ? shape_of(linear_of(op.next)) : LinearShape{},
                               .has_next = next,
                               .plain_norms = is_plain(op.mlp.norm) && (!next || is_plain(op.next.norm))},
                gpu);
}

MoeTailChoice choose(const MoeTail& op, const GpuTraits& gpu) {
  MoeTailChoice choice;
  const auto halves = [](const AddRmsNorm& norm) { return is_plain(norm) && norm.codes == nullptr; };
  if (!halves(op.moe.norm) || !lay_out(op.moe, gpu, nullptr).few) return choice;
  LinearShape before = shape_of(linear_of(op.attention_out));
  before.produces_halved_norm = true;
  before.squares_per_sum = kSquaresPerSmallSum;
  choice.attention_out = choose(before, gpu);
  choice.halved = choice.attention_out.way == LinearWay::strips;
  if (!choice.halved || op.next.weight.data == nullptr || !halves(op.next.norm)) return choice;
  LinearShape after = shape_of(linear_of(op.next));
  after.consumes_halved_norm = true;
  choice.next = choose(after, gpu);
  choice.next_halved = choice.next.way == LinearWay::strips;
  return choice;
}

std::size_t scratch_bytes(const Linear& linear, const GpuTraits& gpu) {
  return linear.rows <= 0 ? 0 : scratch_bytes(linear, choose(shape_of(linear), gpu).way);
}
int biased_rows_at_once(const LinearBias& op) {
  const std::size_t row = static_cast<std::size_t>(padded(op.weight.outputs)) * sizeof(float);
  return static_cast<int>(std::max<std::size_t>(kBiasedSums / row, 1));
}
LinearShape shape_of(const LinearBias& op) {
  return {.ending = op.ending == BiasEnding::add ? Ending::add : Ending::store_f32,
          .format = op.weight.format,
          .outputs = op.weight.outputs,
          .inputs = op.weight.inputs,
          .rows = op.rows};
}
std::size_t scratch_bytes(const LinearBias& op, const GpuTraits& gpu) {
  const bool stays = op.ending == BiasEnding::set || op.ending == BiasEnding::add;
  if (op.rows <= 0 || stays || ends_in_bias(choose(shape_of(op), gpu))) return 0;
  return static_cast<std::size_t>(std::min(op.rows, biased_rows_at_once(op))) *
         static_cast<std::size_t>(padded(op.weight.outputs)) * sizeof(float);
}
std::size_t scratch_bytes(const LinearAdd& op, const GpuTraits& gpu) {
  return scratch_bytes(linear_of(op), gpu);
}
std::size_t scratch_bytes(const LmHead& op, const GpuTraits& gpu) {
  return scratch_bytes(linear_of(op), gpu);
}
std::size_t scratch_bytes(const Mlp& op, const GpuTraits& gpu) {
  return std::max(scratch_bytes(gate_up_of(op), gpu), scratch_bytes(down_of(op), gpu));
}
std::size_t scratch_bytes(const QkvRopeKvWrite& op, const GpuTraits& gpu) {
  return scratch_bytes(linear_of(op), gpu);
}

// Halved norms: the sums of squares of their rows. Strips and slabs take nothing.
std::size_t scratch_bytes(const DenseTail& op, const GpuTraits& gpu) {
  if (op.mlp.rows == 0) return 0;
  if (choose(op, gpu).halved_norms)
    return std::max(static_cast<std::size_t>(kStripRows) *
                        static_cast<std::size_t>(sums_of_squares(op.mlp.norm.cols)),
                    static_cast<std::size_t>(kSlabMostRows) *
                        static_cast<std::size_t>(slab_square_sums(op.mlp.norm.cols))) *
           sizeof(float);
  return std::max({scratch_bytes(op.attention_out, gpu), scratch_bytes(op.mlp, gpu),
                   op.next.weight.data != nullptr ? scratch_bytes(op.next, gpu) : 0});
}

// Halved norms: the sums of squares of both norms' rows, behind the experts' memory.
std::size_t scratch_bytes(const MoeTail& op, const GpuTraits& gpu) {
  if (op.moe.rows == 0) return 0;
  const std::size_t apart = std::max({scratch_bytes(op.attention_out, gpu), scratch_bytes(op.moe, gpu),
                                      op.next.weight.data != nullptr ? scratch_bytes(op.next, gpu) : 0});
  if (!choose(op, gpu).halved) return apart;
  const int cols = op.moe.norm.cols;
  const std::size_t squares =
      static_cast<std::size_t>(op.moe.rows) *
      static_cast<std::size_t>(sums_of_squares(cols, kSquaresPerSmallSum) + sums_of_squares(cols)) *
      sizeof(float);
  return std::max(apart, lay_out(op.moe, gpu, nullptr).bytes + squares);
}

}  // namespace troupe::kernels::cuda
