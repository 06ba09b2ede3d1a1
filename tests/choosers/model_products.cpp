#include "choosers/model_products.h"

#include <set>
#include <span>
#include <utility>

#include "kernels/cuda/moe/few.h"
#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/product/linear.h"
#include "model/documented/documented_models.h"
#include "model/ranks/part.h"
#include "model/vision/vision_weights.h"

namespace troupe::kernels::cuda::test {
namespace {

using model::ModelSpec;

ModelSpec demo() {
  ModelSpec spec;
  spec.vocab = 49'152;
  spec.hidden = 576;
  spec.intermediate = 1536;
  spec.layers = 30;
  spec.heads = 9;
  spec.kv_heads = 3;
  spec.head_dim = 64;
  return spec;
}

std::vector<std::pair<std::string, ModelSpec>> specs() {
  std::vector<std::pair<std::string, ModelSpec>> all = {{"the demo model", demo()}};
  std::set<std::string_view> shapes;
  for (const model::DocumentedModel& named : model::documented_models()) {
    if (shapes.insert(named.shape).second) all.emplace_back(named.shape, model::spec_of(named).value());
  }
  return all;
}

/// Of dense weights; experts may be wint2 too.
std::vector<WeightFormat> make_formats(bool experts) {
  std::vector<WeightFormat> all;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    all.push_back(dtype);
    all.emplace_back(WeightKind::int8, dtype);
    for (const int group : {0, 32, 64, 128}) all.emplace_back(WeightKind::int4, dtype, group);
    all.emplace_back(WeightKind::fp8, dtype);
    if (experts) all.emplace_back(WeightKind::wint2, dtype);
  }
  return all;
}
std::span<const WeightFormat> formats(bool experts) {
  static const std::vector<WeightFormat> dense = make_formats(false), any = make_formats(true);
  return experts ? any : dense;
}

class Products {
 public:
  Products(const Part& part, int rows, const GpuTraits& gpu,
           const std::function<void(const ChosenProduct&)>& visit)
      : whole_(part.whole),
        part_(part.part),
        alone_(part.ranks == 1),
        rows_(rows),
        gpu_(gpu),
        visit_(visit) {}

  void all() {
    for (const WeightFormat& format : formats(false)) {
      if (format.fp8() && !gpu_.features.fp8) continue;
      layer(format);
      if (!format.quantised() && part_.vision) tower(format);
    }
    if (part_.experts == 0) return;
    for (const WeightFormat& format : formats(true)) {
      if (format.fp8() && !gpu_.features.fp8) continue;
      experts(format, part_.expert_intermediate, 0);
      if (part_.shared_experts > 0) experts(format, part_.expert_intermediate, part_.shared_experts);
      if (part_.vision) experts(format, part_.vision->expert_intermediate, 0);
    }
  }

 private:
  LinearShape product(Ending ending, const WeightFormat& format, int outputs, int inputs) const {
    return {.ending = ending,
            .format = format,
            .outputs = outputs,
            .inputs = inputs,
            .rows = rows_,
            .head_dim = part_.head_dim,
            .kv = format.activations};
  }
  void visit(const LinearShape& shape) const { visit_({.shape = shape, .choice = choose(shape, gpu_)}); }

