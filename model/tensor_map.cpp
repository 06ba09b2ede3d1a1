#include "model/tensor_map.h"

#include <optional>
#include <set>
#include <span>
#include <string_view>

namespace troupe::model {
namespace {

// How a tensor's shape follows from the matrix that it holds.
enum class Form {
  linear,  // [outputs, inputs], or [inputs, outputs] in transposed checkpoints
  stack,   // several linears of one shape, [count, …]
  router,  // a linear whose orientation is its own where its shape shows it
  table,   // [outputs, inputs] always: the embedding
  norm,    // [inputs]
  bias,    // [inputs] or [1, inputs]
};

// A weight of the network, and its place in a tensor.
struct Part {
  Weight weight;
  int outputs;
  int inputs;
  int expert = WeightSource::kNoExpert;
  std::int64_t first_output = 0;
  std::int64_t first_input = 0;
  std::int64_t matrix = 0;  // of a stack
};

// A tensor that the network needs: one weight, or several joined.
struct Expected {
  std::string name;  // with the prefix "model."
  Form form = Form::linear;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::vector<Part> parts{};
  std::int64_t count = 1;  // of a stack

  bool oriented() const { return form == Form::linear || form == Form::stack; }

  std::vector<std::int64_t> shape(bool transposed) const {
    switch (form) {
      case Form::norm: return {inputs};
      case Form::bias: return {1, inputs};
      case Form::table: return {outputs, inputs};
      default: break;
    }
    const std::int64_t lines = transposed ? inputs : outputs, line = transposed ? outputs : inputs;
    return form == Form::stack ? std::vector{count, lines, line} : std::vector{lines, line};
  }
};

Expected whole(std::string name, Form form, Weight weight, int outputs, int inputs) {
  return {std::move(name), form, outputs, inputs, {{weight, outputs, inputs}}};
}

// A gated MLP: `slices` of `width` each, which are the layer's own or experts counted from `expert` on.
struct MlpShape {
  std::string at;  // "model.layers.3.mlp."
  int width = 0;
  int slices = 1;
  int expert = WeightSource::kNoExpert;
};

class Mapper {
 public:
  Mapper(const ModelSpec& spec, const Checkpoint& checkpoint) : spec_(spec), checkpoint_(checkpoint) {}

  Result<TensorMap> map() {
    index_names();
    if (!status_.ok()) return status_;
    skip_known();
    expect_all();
    if (!status_.ok()) return status_;
    find_orientation();
    for (const auto& [expected, layer] : expected_) take(expected, layer);
    if (!status_.ok()) return status_;
    if (!names_.empty()) return list("unknown tensors", names_);
    return std::move(map_);
  }

 private:
  // Every tensor under its -PT prefix, with its name in the file.
  void index_names() {
    constexpr std::string_view kPaddle = "ernie.";
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      const bool paddle = name.starts_with(kPaddle);
      paddle_prefix_ |= paddle;
      std::string common = paddle ? "model." + name.substr(kPaddle.size()) : name;
      const auto [at, added] = names_.emplace(std::move(common), name);
      if (!added) {
        fail("the tensors '" + at->second + "' and '" + name + "' are the same weight.");
      }
    }
  }

  // Multi-token prediction is for speculation, which answers the same without it; rotation tables follow from
  // rope_theta; a tied head repeats the embedding.
  void skip_known() {
    map_.tied = spec_.tied.value_or(!names_.contains("lm_head.weight"));
    for (auto it = names_.begin(); it != names_.end();) {
      const bool draft = it->first.starts_with("model.mtp_");
      const bool rotation = it->first.ends_with(".rotary_emb.inv_freq");
      const bool copy = map_.tied && it->first == "lm_head.weight";
      if (!draft && !rotation && !copy) {
        ++it;
        continue;
      }
      map_.skipped.push_back(it->second);
      it = names_.erase(it);
    }
  }

