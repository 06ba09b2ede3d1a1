#include "kernels/cuda/moe/layout.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/moe/choose.h"
#include "kernels/cuda/moe/few.h"
#include "kernels/cuda/product/expanded.h"
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {
namespace {

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

LinearChoice choice_of(const MatrixStack& stack, Ending ending, int rows, const GpuTraits& gpu) {
  return choose(LinearShape{.ending = ending,
                            .format = stack.first.format,
                            .outputs = stack.first.outputs,
                            .inputs = stack.first.inputs,
                            .rows = rows,
                            .groups = stack.count},
                gpu);
}

/// True if the experts run as those of a few rows (few.h), which is then faster than streams.
bool takes_few(const Moe& op, const GpuTraits& gpu) {
  const Matrix &gate_up = op.gate_up.first, &down = op.down.first;
  const CodeKind kind = code_kind(gate_up.format);
  if (op.rows > most_few_rows(kind) || gpu.batch_invariant || !gpu.may(KernelWay::moe_few) ||
      op.gate_up_inputs != nullptr || code_kind(down.format) != kind || down.activations() != DType::bf16)
    return false;
  const RoutingWay way =
      choose({.dtype = DType::bf16, .experts = op.experts, .rows = op.rows}, gpu).way;  // one tile of rows
  if (way != RoutingWay::clusters_16 && way != RoutingWay::tiles_16) return false;
  const few::GateUpPlan first = few::gate_up_plan(few::shape_of(op), gpu);
  const few::DownPlan second = few::down_plan(down.format, down.inputs, op.top_k + op.shared);
  return std::max(first.shared_bytes, second.shared_bytes) <= gpu.block_shared_bytes;
}

std::size_t working_bytes(const MatrixStack& stack, LinearWay way, int x_rows) {
  if (way == LinearWay::expanded) return expanded_bytes(stack.first, stack.count);
  return way == LinearWay::unpacked && unpacked_interleaves(stack.first.format)
             ? interleaved_bytes(x_rows, stack.first.inputs)
             : 0;
}

}  // namespace

std::size_t lay_out(Routing& routing, const Moe& op, std::byte* memory) {
  std::size_t bytes = 0;
  const auto take = [&]<class T>(T*& array, std::size_t count) {
    array = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
    bytes += rounded(count * sizeof(T));
  };
  const auto rows = static_cast<std::size_t>(op.rows);
  const auto places = static_cast<std::size_t>(most_places(op));
  const auto choices = rows * static_cast<std::size_t>(op.top_k);
  const auto tiles = (rows + kRoutingTileRows - 1) / kRoutingTileRows;  // of the smallest size
  take(routing.offsets, static_cast<std::size_t>(op.experts + op.shared + 1));
  take(routing.gather, places);
  take(routing.scale, places);
  take(routing.places, choices);
  take(routing.experts, choices);
  take(routing.factors, rows);
  take(routing.logits, rows * static_cast<std::size_t>(padded(op.experts)));
  take(routing.choices, choices);
  take(routing.weights, choices);
  take(routing.counts, tiles * static_cast<std::size_t>(op.experts + 1));
  return bytes;
}

int expected_places(int rows, int top_k, int shared, int held, int experts) {
  const auto chosen = static_cast<std::int64_t>(rows) * top_k;
  return static_cast<int>(std::max<std::int64_t>(1, (chosen * held + experts - 1) / experts)) + rows * shared;
}

MoeLayout lay_out(const Moe& op, const GpuTraits& gpu, std::byte* memory) {
  MoeLayout made;
  const auto take = [&](std::size_t bytes) {
    std::byte* const at = memory == nullptr ? nullptr : memory + made.bytes;
    made.bytes += rounded(bytes);
    return at;
  };
  const DType dtype = op.down.first.activations();
  const int places = most_places(op), width = op.down.first.inputs;
  const bool coded = takes_coded_x(op.down.first.format);
  const int expected = expected_places(op.rows, op.top_k, op.shared, op.in_stacks(), op.experts);
  const bool w4a8 = op.gate_up_inputs != nullptr;
  made.gate_up = choice_of(op.gate_up, w4a8 ? Ending::store_scaled : Ending::swiglu, expected, gpu);
  made.exact = op.parts && dtype != DType::f32 && !op.down.first.format.quantised() &&
               (gpu.batch_invariant || op.rows <= kMostExactParts);
  made.down = choice_of(op.down, made.exact ? Ending::store_f32 : Ending::store_scaled, expected, gpu);
  made.interleaved = !w4a8 && made.gate_up.way == LinearWay::unpacked &&
                     made.down.way == LinearWay::unpacked && unpacked_interleaves(op.down.first.format);
  const auto streams = [](const LinearChoice& choice) {
    return choice.way == LinearWay::stream && !choice.stream.many_rows;
  };
  made.routing.shared_first = op.shared > 0 && !coded && streams(made.gate_up) && streams(made.down);
  made.few = made.routing.few = takes_few(op, gpu);
  made.coded_x = {.x = op.x, .dtype = dtype, .rows = coded ? op.rows : 0, .cols = op.gate_up.first.inputs};
  made.coded_activations = {.dtype = dtype, .rows = coded ? places : 0, .cols = width};

  const auto rows_of = [&](int columns, DType type) {
    return static_cast<std::size_t>(places) * static_cast<std::size_t>(columns) * size_of(type);
  };
  made.bytes = rounded(lay_out(made.routing, op, memory));
  made.activations = take(rows_of(padded(width), dtype));
  made.outputs = take(rows_of(padded(op.down.first.outputs), made.exact ? DType::f32 : dtype));
  if (w4a8) {
    made.place_codes = made.outputs;
    TROUPE_CHECK(!made.exact && padded(op.gate_up.first.inputs) == padded(op.down.first.outputs));
    made.activated = made.gate_up.way == LinearWay::unpacked;
    made.gate_up_sums = take(rows_of(padded(made.activated ? width : op.gate_up.first.outputs), dtype));
    made.gate_up_factors = reinterpret_cast<float*>(take(rows_of(1, DType::f32)));
    made.down_factors = reinterpret_cast<float*>(take(rows_of(1, DType::f32)));
  }
  lay_out(made.coded_x, take(coded_bytes(made.coded_x.rows, made.coded_x.cols)));
  lay_out(made.coded_activations, take(coded_bytes(made.coded_activations.rows, width)));
  made.coded_activations.x = made.activations;
  // Rows of W4A8 experts come in the order of an unpacked product.
  made.working_memory =
      take(std::max(working_bytes(op.gate_up, made.gate_up.way, w4a8 ? 0 : op.rows),
                    working_bytes(op.down, made.down.way, w4a8 || made.interleaved ? 0 : places)));
  return made;
}

}  // namespace troupe::kernels::cuda
