#include "model/checkpoint/expected_tensors.h"

#include <initializer_list>
#include <utility>

#include "model/vision/vision_weights.h"

namespace troupe::model {
namespace {

Expected whole(std::string name, Form form, Weight weight, int outputs, int inputs) {
  return {std::move(name), form, outputs, inputs, {{weight, outputs, inputs}}};
}

/// Which weights the parts of an MLP are.
struct MlpWeights {
  Weight gate = Weight::gate, up = Weight::up, down = Weight::down;
};
constexpr MlpWeights kVisionMlp{Weight::vision_gate, Weight::vision_up, Weight::vision_down};

// A gated MLP in `slices` of `width` each: the layer's own MLP, or experts counted from `expert` on.
struct MlpShape {
  std::string at;  // "model.layers.3.mlp."
  int width = 0;
  int slices = 1;
  int expert = WeightSource::kNoExpert;
  MlpWeights weights{};
};

class Expectations {
 public:
  Expectations(const ModelSpec& spec, bool tied, const TensorNames& names)
      : spec_(spec), tied_(tied), names_(names) {}

  Result<std::vector<Expected>> list() {
    expect_all();
    return finish();
  }

  Result<std::vector<Expected>> list_draft() {
    const int hidden = spec_.hidden;
    layer_ = WeightSource::kDraftLayer;
    expect(whole("model.mtp_emb_norm.0.weight", Form::norm, Weight::draft_embedding_norm, 1, hidden));
    expect(whole("model.mtp_hidden_norm.0.weight", Form::norm, Weight::draft_hidden_norm, 1, hidden));
    expect(whole("model.mtp_linear_proj.0.weight", Form::projection, Weight::draft_projection, hidden,
                 2 * hidden));
    const std::string at = "model.mtp_block.0.";
    expect_attention(at);
    expect_mlp({.at = at + "mlp.", .width = spec_.intermediate});
    return finish();
  }

 private:
  Result<std::vector<Expected>> finish() {
    if (!status_.ok()) return status_;
    if (!missing_.empty()) return does_not_fit("missing tensors", missing_);
    return std::move(expected_);
  }

  void expect_all() {
    const int hidden = spec_.hidden;
    expect(whole("model.embed_tokens.weight", Form::table, Weight::embedding, spec_.tokens_held(), hidden));
    for (layer_ = 0; layer_ < spec_.layers; ++layer_) {
      const std::string at = "model.layers." + std::to_string(layer_) + ".";
      expect_attention(at);
      if (spec_.stored_quantisation && spec_.stored_quantisation->static_kv()) expect_static_kv(at);
      if (spec_.moe_layer(layer_)) {
        expect_experts(at + "mlp.");
      } else {
        expect_dense(at + "mlp.");
      }
      if (!status_.ok()) return;
    }
    layer_ = 0;
    if (spec_.vision) expect_vision();
    expect(whole("model.norm.weight", Form::norm, Weight::final_norm, 1, hidden));
    if (!tied_) expect(whole("lm_head.weight", Form::linear, Weight::lm_head, spec_.tokens_held(), hidden));
  }

  // Attention and the two norms of a layer.
  void expect_attention(const std::string& at) {
    const int hidden = spec_.hidden, q = spec_.q_width(), kv = spec_.kv_width();
    expect(whole(at + "input_layernorm.weight", Form::norm, Weight::input_norm, 1, hidden));
    expect_joined(at + "self_attn.qkv_proj.weight",
                  {whole(at + "self_attn.q_proj.weight", Form::linear, Weight::query, q, hidden),
                   whole(at + "self_attn.k_proj.weight", Form::linear, Weight::key, kv, hidden),
                   whole(at + "self_attn.v_proj.weight", Form::linear, Weight::value, kv, hidden)});
    expect(whole(at + "self_attn.o_proj.weight", Form::linear, Weight::attention_out, hidden, q));
    expect(whole(at + "post_attention_layernorm.weight", Form::norm, Weight::post_norm, 1, hidden));
  }

  void expect_static_kv(const std::string& at) {
    for (const auto& [name, weight] :
         {std::pair{"cachek", Weight::key_scale}, std::pair{"cachev", Weight::value_scale}}) {
      expect(whole(at + "self_attn." + name + "_matmul.activation_scale", Form::channels, weight, 1,
                   spec_.kv_width()));
    }
  }

  void expect_dense(const std::string& at) {
    if (const std::string* odd =
            under({at + "experts.", at + "shared_experts.", at + "moe_statics.", at + "text_moe."})) {
      return fail("layer " + std::to_string(layer_) + " is dense, by " + layer_rule() +
                  ", and has the tensor '" + *odd + "'.");
    }
    expect_mlp({.at = at, .width = spec_.intermediate});
  }

