// Checks of mixtures of experts: every way of the router, experts in every format at few and many rows, and
// the tail of a layer with experts.
#include "kernels/moe.h"

#include "kernels/check/side.h"
#include "kernels/check/weights.h"
#include "kernels/cuda/moe/choose.h"
#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/moe_tail.h"

namespace troupe::kernels::check {
namespace {

constexpr int kMoeHidden = 512, kMoeIntermediate = 256, kTopK = 4, kShared = 1;
constexpr int kDrawnExperts = 16;  // experts so many apart are alike

/// Logits are sums of multiples of 2^-12 below 2^11, which fp32 holds whatever the order, so that both
/// devices choose the same experts.
Numbers router_weights(int experts) {
  Numbers weights = draw(static_cast<std::size_t>(experts * kMoeHidden), 91, 0.125f);
  for (float& weight : weights) weight = std::clamp(std::nearbyint(weight * 64), -64.0f, 64.0f) / 64;
  return weights;
}
Numbers routed_rows(int rows) {
  Numbers numbers = draw(static_cast<std::size_t>(rows * kMoeHidden), 92);
  for (float& number : numbers) number = std::clamp(std::nearbyint(number * 32), -112.0f, 112.0f) / 32;
  return numbers;
}

/// The experts chosen and the residual stream.
struct MoeResult {
  std::vector<std::int32_t> chosen;
  Numbers residual;
};

/// W4A8 experts have no shared slices; the CPU, too, multiplies their codes.
struct Experts {
  WeightFormat format;
  int count = 0;
  bool w4a8 = false;