  /// The products of a dense layer, the head, a draft layer's projection and shared experts that are apart.
  void layer(const WeightFormat& format) const {
    const ModelSpec& p = part_;
    DenseTailShape tail{.attention_out = product(Ending::add, format, p.hidden, p.q_width()),
                        .gate_up = product(Ending::swiglu, format, gate_up_outputs(p.intermediate), p.hidden),
                        .down = product(Ending::add, format, p.hidden, p.intermediate),
                        .next = product(Ending::qkv, format, p.q_width() + 2 * p.kv_width(), p.hidden),
                        .has_next = true};
    const LinearShape shapes[] = {tail.attention_out, tail.gate_up, tail.down, tail.next};
    for (const LinearShape& shape : shapes) visit(shape);
    for (const bool next : {false, true}) {
      tail.has_next = next;
      const DenseTailChoice choice = choose(tail, gpu_);
      if (!alone_ || !choice.halved_norms) continue;
      for (int i = 0; i < choice.count; ++i)
        visit_({.shape = shapes[i], .choice = choice.products[static_cast<std::size_t>(i)]});
    }
    if (alone_ && p.experts > 0 && rows_ <= kMostFewRows) {
      LinearShape halved[] = {tail.attention_out, tail.next};
      halved[0].produces_halved_norm = halved[1].consumes_halved_norm = true;
      halved[0].squares_per_sum = kSquaresPerSmallSum;
      for (const LinearShape& shape : halved) {
        const LinearChoice choice = choose(shape, gpu_);
        if (choice.way == LinearWay::strips) visit_({.shape = shape, .choice = choice});
      }
    }
    visit(product(Ending::store_f32, format, p.tokens_held(), p.hidden));
    if (whole_.nextn_layers > 0) visit(product(Ending::add, format, whole_.hidden, 2 * whole_.hidden));
    if (p.shared_experts == 0) return;
    visit(product(Ending::swiglu, format, gate_up_outputs(p.expert_intermediate), p.hidden));
    visit(product(Ending::add, format, p.hidden, p.expert_intermediate));
  }

  void tower(const WeightFormat& format) const {
    model::VisionWeights weights;
    std::set<std::pair<int, int>> sizes;
    for (const model::VisionTensor& tensor : model::vision_tensors(*part_.vision, part_.hidden, weights)) {
      if (tensor.matrix == nullptr || !sizes.emplace(tensor.outputs, tensor.inputs).second) continue;
      for (const BiasEnding ending : {BiasEnding::store, BiasEnding::add}) {
        const LinearShape shape = shape_of(LinearBias{
            .weight = {nullptr, format, tensor.outputs, tensor.inputs}, .rows = rows_, .ending = ending});
        const LinearChoice choice = choose(shape, gpu_);
        visit_({.shape = shape, .choice = choice, .biased = ends_in_bias(choice)});
      }
    }
  }

  void experts(const WeightFormat& format, int width, int shared) const {
    const auto grouped = [&](Ending ending, int outputs, int inputs) {
      LinearShape shape = product(ending, format, outputs, inputs);
      shape.groups = part_.experts_held() + shared;
      shape.rows = expected_places(rows_, part_.top_k, shared, part_.experts_held(), part_.experts);
      return shape;
    };
    LinearShape gate_up = grouped(Ending::swiglu, gate_up_outputs(width), part_.hidden);
    LinearShape down = grouped(Ending::store_scaled, part_.hidden, width);
    visit(gate_up);
    visit(down);
    if (format == WeightFormat(WeightKind::int4, DType::bf16) && shared == 0) {
      gate_up.ending = Ending::store_scaled;
      for (const LinearShape& shape : {gate_up, down})
        visit_({.shape = shape, .choice = choose(shape, gpu_), .int8_x = true});
    }
    down.ending = Ending::store_f32;  // a rank's part of few rows
    if (!alone_ && !format.quantised()) visit(down);
  }

  const ModelSpec& whole_;
  const ModelSpec& part_;
  const bool alone_;
  const int rows_;
  const GpuTraits& gpu_;
  const std::function<void(const ChosenProduct&)>& visit_;
};

}  // namespace

std::vector<Part> parts() {
  std::vector<Part> all;
  for (const auto& [name, spec] : specs()) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (const bool whole_experts : {false, true}) {
        if (whole_experts && (ranks == 1 || spec.experts == 0)) continue;
        const Result<ModelSpec> part = model::part_of(spec, {ranks - 1, ranks, whole_experts});
        if (part) all.push_back({name + " on " + std::to_string(ranks) + " ranks", ranks, spec, *part});
      }
    }
  }
  return all;
}

void each_product(const Part& part, int rows, const GpuTraits& gpu,
                  const std::function<void(const ChosenProduct&)>& visit) {
  Products(part, rows, gpu, visit).all();
}

}  // namespace troupe::kernels::cuda::test