  void expect_experts(const std::string& at) {
    const std::string* odd =
        under({at + "gate_proj.", at + "up_proj.", at + "up_gate_proj.", at + "down_proj."});
    if (odd != nullptr) {
      return fail("layer " + std::to_string(layer_) + " has experts, by " + layer_rule() +
                  ", and the tensor '" + *odd + "' of a dense layer.");
    }
    odd = under({at + "shared_experts."});
    if (odd != nullptr && spec_.shared_experts == 0) {
      return fail("moe_num_shared_experts is 0, and there is the tensor '" + *odd + "'.");
    }
    if (odd == nullptr && spec_.shared_experts > 0) {
      return fail("moe_num_shared_experts is " + std::to_string(spec_.shared_experts) + ", and layer " +
                  std::to_string(layer_) + " has none.");
    }
    spec_.vision ? expect_both_kinds(at) : expect_text_experts(at);
    if (spec_.shared_experts > 0) {
      expect_mlp({.at = at + "shared_experts.",
                  .width = spec_.expert_intermediate,
                  .slices = spec_.shared_experts,
                  .expert = spec_.experts});
    }
  }

  void expect_text_experts(const std::string& at) {
    expect(whole(at + "gate.weight", Form::router, Weight::router, spec_.experts, spec_.hidden));
    const std::string inner = at + "gate.moe_statics.e_score_correction_bias";  // as transformers 5 names it
    const std::string bias = names_.contains(inner) ? inner : at + "moe_statics.e_score_correction_bias";
    expect(whole(bias, Form::bias, Weight::router_bias, 1, spec_.experts));
    if (names_.contains(at + "experts.gate_up_proj")) {
      expect_stacks(at + "experts.", spec_.expert_intermediate, {});
    } else {
      expect_list(at, 0, spec_.expert_intermediate, {});
    }
  }

  // Experts `first` and on of the file's list.
  void expect_list(const std::string& at, int first, int width, const MlpWeights& weights) {
    for (int e = 0; e < spec_.experts; ++e) {
      expect_mlp({.at = at + "experts." + std::to_string(first + e) + ".",
                  .width = width,
                  .expert = e,
                  .weights = weights});
    }
  }

  // Routers and experts of text and of vision rows.
  void expect_both_kinds(const std::string& at) {
    const int experts = spec_.experts, hidden = spec_.hidden, width = spec_.vision->expert_intermediate;
    if (names_.contains(at + "text_moe.experts.gate_up_proj")) {
      const auto expect_kind = [&](const std::string& in, int expert_width, Weight router, Weight bias,
                                   const MlpWeights& weights) {
        expect(whole(in + "gate.weight", Form::router, router, experts, hidden));
        expect(whole(in + "gate.moe_statics.e_score_correction_bias", Form::bias, bias, 1, experts));
        expect_stacks(in + "experts.", expert_width, weights);
      };
      expect_kind(at + "text_moe.", spec_.expert_intermediate, Weight::router, Weight::router_bias, {});
      return expect_kind(at + "vision_moe.", width, Weight::vision_router, Weight::vision_router_bias,
                         kVisionMlp);
    }
    expect(whole(at + "gate.weight", Form::router, Weight::router, experts, hidden));
    expect(whole(at + "gate.weight_1", Form::router, Weight::vision_router, experts, hidden));
    Expected biases{at + "moe_statics.e_score_correction_bias", Form::bias, 2, experts};
    biases.parts = {{Weight::router_bias, 1, experts},
                    {Weight::vision_router_bias, 1, experts, WeightSource::kNoExpert, 1}};
    expect(std::move(biases));
    expect_list(at, 0, spec_.expert_intermediate, {});
    expect_list(at, experts, width, kVisionMlp);
  }

  void expect_vision() {
    VisionWeights unused;
    for (VisionTensor& tensor : vision_tensors(*spec_.vision, spec_.hidden, unused)) {
      const Form form = tensor.matrix != nullptr ? Form::linear : Form::norm;
      expect(whole(std::move(tensor.name), form, Weight::vision, tensor.outputs, tensor.inputs));
      ++layer_;
    }
    layer_ = 0;
  }

