#include "model/weights.h"

namespace troupe::model {

WeightLayout WeightLayout::make(const ModelSpec& spec, const WeightFormats& formats, bool tied, View memory) {
  Arena arena(memory);
  WeightLayout layout;
  const auto matrix = [&](const kernels::WeightFormat& format, int outputs, int inputs) {
    return kernels::Matrix{arena.take_bytes(kernels::matrix_bytes(format, outputs, inputs)), format, outputs,
                           inputs};
  };
  const auto stack = [&](const kernels::WeightFormat& format, int outputs, int inputs, int count) {
    kernels::MatrixStack made{{nullptr, format, outputs, inputs}, count};
    made.first.data = arena.take_bytes(made.stride() * static_cast<std::size_t>(made.count));
    return made;
  };
  const auto norm = [&] { return arena.take<float>(static_cast<std::size_t>(kernels::padded(spec.hidden))); };
  layout.embedding = matrix(formats.embedding, spec.tokens_held(), spec.hidden);
  layout.lm_head = tied && formats.lm_head == formats.embedding
                       ? layout.embedding
                       : matrix(formats.lm_head, spec.tokens_held(), spec.hidden);
  layout.final_norm = norm();
  const auto attention = [&](LayerWeights& layer, const kernels::WeightFormat& format) {
    layer.input_norm = norm();
    layer.qkv = matrix(format, spec.q_width() + 2 * spec.kv_width(), spec.hidden);
    layer.attention_out = matrix(format, spec.hidden, spec.q_width());
    layer.post_norm = norm();
  };
  const auto mlp = [&](LayerWeights& layer, const kernels::WeightFormat& format) {
    layer.gate_up = matrix(format, kernels::gate_up_outputs(spec.intermediate), spec.hidden);
    layer.down = matrix(format, spec.hidden, spec.intermediate);
  };
  layout.layers.reserve(static_cast<std::size_t>(spec.layers));
  for (int i = 0; i < spec.layers; ++i) {
    LayerWeights layer;
    attention(layer, formats.attention);
    if (formats.static_kv) {
      const auto channels = static_cast<std::size_t>(spec.kv_width());
      layer.static_kv.keys = arena.take<float>(channels);
      layer.static_kv.values = arena.take<float>(channels);
    }
    if (!spec.moe_layer(i)) {
      mlp(layer, formats.mlp);
    } else {
      layer.router = matrix(DType::f32, spec.experts, spec.hidden);
      layer.router_bias = arena.take<float>(static_cast<std::size_t>(spec.experts));
      const bool apart = formats.shared_apart(i);
      const int experts = spec.experts_held() + (apart ? 0 : spec.shared_experts);
      const kernels::WeightFormat& format = formats.experts_of(i);
      layer.expert_gate_up =
          stack(format, kernels::gate_up_outputs(spec.expert_intermediate), spec.hidden, experts);
      layer.expert_down = stack(format, spec.hidden, spec.expert_intermediate, experts);
      if (apart && spec.shared_experts > 0) {
        layer.shared_gate_up = stack(*formats.shared, kernels::gate_up_outputs(spec.expert_intermediate),
                                     spec.hidden, spec.shared_experts);
        layer.shared_down =
            stack(*formats.shared, spec.hidden, spec.expert_intermediate, spec.shared_experts);
      }
      if (formats.w4a8) {
        layer.gate_up_inputs = arena.take<kernels::StaticInput>(static_cast<std::size_t>(experts));
        layer.down_inputs = arena.take<kernels::StaticInput>(static_cast<std::size_t>(experts));
      }
      if (spec.vision) {
        const int width = spec.vision->expert_intermediate;
        layer.vision.router = matrix(DType::f32, spec.experts, spec.hidden);
        layer.vision.router_bias = arena.take<float>(static_cast<std::size_t>(spec.experts));
        layer.vision.gate_up =
            stack(format, kernels::gate_up_outputs(width), spec.hidden, spec.experts_held());
        layer.vision.down = stack(format, spec.hidden, width, spec.experts_held());
      }
    }
    layout.layers.push_back(layer);
  }
  if (spec.vision) {
    layout.vision = VisionWeights::make(*spec.vision, spec.hidden, formats.activations, arena);
  }
  if (spec.draft_layers > 0) {
    layout.draft.embedding_norm = norm();
    layout.draft.hidden_norm = norm();
    layout.draft.projection = matrix(formats.draft, spec.hidden, 2 * spec.hidden);
    attention(layout.draft.block, formats.draft);
    mlp(layout.draft.block, formats.draft);
  }
  layout.bytes = arena.used();
  return layout;
}

std::string weight_name(Weight weight, int layer, int expert) {
  const std::string at = layer == WeightSource::kDraftLayer ? "model.mtp_block.0."
                                                            : "model.layers." + std::to_string(layer) + ".";
  std::string mlp = at + "mlp.";
  if (weight >= Weight::vision_gate && weight <= Weight::vision_down) mlp += "vision_";
  if (expert != WeightSource::kNoExpert) mlp += "experts." + std::to_string(expert) + ".";
  switch (weight) {
    case Weight::embedding: return "model.embed_tokens.weight";
    case Weight::lm_head: return "lm_head.weight";
    case Weight::final_norm: return "model.norm.weight";
    case Weight::input_norm: return at + "input_layernorm.weight";
    case Weight::query: return at + "self_attn.q_proj.weight";
    case Weight::key: return at + "self_attn.k_proj.weight";
    case Weight::value: return at + "self_attn.v_proj.weight";
    case Weight::attention_out: return at + "self_attn.o_proj.weight";
    case Weight::post_norm: return at + "post_attention_layernorm.weight";
    case Weight::vision_gate:
    case Weight::gate: return mlp + "gate_proj.weight";
    case Weight::vision_up:
    case Weight::up: return mlp + "up_proj.weight";
    case Weight::vision_down:
    case Weight::down: return mlp + "down_proj.weight";
    case Weight::router: return at + "mlp.gate.weight";
    case Weight::router_bias: return at + "mlp.moe_statics.e_score_correction_bias";
    case Weight::vision_router: return at + "mlp.gate.weight_1";
    case Weight::vision_router_bias: return at + "mlp.moe_statics.vision_e_score_correction_bias";
    case Weight::vision: return "vision." + std::to_string(layer);
    case Weight::key_scale: return at + "self_attn.cachek_matmul.activation_scale";
    case Weight::value_scale: return at + "self_attn.cachev_matmul.activation_scale";
    case Weight::draft_embedding_norm: return "model.mtp_emb_norm.0.weight";
    case Weight::draft_hidden_norm: return "model.mtp_hidden_norm.0.weight";
    case Weight::draft_projection: return "model.mtp_linear_proj.0.weight";
  }
  return {};
}

}  // namespace troupe::model
