#include "model/roofline.h"

#include <algorithm>
#include <cmath>

namespace troupe::model {
namespace {

struct Amount {
  double weights = 0;
  double bytes = 0;

  Amount& operator+=(const Amount& more) {
    weights += more.weights;
    bytes += more.bytes;
    return *this;
  }
};

Amount operator*(double times, const Amount& one) { return {times * one.weights, times * one.bytes}; }

// A matrix without padding: codes or floats, and scales.
Amount matrix(const kernels::WeightFormat& format, double outputs, double inputs) {
  const double weights = outputs * inputs;
  double scales = 0;
  if (format.fp8()) {
    scales = 4 * weights / (kernels::kFp8ScaleOutputs * kernels::kFp8Block);
  } else if (format.quantised()) {
    scales = format.group == 0 ? 4 * outputs : 2 * weights / format.group;
  }
  return {weights, weights * format.bits() / 8 + scales};
}

// The model's weights, grouped by how many tokens read them.
struct Parameters {
  Amount every_token;  // attention, dense and shared MLPs; without lm_head
  Amount router;       // fp32
  Amount experts;      // one expert of every layer that has any
  Amount head;         // lm_head
};

Parameters parameters(const ModelSpec& spec, const WeightFormats& formats) {
  Parameters p;
  const auto mlp = [&](const kernels::WeightFormat& format, double width) {
    Amount made = matrix(format, 2 * width, spec.hidden);
    return made += matrix(format, spec.hidden, width);
  };
  for (int layer = 0; layer < spec.layers; ++layer) {
    p.every_token += matrix(formats.attention, spec.q_width() + 2 * spec.kv_width(), spec.hidden);
    p.every_token += matrix(formats.attention, spec.hidden, spec.q_width());
    if (spec.moe_layer(layer)) {
      const Amount expert = mlp(formats.experts_of(layer), spec.expert_intermediate);
      p.experts += expert;
      p.every_token += spec.shared_experts * mlp(formats.shared_of(layer), spec.expert_intermediate);
      p.router += matrix(DType::f32, spec.experts, spec.hidden);
    } else {
      p.every_token += mlp(formats.mlp, spec.intermediate);
    }
  }
  p.head = matrix(formats.lm_head, spec.tokens_held(), spec.hidden);
  return p;
}

StepWork matrices(const ModelSpec& spec, const WeightFormats& formats, double tokens, double logits) {
  const Parameters p = parameters(spec, formats);
  const double held = spec.experts == 0 ? 0 : static_cast<double>(spec.experts_held()) / spec.experts;
  StepWork work;
  work.weight_bytes = p.every_token.bytes + p.head.bytes + p.router.bytes +
                      held * distinct_experts(spec, tokens) * p.experts.bytes;
  const double of_token = p.every_token.weights + p.router.weights + held * spec.top_k * p.experts.weights;
  work.flops = 2 * (tokens * of_token + logits * p.head.weights);
  return work;
}

}  // namespace

double distinct_experts(const ModelSpec& spec, double tokens) {
  if (spec.experts == 0) return 0;
  return spec.experts * (1 - std::pow(1 - static_cast<double>(spec.top_k) / spec.experts, tokens));
}

StepWork decode_work(const ModelSpec& spec, const WeightFormats& formats, int batch, int context) {
  StepWork work = matrices(spec, formats, batch, batch);
  const double visited = static_cast<double>(batch) * context;
  work.kv_bytes = visited * static_cast<double>(kv_bytes_per_token(spec, formats));
  work.attention_flops = 4.0 * spec.layers * spec.q_width() * visited;
  return work;
}

StepWork prefill_work(const ModelSpec& spec, const WeightFormats& formats, int tokens, int position) {
  StepWork work = matrices(spec, formats, tokens, 1);
  work.kv_bytes =
      (static_cast<double>(position) + tokens) * static_cast<double>(kv_bytes_per_token(spec, formats));
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
