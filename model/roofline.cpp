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
  Amount every_token;  // attention, dense and shared MLPs, lm_head
  Amount router;       // fp32
  Amount experts;      // one expert of every layer that has any
};

// Adds those of a layer but for its queries, keys and values.
void add_rest(Parameters& p, const ModelSpec& spec, const WeightFormats& formats, int layer) {
  const auto mlp = [&](const kernels::WeightFormat& format, double width) {
    Amount made = matrix(format, 2 * width, spec.hidden);
    return made += matrix(format, spec.hidden, width);
  };
  p.every_token += matrix(formats.attention, spec.hidden, spec.q_width());
  if (spec.moe_layer(layer)) {
    p.experts += mlp(formats.experts_of(layer), spec.expert_intermediate);
    p.every_token += spec.shared_experts * mlp(formats.shared_of(layer), spec.expert_intermediate);
    p.router += matrix(DType::f32, spec.experts, spec.hidden);
  } else {
    p.every_token += mlp(formats.mlp, spec.intermediate);
  }
}

// `read`: tokens whose logits are wanted, which alone pass the rest of the last layer.
StepWork matrices(const ModelSpec& spec, const WeightFormats& formats, double tokens, double read) {
  const double held = spec.experts == 0 ? 0 : static_cast<double>(spec.experts_held()) / spec.experts;
  StepWork work;
  const auto add = [&](const Parameters& p, double times) {
    work.weight_bytes +=
        p.every_token.bytes + p.router.bytes + held * distinct_experts(spec, times) * p.experts.bytes;
    work.flops +=
        2 * times * (p.every_token.weights + p.router.weights + held * spec.top_k * p.experts.weights);
  };
  Parameters of_all, of_read;
  for (int layer = 0; layer < spec.layers; ++layer) {
    of_all.every_token += matrix(formats.attention, spec.q_width() + 2 * spec.kv_width(), spec.hidden);
    add_rest(layer + 1 < spec.layers ? of_all : of_read, spec, formats, layer);
  }
  of_read.every_token += matrix(formats.lm_head, spec.tokens_held(), spec.hidden);
  add(of_all, tokens);
  add(of_read, read);
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
  const double of_last_token = static_cast<double>(position) + tokens;
  work.attention_flops = 4.0 * spec.q_width() * ((spec.layers - 1) * pairs + of_last_token);
  return work;
}

double bound_s(const StepWork& work, const Ceilings& ceilings) {
  const auto longer = [&](double bytes, double flops) {
    return std::max(bytes / ceilings.bytes_per_s, flops / ceilings.flops_per_s);
  };
  return longer(work.weight_bytes, work.flops) + longer(work.kv_bytes, work.attention_flops);
}

}  // namespace troupe::model