  int shared() const { return w4a8 ? 0 : kShared; }
  int stacked() const { return count + shared(); }
};

/// Sizes and formats, without memory.
Moe shape_of(const Experts& mixed, const WeightFormat& stored, int rows) {
  static const StaticInput any{};  // choosers compare pointers with null
  const StaticInput* const inputs = mixed.w4a8 ? &any : nullptr;
  return {.router = {nullptr, DType::f32, mixed.count, kMoeHidden},
          .gate_up = {{nullptr, stored, gate_up_outputs(kMoeIntermediate), kMoeHidden}, mixed.stacked()},
          .down = {{nullptr, stored, kMoeHidden, kMoeIntermediate}, mixed.stacked()},
          .gate_up_inputs = inputs,
          .down_inputs = inputs,
          .experts = mixed.count,
          .shared = mixed.shared(),
          .top_k = kTopK,
          .rows = rows};
}

/// With weights; without x and a residual stream.
template <class D>
Moe experts_on(Side<D>& side, const Experts& mixed, int rows) {
  const WeightFormat& format = mixed.format;
  const WeightFormat stored = mixed.w4a8 ? format : stored_as(side, format);
  const int experts = mixed.count, stacked = mixed.stacked();
  Moe op = shape_of(mixed, stored, rows);
  MatrixStack &gate_up = op.gate_up, &down = op.down;
  gate_up.first = side.matrix(stored, gate_up_outputs(kMoeIntermediate), kMoeHidden, stacked);
  down.first = side.matrix(stored, kMoeHidden, kMoeIntermediate, stacked);
  for (int drawn = 0; drawn < std::min(stacked, kDrawnExperts); ++drawn) {
    const auto seed = static_cast<std::uint64_t>(100 + 3 * drawn);
    const Numbers gate = exact_weights(format, kMoeIntermediate, kMoeHidden, seed),
                  up = exact_weights(format, kMoeIntermediate, kMoeHidden, seed + 1),
                  back = exact_weights(format, kMoeHidden, kMoeIntermediate, seed + 2);
    for (int e = drawn; e < stacked; e += kDrawnExperts) {
      side.pack(gate_up.at(e), Place::gate, kMoeIntermediate, gate);
      side.pack(gate_up.at(e), Place::up, kMoeIntermediate, up);
      side.pack(down.at(e), Place::rows, kMoeHidden, back);
    }
  }
  const auto inputs = [&](StaticInput one) -> const StaticInput* {
    return mixed.w4a8 ? side.put(std::vector<StaticInput>(static_cast<std::size_t>(stacked), one)) : nullptr;
  };
  Numbers bias(static_cast<std::size_t>(experts), 0.0f);
  bias[1] = 0.0625f;
  op.router = side.packed(DType::f32, experts, kMoeHidden, router_weights(experts));
  op.bias = side.floats(1, experts, bias);
  op.gate_up_inputs = inputs({127.0f / 4, 0x1p-5f});
  op.down_inputs = inputs({127.0f / 16, 0x1p-3f});
  return op;
}

template <class D>
MoeResult mixture(Side<D>& side, const Experts& mixed, int rows) {
  Moe op = experts_on(side, mixed, rows);
  op.residual = side.floats(rows, kMoeHidden, draw(static_cast<std::size_t>(rows * kMoeHidden), 93));
  op.x = side.rows(mixed.format.activations, rows, kMoeHidden, routed_rows(rows));
  op.chosen = side.template room<std::int32_t>(static_cast<std::size_t>(rows * kTopK));
  run(side.device(), op);
  return {side.get(op.chosen, static_cast<std::size_t>(rows * kTopK)),
          side.numbers(DType::f32, op.residual, rows, kMoeHidden)};
}

/// The tail of a layer without a next one. Routing sees a norm of the sum that attention_out ends in.
MoeTail tail_shape(const Experts& mixed, int rows) {
  static const float any = 0;
  MoeTail op{.attention_out = {.weight = {nullptr, mixed.format, kMoeHidden, kMoeHidden}, .rows = rows},
             .moe = shape_of(mixed, mixed.format, rows)};
  op.moe.norm = {.weight = &any, .rows = rows, .cols = kMoeHidden};
  return op;
}
template <class D>
Numbers tail(Side<D>& side, const Experts& mixed, int rows) {
  const DType dtype = mixed.format.activations;
  MoeTail op = tail_shape(mixed, rows);
  const AddRmsNorm norm = op.moe.norm;
  op.moe = experts_on(side, mixed, rows);
  op.moe.norm = norm;
  op.attention_out.residual = op.moe.residual = op.moe.norm.residual =
      side.floats(rows, kMoeHidden, draw(static_cast<std::size_t>(rows * kMoeHidden), 94));
  op.attention_out.x = exact_rows(side, mixed.format, rows, kMoeHidden, 95);
  op.attention_out.weight = exact_matrix(side, mixed.format, kMoeHidden, kMoeHidden, 96);
  op.moe.norm.out = side.rows(dtype, rows, kMoeHidden);
  op.moe.norm.weight = side.floats(1, kMoeHidden, draw(static_cast<std::size_t>(kMoeHidden), 97));
  op.moe.x = op.moe.norm.out;
  run(side.device(), op);
  return side.numbers(DType::f32, op.moe.residual, rows, kMoeHidden);
}

/// The choice of experts alone, so that it does not hang on their products.
Status check_router(Cpu& cpu, Cuda& cuda, const WeightFormat& format, int experts, int rows) {
  Side<Cuda> there(cuda);
  Side<Cpu> here(cpu);
  return compare_bytes(mixture(there, {format, experts}, rows).chosen,
                       mixture(here, {format, experts}, rows).chosen);
}

Status check_experts(Cpu& cpu, Cuda& cuda, const Experts& experts, int rows) {
  Side<Cuda> there(cuda);
  Side<Cpu> here(cpu);
  const Numbers got = mixture(there, experts, rows).residual,
                expected = mixture(here, experts, rows).residual;
  // Between the products of W4A8 experts an activation's neighbour changes a few codes by one.
  return compare(got, expected,
                 experts.format.fp8() ? Bound{0, 0.08}
                 : experts.w4a8       ? Bound{0, 0.02}
                                      : rounded_between(experts.format.activations));
}

std::optional<KernelWay> avoidable_routing(cuda::RoutingWay way) {
  switch (way) {
    case cuda::RoutingWay::tiles_16: return KernelWay::routing_tiles;
    case cuda::RoutingWay::clusters_16: return KernelWay::routing_clusters;
    case cuda::RoutingWay::tiles_32:
    case cuda::RoutingWay::tiles_32_wide: return KernelWay::routing_wide_tiles;
    case cuda::RoutingWay::generic: break;
  }
  return std::nullopt;
}

std::string text_of(const WeightFormat& format, int experts, int rows) {
  return std::to_string(experts) + " experts, " + to_string(format) + ", " + std::to_string(rows) + " rows";
}

void add_router(Checks& checks, DType dtype, int experts, int rows) {
  checks.push_back({"Moe",
                    "router: " + text_of(dtype, experts, rows),
                    {},
                    [=](const cuda::GpuTraits& gpu) {
                      const cuda::RoutingWay way = choose(cuda::RoutingShape{dtype, experts, rows}, gpu).way;
                      return TakenWay{to_string(way), avoidable_routing(way)};
                    },
                    [=](Cpu& cpu, Cuda& cuda) { return check_router(cpu, cuda, dtype, experts, rows); }});
}

void add_experts(Checks& checks, const WeightFormat& format, int rows, bool w4a8 = false) {
  const Experts experts{format, 8, w4a8};
  const cuda::LinearShape gate_up{.ending = w4a8 ? cuda::Ending::store_scaled : cuda::Ending::swiglu,
                                  .format = format,
                                  .outputs = gate_up_outputs(kMoeIntermediate),
                                  .inputs = kMoeHidden,
                                  .rows = rows * (kTopK + experts.shared()),
                                  .groups = experts.stacked()};
  checks.push_back({"Moe", text_of(format, experts.count, rows) + (w4a8 ? " in int8" : ""), "Moe",
                    [=](const cuda::GpuTraits& gpu) {
                      return cuda::lay_out(shape_of(experts, format, rows), gpu, nullptr).few
                                 ? TakenWay{"experts of a few rows", KernelWay::moe_few}
                                 : way_of_product(gate_up)(gpu);
                    },
                    [=](Cpu& cpu, Cuda& cuda) { return check_experts(cpu, cuda, experts, rows); }});
}

void add_tail(Checks& checks, const WeightFormat& format, int rows) {
  const Experts experts{format, 8};
  checks.push_back({"MoeTail", text_of(format, experts.count, rows), "Moe",
                    [=](const cuda::GpuTraits& gpu) -> TakenWay {
                      if (cuda::choose(tail_shape(experts, rows), gpu).halved)
                        return {"halved norms", KernelWay::moe_few};
                      return {"its ops one by one", {}};
                    },
                    [=](Cpu& cpu, Cuda& cuda) -> Status {
                      Side<Cuda> there(cuda);
                      Side<Cpu> here(cpu);
                      return compare(tail(there, experts, rows), tail(here, experts, rows), Bound{0, 0x1p-6});
                    }});
}

}  // namespace

void add_moe_checks(Checks& checks) {
  const WeightFormat int8(WeightKind::int8, DType::bf16), int4(WeightKind::int4, DType::bf16),
      groups(WeightKind::int4, DType::bf16, 64), fp8(WeightKind::fp8, DType::bf16);
  add_router(checks, DType::bf16, 64, 5);     // clusters
  add_router(checks, DType::bf16, 160, 5);    // tiles of 16 rows
  add_router(checks, DType::bf16, 64, 400);   // of 32
  add_router(checks, DType::bf16, 64, 2100);  // wide ones
  add_router(checks, DType::f32, 8, 3);
  for (const WeightFormat& format : {WeightFormat(DType::bf16), WeightFormat(DType::f16),
                                     WeightFormat(DType::f32), int8, int4, groups, fp8}) {
    for (const int rows : {4, 300}) add_experts(checks, format, rows);
  }
  for (const int rows : {4, 300}) add_experts(checks, int4, rows, true);
  for (const WeightFormat& format : {WeightFormat(DType::bf16), int8, int4}) add_experts(checks, format, 2);
  for (const int rows : {2, 4}) add_tail(checks, DType::bf16, rows);
  add_tail(checks, int8, 2);
}

}  // namespace troupe::kernels::check