  void expect_mlp(const MlpShape& mlp) {
    const int hidden = spec_.hidden;
    const std::int64_t wide = std::int64_t{mlp.slices} * mlp.width;
    Expected gate{mlp.at + "gate_proj.weight", Form::linear, wide, hidden};
    Expected up{mlp.at + "up_proj.weight", Form::linear, wide, hidden};
    Expected down{mlp.at + "down_proj.weight", Form::linear, hidden, wide};
    for (int slice = 0; slice < mlp.slices; ++slice) {
      const std::int64_t first = std::int64_t{slice} * mlp.width;
      const int expert = mlp.expert == WeightSource::kNoExpert ? mlp.expert : mlp.expert + slice;
      gate.parts.push_back({mlp.weights.gate, mlp.width, hidden, expert, first});
      up.parts.push_back({mlp.weights.up, mlp.width, hidden, expert, first});
      down.parts.push_back({mlp.weights.down, hidden, mlp.width, expert, 0, first});
    }
    expect_joined(mlp.at + "up_gate_proj.weight", {std::move(gate), std::move(up)});
    expect(std::move(down));
  }

  void expect_stacks(const std::string& at, int width, const MlpWeights& weights) {
    const int hidden = spec_.hidden;
    Expected gate_up{at + "gate_up_proj", Form::stack, 2 * width, hidden, {}, spec_.experts};
    Expected down{at + "down_proj", Form::stack, hidden, width, {}, spec_.experts};
    for (int e = 0; e < spec_.experts; ++e) {
      gate_up.parts.push_back({weights.gate, width, hidden, e, 0, 0, e});
      gate_up.parts.push_back({weights.up, width, hidden, e, width, 0, e});
      down.parts.push_back({weights.down, hidden, width, e, 0, 0, e});
    }
    expect(std::move(gate_up));
    expect(std::move(down));
  }

  void expect(Expected expected) {
    if (!names_.contains(expected.name)) missing_.emplace(expected.name, expected.name);
    expected.layer = layer_;
    expected_.push_back(std::move(expected));
  }

  // Expects the tensors one by one, or joined in one tensor with their outputs one after the other.
  void expect_joined(const std::string& joined, std::vector<Expected> single) {
    if (!names_.contains(joined)) {
      for (Expected& e : single) expect(std::move(e));
      return;
    }
    Expected all{joined, Form::linear, 0, single.front().inputs};
    for (const Expected& e : single) {
      for (Part part : e.parts) {
        part.first_output += all.outputs;
        all.parts.push_back(part);
      }
      all.outputs += e.outputs;
    }
    expect(std::move(all));
  }

  // The file's name of the first tensor that begins with one of these prefixes; null if there is none.
  const std::string* under(std::initializer_list<std::string> prefixes) const {
    for (const std::string& prefix : prefixes) {
      const auto at = names_.lower_bound(prefix);
      if (at != names_.end() && at->first.starts_with(prefix)) return &at->second;
    }
    return nullptr;
  }

  std::string layer_rule() const {
    if (spec_.experts == 0) return "the architecture " + spec_.architecture;
    return "moe_layer_start_index " + std::to_string(spec_.moe_start) + ", moe_layer_end_index " +
           std::to_string(spec_.moe_end) + " and moe_layer_interval " + std::to_string(spec_.moe_interval);
  }

  void fail(const std::string& message) {
    if (status_.ok()) status_ = does_not_fit(message);
  }

  const ModelSpec& spec_;
  const bool tied_;
  const TensorNames& names_;
  TensorNames missing_;
  std::vector<Expected> expected_;
  int layer_ = 0;  // of the tensors that are being expected
  Status status_;
};

}  // namespace

std::vector<std::int64_t> Expected::shape(bool transposed) const {
  switch (form) {
    case Form::norm:
    case Form::channels: return {inputs};
    case Form::bias: return {outputs, inputs};
    case Form::table: return {outputs, inputs};
    default: break;
  }
  const std::int64_t lines = transposed ? inputs : outputs, line = transposed ? outputs : inputs;
  return form == Form::stack ? std::vector{count, lines, line} : std::vector{lines, line};
}

Result<std::vector<Expected>> expected_tensors(const ModelSpec& spec, bool tied, const TensorNames& names) {
  return Expectations(spec, tied, names).list();
}

Result<std::vector<Expected>> expected_draft_tensors(const ModelSpec& spec, const TensorNames& names) {
  return Expectations(spec, true, names).list_draft();
}

Status does_not_fit(const std::string& message) { return invalid(std::string(kDoesNotFit) + message); }

Status does_not_fit(const std::string& what, const TensorNames& names) {
  constexpr std::size_t kShown = 5;
  std::string message = std::to_string(names.size()) + " " + what;
  std::size_t shown = 0;
  for (const auto& [common, name] : names) {
    if (shown == kShown) return does_not_fit(message + ", …");
    message += (shown++ == 0 ? ": '" : ", '") + name + "'";
  }
  return does_not_fit(message + ".");
}

}  // namespace troupe::model