  void expect_all() {
    const int hidden = spec_.hidden, q = spec_.q_width(), kv = spec_.kv_width();
    expect(whole("model.embed_tokens.weight", Form::table, Weight::embedding, spec_.vocab, hidden));
    for (layer_ = 0; layer_ < spec_.layers; ++layer_) {
      const std::string at = "model.layers." + std::to_string(layer_) + ".";
      expect(whole(at + "input_layernorm.weight", Form::norm, Weight::input_norm, 1, hidden));
      expect_joined(at + "self_attn.qkv_proj.weight",
                    {whole(at + "self_attn.q_proj.weight", Form::linear, Weight::query, q, hidden),
                     whole(at + "self_attn.k_proj.weight", Form::linear, Weight::key, kv, hidden),
                     whole(at + "self_attn.v_proj.weight", Form::linear, Weight::value, kv, hidden)});
      expect(whole(at + "self_attn.o_proj.weight", Form::linear, Weight::attention_out, hidden, q));
      expect(whole(at + "post_attention_layernorm.weight", Form::norm, Weight::post_norm, 1, hidden));
      if (spec_.moe_layer(layer_)) {
        expect_experts(at + "mlp.");
      } else {
        expect_dense(at + "mlp.");
      }
      if (!status_.ok()) return;
    }
    layer_ = 0;
    expect(whole("model.norm.weight", Form::norm, Weight::final_norm, 1, hidden));
    if (!map_.tied) expect(whole("lm_head.weight", Form::linear, Weight::lm_head, spec_.vocab, hidden));
    if (!missing_.empty()) status_ = list("missing tensors", missing_);
  }

  void expect_dense(const std::string& at) {
    if (const std::string* odd = under({at + "experts.", at + "shared_experts.", at + "moe_statics."})) {
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
      return fail("moe_num_shared_experts is " + std::to_string(spec_.shared_experts) +
                  " (2 when it is missing), " + "and layer " + std::to_string(layer_) + " has none.");
    }
    expect(whole(at + "gate.weight", Form::router, Weight::router, spec_.experts, spec_.hidden));
    const std::string inner = at + "gate.moe_statics.e_score_correction_bias";  // as transformers 5 names it
    const std::string bias = names_.contains(inner) ? inner : at + "moe_statics.e_score_correction_bias";
    expect(whole(bias, Form::bias, Weight::router_bias, 1, spec_.experts));
    if (names_.contains(at + "experts.gate_up_proj")) {
      expect_stacks(at + "experts.");
    } else {
      for (int e = 0; e < spec_.experts; ++e) {
        expect_mlp({.at = at + "experts." + std::to_string(e) + ".",
                    .width = spec_.expert_intermediate,
                    .expert = e});
      }
    }
    if (spec_.shared_experts > 0) {
      expect_mlp({.at = at + "shared_experts.",
                  .width = spec_.expert_intermediate,
                  .slices = spec_.shared_experts,
                  .expert = spec_.experts});
    }
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
      gate.parts.push_back({Weight::gate, mlp.width, hidden, expert, first});
      up.parts.push_back({Weight::up, mlp.width, hidden, expert, first});
      down.parts.push_back({Weight::down, hidden, mlp.width, expert, 0, first});
    }
    expect_joined(mlp.at + "up_gate_proj.weight", {std::move(gate), std::move(up)});
    expect(std::move(down));
  }

  void expect_stacks(const std::string& at) {
    const int hidden = spec_.hidden, width = spec_.expert_intermediate;
    Expected gate_up{at + "gate_up_proj", Form::stack, 2 * width, hidden, {}, spec_.experts};
    Expected down{at + "down_proj", Form::stack, hidden, width, {}, spec_.experts};
    for (int e = 0; e < spec_.experts; ++e) {
      gate_up.parts.push_back({Weight::gate, width, hidden, e, 0, 0, e});
      gate_up.parts.push_back({Weight::up, width, hidden, e, width, 0, e});
      down.parts.push_back({Weight::down, hidden, width, e, 0, 0, e});
    }
    expect(std::move(gate_up));
    expect(std::move(down));
  }

