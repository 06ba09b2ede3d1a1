// Checks of products: every format at few, some and many rows, dense.
#include "kernels/check/side.h"
#include "kernels/check/weights.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/dense_tail.h"
#include "kernels/linear_add.h"
#include "kernels/lm_head.h"
#include "kernels/mlp.h"

namespace troupe::kernels::check {
namespace {

/// 0.3B: o_proj and the MLP. The demo model's are narrow, and no multiples of tiles.
struct Width {
  int hidden, intermediate, attention;
};
constexpr Width kWide{1024, 3072, 2048}, kNarrow{576, 1536, 576};

std::string sized(const WeightFormat& format, int outputs, int inputs, int rows) {
  return cuda::to_string(
      cuda::LinearShape{.format = format, .outputs = outputs, .inputs = inputs, .rows = rows});
}

template <class S>
Numbers linear_add(S& side, const WeightFormat& format, int outputs, int inputs, int rows) {
  float* const residual = side.floats(rows, outputs, draw(static_cast<std::size_t>(rows * outputs), 61));
  run(side.device(), LinearAdd{.residual = residual,
                               .x = exact_rows(side, format, rows, inputs, 62),
                               .weight = exact_matrix(side, format, outputs, inputs, 63),
                               .rows = rows});
  return side.numbers(DType::f32, residual, rows, outputs);
}

void add_linear(Checks& checks, const WeightFormat& format, int outputs, int inputs, int rows) {
  checks.push_back(
      {"LinearAdd",
       sized(format, outputs, inputs, rows),
       {},
       way_of_product({.format = format, .outputs = outputs, .inputs = inputs, .rows = rows}),
       on_both(sums(format), [=](auto& side) { return linear_add(side, format, outputs, inputs, rows); })});
}

/// Of the next seed too.
template <class S>
Matrix exact_gate_up(S& side, const WeightFormat& format, int wide, int hidden, std::uint64_t seed) {
  const Matrix gate_up = side.matrix(stored_as(side, format), gate_up_outputs(wide), hidden);
  side.pack(gate_up, Place::gate, wide, exact_weights(format, wide, hidden, seed));
  side.pack(gate_up, Place::up, wide, exact_weights(format, wide, hidden, seed + 1));
  return gate_up;
}

template <class S>
Numbers mlp(S& side, const WeightFormat& format, const Width& width, int rows) {
  const int hidden = width.hidden, wide = width.intermediate;
  float* const residual = side.floats(rows, hidden, draw(static_cast<std::size_t>(rows * hidden), 64));
  run(side.device(), Mlp{.residual = residual,
                         .x = exact_rows(side, format, rows, hidden, 67),
                         .activation = side.rows(format.activations, rows, wide),
                         .gate_up = exact_gate_up(side, format, wide, hidden, 65),
                         .down = exact_matrix(side, format, hidden, wide, 68),
                         .rows = rows});
  return side.numbers(DType::f32, residual, rows, hidden);
}

void add_mlp(Checks& checks, const WeightFormat& format, const Width& width, int rows) {
  checks.push_back({"Mlp", sized(format, gate_up_outputs(width.intermediate), width.hidden, rows),
                    "LinearAdd",
                    way_of_product({.ending = cuda::Ending::swiglu,
                                    .format = format,
                                    .outputs = gate_up_outputs(width.intermediate),
                                    .inputs = width.hidden,
                                    .rows = rows}),
                    on_both(between(format), [=](auto& side) { return mlp(side, format, width, rows); })});
}

void add_lm_head(Checks& checks, const WeightFormat& format, int rows) {
  constexpr int kVocab = 5003, kHidden = 1024;
  checks.push_back({"LmHead",
                    sized(format, kVocab, kHidden, rows),
                    {},
                    way_of_product({.ending = cuda::Ending::store_f32,
                                    .format = format,
                                    .outputs = kVocab,
                                    .inputs = kHidden,
                                    .rows = rows}),
                    on_both(sums(format), [=](auto& side) {
                      float* const logits = side.floats(rows, kVocab);
                      run(side.device(), LmHead{.logits = logits,
                                                .x = exact_rows(side, format, rows, kHidden, 69),
                                                .weight = exact_matrix(side, format, kVocab, kHidden, 70),
                                                .rows = rows});
                      return side.numbers(DType::f32, logits, rows, kVocab);
                    })});
}

/// The tail of a dense layer without a next one: its norms are made in halves where strips or slabs run.
DenseTail tail_shape(const WeightFormat& format, const Width& width, int rows) {
  const auto matrix = [&](int outputs, int inputs) { return Matrix{nullptr, format, outputs, inputs}; };
  static const float any = 0;  // choosers compare pointers with null
  const AddRmsNorm norm{.weight = &any, .rows = rows, .cols = width.hidden};
  return {.attention_out = {.weight = matrix(width.hidden, width.attention), .rows = rows},
          .mlp = {.gate_up = matrix(gate_up_outputs(width.intermediate), width.hidden),
                  .down = matrix(width.hidden, width.intermediate),
                  .rows = rows,
                  .norm = norm}};
}

template <class S>
Numbers dense_tail(S& side, const WeightFormat& format, const Width& width, int rows) {
  const int hidden = width.hidden, wide = width.intermediate;
  DenseTail op = tail_shape(format, width, rows);
  float* const residual = side.floats(rows, hidden, draw(static_cast<std::size_t>(rows * hidden), 71));
  void* const normed = side.rows(format.activations, rows, hidden);
  op.attention_out.residual = op.mlp.residual = op.mlp.norm.residual = residual;
  op.attention_out.x = exact_rows(side, format, rows, width.attention, 72);
  op.attention_out.weight = exact_matrix(side, format, hidden, width.attention, 73);
  op.mlp.norm.out = normed;
  op.mlp.norm.weight = side.floats(1, hidden, draw(static_cast<std::size_t>(hidden), 74));
  op.mlp.x = normed;
  op.mlp.activation = side.rows(format.activations, rows, wide);
  op.mlp.gate_up = exact_gate_up(side, format, wide, hidden, 75);
  op.mlp.down = exact_matrix(side, format, hidden, wide, 77);
  run(side.device(), op);
  return side.numbers(DType::f32, residual, rows, hidden);
}

void add_dense_tail(Checks& checks, const WeightFormat& format, int rows) {
  checks.push_back(
      {"DenseTail", std::string("0.3B, ") + to_string(format) + ", " + std::to_string(rows) + " rows", "Mlp",
       [=](const cuda::GpuTraits& gpu) -> TakenWay {
         const cuda::DenseTailChoice choice = cuda::choose(tail_shape(format, kWide, rows), gpu);
         if (!choice.halved_norms) return {"its ops one by one", {}};
         return {"halved norms, " + std::string(cuda::to_string(choice.products[0].way)),
                 avoidable_product(choice.products[0].way)};
       },
       on_both(Bound{0, 0x1p-6}, [=](auto& side) { return dense_tail(side, format, kWide, rows); })});
}

}  // namespace

std::optional<KernelWay> avoidable_product(cuda::LinearWay way) {
  switch (way) {
    case cuda::LinearWay::stream: return KernelWay::product_stream;
    case cuda::LinearWay::strips: return KernelWay::product_strips;
    case cuda::LinearWay::slabs: return KernelWay::product_slabs;
    case cuda::LinearWay::wgmma: return KernelWay::product_wgmma;
    case cuda::LinearWay::unpacked: return KernelWay::product_unpacked;
    case cuda::LinearWay::expanded: return KernelWay::product_expanded;
    case cuda::LinearWay::unsupported:
    case cuda::LinearWay::generic: break;
  }
  return std::nullopt;
}

std::function<TakenWay(const cuda::GpuTraits&)> way_of_product(const cuda::LinearShape& shape) {
  return [shape](const cuda::GpuTraits& gpu) {
    const cuda::LinearWay way = choose(shape, gpu).way;
    return TakenWay{cuda::to_string(way), avoidable_product(way)};
  };
}

void add_product_checks(Checks& checks) {
  const WeightFormat int8(WeightKind::int8, DType::bf16), int4(WeightKind::int4, DType::bf16, 64),
      fp8(WeightKind::fp8, DType::bf16);
  for (const WeightFormat& format : {WeightFormat(DType::bf16), WeightFormat(DType::f16), int8, int4, fp8}) {
    for (const int rows : {4, 24, 300}) {
      add_linear(checks, format, kWide.hidden, kWide.attention, rows);
      add_mlp(checks, format, kWide, rows);
    }
  }
  for (const int rows : {1, 9}) {
    add_linear(checks, DType::f32, kNarrow.hidden, kNarrow.attention, rows);
    add_mlp(checks, DType::f32, kNarrow, rows);
  }
  for (const int rows : {1, 5, 40}) {
    add_linear(checks, DType::bf16, kNarrow.hidden, kNarrow.attention, rows);
    add_mlp(checks, DType::bf16, kNarrow, rows);
  }
  add_linear(checks, {WeightKind::int8, DType::f16}, kNarrow.hidden, kNarrow.attention, 5);
  for (const WeightFormat& format : {WeightFormat(DType::bf16), WeightFormat(DType::f16), int8}) {
    for (const int rows : {1, 20, 100}) add_lm_head(checks, format, rows);
  }
  for (const WeightFormat& format : {WeightFormat(DType::bf16), int8}) {
    for (const int rows : {8, 64}) add_dense_tail(checks, format, rows);
  }
}

}  // namespace troupe::kernels::check
