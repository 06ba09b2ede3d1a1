#include "model/tensor_map.h"

#include <optional>
#include <set>
#include <span>
#include <string_view>

namespace troupe::model {
namespace {

// A weight as the network needs it: its size, and the tensors it may come from.
struct Part {
  Weight weight;
  int outputs;
  int inputs;
};

// One tensor of the network: a single weight, or several joined by rows.
struct Expected {
  std::string name;         // with the prefix "model."
  std::vector<Part> parts;  // in the order of their rows
  bool linear = true;       // stored [inputs, outputs] in transposed checkpoints

  std::int64_t outputs() const {
    std::int64_t sum = 0;
    for (const Part& part : parts) sum += part.outputs;
    return sum;
  }
  std::int64_t inputs() const { return parts.front().inputs; }
};

Expected norm(std::string name, Weight weight, int width) {
  return {std::move(name), {{weight, 1, width}}, false};
}

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
    const int hidden = spec_.hidden, q = spec_.q_width(), kv = spec_.kv_width(), wide = spec_.intermediate;
    expect({"model.embed_tokens.weight", {{Weight::embedding, spec_.vocab, hidden}}, false}, 0);
    for (int layer = 0; layer < spec_.layers; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      expect(norm(at + "input_layernorm.weight", Weight::input_norm, hidden), layer);
      expect_joined(at + "self_attn.qkv_proj.weight",
                    {{at + "self_attn.q_proj.weight", {{Weight::query, q, hidden}}},
                     {at + "self_attn.k_proj.weight", {{Weight::key, kv, hidden}}},
                     {at + "self_attn.v_proj.weight", {{Weight::value, kv, hidden}}}},
                    layer);
      expect({at + "self_attn.o_proj.weight", {{Weight::attention_out, hidden, q}}}, layer);
      expect(norm(at + "post_attention_layernorm.weight", Weight::post_norm, hidden), layer);
      expect_joined(at + "mlp.up_gate_proj.weight",
                    {{at + "mlp.gate_proj.weight", {{Weight::gate, wide, hidden}}},
                     {at + "mlp.up_proj.weight", {{Weight::up, wide, hidden}}}},
                    layer);
      expect({at + "mlp.down_proj.weight", {{Weight::down, hidden, wide}}}, layer);
    }
    expect(norm("model.norm.weight", Weight::final_norm, hidden), 0);
    if (!map_.tied) expect({"lm_head.weight", {{Weight::lm_head, spec_.vocab, hidden}}}, 0);
    if (!missing_.empty()) status_ = list("missing tensors", missing_);
  }

  void expect(Expected expected, int layer) {
    if (!names_.contains(expected.name)) missing_.emplace(expected.name, expected.name);
    expected_.emplace_back(std::move(expected), layer);
  }

  void expect_joined(const std::string& joined, const std::vector<Expected>& single, int layer) {
    if (!names_.contains(joined)) {
      for (const Expected& e : single) expect(e, layer);
      return;
    }
    Expected all{joined, {}};
    for (const Expected& e : single) all.parts.push_back(e.parts.front());
    expect(std::move(all), layer);
  }

  const FileTensor& tensor(const Expected& expected) const {
    return *checkpoint_.find(names_.find(expected.name)->second);
  }

  void find_orientation() {
    for (const auto& [expected, layer] : expected_) {
      if (!expected.linear || expected.outputs() == expected.inputs()) continue;
      const std::vector<std::int64_t>& shape = tensor(expected).shape;
      const bool torch = shape == std::vector{expected.outputs(), expected.inputs()};
      const bool paddle = shape == std::vector{expected.inputs(), expected.outputs()};
      if (torch || paddle) {
        map_.transposed = paddle;
        return;
      }
    }
    map_.transposed = paddle_prefix_;  // all square: the dialect is all there is to go by
  }

  void take(const Expected& expected, int layer) {
    const auto named = names_.find(expected.name);
    const FileTensor& tensor = *checkpoint_.find(named->second);
    std::vector<std::int64_t> shape{expected.outputs(), expected.inputs()};
    if (expected.linear && map_.transposed) shape = {expected.inputs(), expected.outputs()};
    if (!expected.linear && expected.parts.front().weight != Weight::embedding) shape = {expected.inputs()};
    if (tensor.shape != shape) {
      fail("the tensor '" + named->second + "' has the shape " + shape_text(tensor.shape) + "; expected is " +
           shape_text(shape) + ".");
    }
    if (tensor.type != FileType::bf16 && tensor.type != FileType::f16 && tensor.type != FileType::f32) {
      fail("the tensor '" + named->second + "' is " + to_string(tensor.type) +
           "; allowed are BF16, F16 and F32.");
    }
    std::int64_t first = 0;
    for (const Part& part : expected.parts) {
      map_.sources.push_back({part.weight, layer, &tensor, named->second, first, part.outputs, part.inputs});
      first += part.outputs;
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
  TensorMap map_;
  Status status_;
};

}  // namespace

Result<TensorMap> map_tensors(const ModelSpec& spec, const Checkpoint& checkpoint) {
  return Mapper(spec, checkpoint).map();
}

}  // namespace troupe::model