  void expect(Expected expected) {
    if (!names_.contains(expected.name)) missing_.emplace(expected.name, expected.name);
    expected_.emplace_back(std::move(expected), layer_);
  }

  // The tensors, or one of that name that has their outputs one after the other.
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

  // The file's name of the first tensor that begins with one of these; null when there is none.
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

  const FileTensor& tensor(const Expected& expected) const {
    return *checkpoint_.find(names_.find(expected.name)->second);
  }

  void find_orientation() {
    for (const auto& [expected, layer] : expected_) {
      if (!expected.oriented() || expected.outputs == expected.inputs) continue;
      const std::vector<std::int64_t>& shape = tensor(expected).shape;
      for (const bool transposed : {false, true}) {
        if (shape != expected.shape(transposed)) continue;
        map_.transposed = transposed;
        return;
      }
    }
    map_.transposed = paddle_prefix_;  // all square: the dialect is all there is to go by
  }

  void take(const Expected& expected, int layer) {
    const auto named = names_.find(expected.name);
    const FileTensor& tensor = *checkpoint_.find(named->second);
    bool transposed = map_.transposed && expected.oriented();
    if (expected.form == Form::router) {
      transposed =
          expected.outputs == expected.inputs ? map_.transposed : tensor.shape == expected.shape(true);
    }
    const bool flat = expected.form == Form::bias && tensor.shape == std::vector{expected.inputs};
    const std::vector<std::int64_t> shape = expected.shape(transposed);
    if (tensor.shape != shape && !flat) {
      fail("the tensor '" + named->second + "' has the shape " + shape_text(tensor.shape) + "; expected is " +
           shape_text(shape) + ".");
    }
    if (tensor.type != FileType::bf16 && tensor.type != FileType::f16 && tensor.type != FileType::f32) {
      fail("the tensor '" + named->second + "' is " + to_string(tensor.type) +
           "; allowed are BF16, F16 and F32.");
    }
    const std::int64_t stride = transposed ? expected.outputs : expected.inputs;
    for (const Part& part : expected.parts) {
      const std::int64_t within = transposed ? part.first_input * stride + part.first_output
                                             : part.first_output * stride + part.first_input;
      map_.sources.push_back({.weight = part.weight,
                              .layer = layer,
                              .expert = part.expert,
                              .tensor = &tensor,
                              .name = named->second,
                              .first = part.matrix * expected.outputs * expected.inputs + within,
                              .stride = stride,
                              .transposed = transposed,
                              .outputs = part.outputs,
                              .inputs = part.inputs});
    }
    names_.erase(named);
  }

  void fail(const std::string& message) {
    if (status_.ok()) status_ = invalid("The checkpoint does not fit its config.json: " + message);
  }

  static Status list(const std::string& what, const std::map<std::string, std::string>& names) {
    constexpr std::size_t kShown = 5;
    std::string message =
        "The checkpoint does not fit its config.json: " + std::to_string(names.size()) + " " + what;
    std::size_t shown = 0;
    for (const auto& [common, name] : names) {
      if (shown == kShown) return invalid(message + ", …");
      message += (shown++ == 0 ? ": '" : ", '") + name + "'";
    }
    return invalid(message + ".");
  }

  const ModelSpec& spec_;
  const Checkpoint& checkpoint_;
  std::map<std::string, std::string> names_;  // common name → name in the file; what is left is unknown
  std::map<std::string, std::string> missing_;
  std::vector<std::pair<Expected, int>> expected_;  // with its layer
  bool paddle_prefix_ = false;
  int layer_ = 0;  // of what is being expected
  TensorMap map_;
  Status status_;
};

}  // namespace

Result<TensorMap> map_tensors(const ModelSpec& spec, const Checkpoint& checkpoint) {
  return Mapper(spec, checkpoint).map();
}

}  // namespace troupe::model
