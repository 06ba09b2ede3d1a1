#include "model/roofline.h"

#include <algorithm>
#include <cmath>

namespace troupe::model {
namespace {

// Parameter counts, grouped by how many tokens read them.
struct ParameterCounts {
  double every_token = 0;  // attention, dense and shared MLPs; without lm_head
  double router = 0;       // fp32
  double expert = 0;       // one expert of one layer
  double head = 0;         // lm_head
  int moe_layers = 0;
};

ParameterCounts parameters(const ModelSpec& spec) {
  ParameterCounts p;
  const double hidden = spec.hidden;
  for (int layer = 0; layer < spec.layers; ++layer) {
    p.every_token += 2.0 * hidden * (spec.q_width() + spec.kv_width());
    if (spec.moe_layer(layer)) {
      ++p.moe_layers;
      p.every_token += 3.0 * hidden * spec.expert_intermediate * spec.shared_experts;
      p.router += hidden * spec.experts;
    } else {
      p.every_token += 3.0 * hidden * spec.intermediate;
    }
  }
  p.expert = 3.0 * hidden * spec.expert_intermediate;
  p.head = hidden * spec.vocab;
  return p;
}

StepWork matrices(const ModelSpec& spec, DType dtype, double tokens, double logits) {
  const ParameterCounts p = parameters(spec);
  const double size = static_cast<double>(size_of(dtype));
  StepWork work;
  work.weight_bytes =
      size * (p.every_token + p.head + p.moe_layers * distinct_experts(spec, tokens) * p.expert) +
      4 * p.router;
  work.flops =
      2 * (tokens * (p.every_token + p.router + p.moe_layers * spec.top_k * p.expert) + logits * p.head);
  return work;
}

}  // namespace

double distinct_experts(const ModelSpec& spec, double tokens) {
  if (spec.experts == 0) return 0;
  return spec.experts * (1 - std::pow(1 - static_cast<double>(spec.top_k) / spec.experts, tokens));
}

StepWork decode_work(const ModelSpec& spec, DType dtype, int batch, int context) {
  StepWork work = matrices(spec, dtype, batch, batch);
  const double visited = static_cast<double>(batch) * context;
  work.kv_bytes = visited * static_cast<double>(spec.kv_bytes_per_token(dtype));
  work.attention_flops = 4.0 * spec.layers * spec.q_width() * visited;
  return work;
}

StepWork prefill_work(const ModelSpec& spec, DType dtype, int tokens, int position) {
  StepWork work = matrices(spec, dtype, tokens, 1);
  work.kv_bytes =
      (static_cast<double>(position) + tokens) * static_cast<double>(spec.kv_bytes_per_token(dtype));
  const double pairs = static_cast<double>(tokens) * (position + (tokens + 1) / 2.0);
  work.attention_flops = 4.0 * spec.layers * spec.q_width() * pairs;
  return work;
}

double bound_s(const StepWork& work, const Ceilings& ceilings) {
  const auto longer = [&](double bytes, double flops) {
    return std::max(bytes / ceilings.bytes_per_s, flops / ceilings.flops_per_s);
  };
  return longer(work.weight_bytes, work.flops) + longer(work.kv_bytes, work.attention_flops);
}

}  // namespace troupe::model
