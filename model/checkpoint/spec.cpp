#include "model/checkpoint/spec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>

#include "config/json_file.h"
#include "kernels/attention.h"
#include "kernels/moe.h"
#include "model/checkpoint/spec_reader.h"
#include "model/vision/vision_weights.h"

namespace troupe::model {
namespace {

using JsonValue = nlohmann::json;

constexpr std::int64_t kMaxHeadDim = kernels::kMostHeadDim;
constexpr std::int64_t kMaxVocab = 1 << 22;
constexpr std::int64_t kMaxPositions = 1 << 24;

// The models of the family, recognised by class name, otherwise by model_type.
enum class Family { dense, moe, vision, other };

Family family_of(const std::string& model_type, const std::string& architecture) {
  if (architecture == "Ernie4_5ForCausalLM" || architecture == "Ernie4_5_ForCausalLM") return Family::dense;
  if (architecture == "Ernie4_5_MoeForCausalLM") return Family::moe;
  for (const char* name :
       {"Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VL_MoeForConditionalGeneration"}) {
    if (architecture == name) return Family::vision;
  }
  for (const char* name : {"ernie4_5_moe_vl", "ernie4_5_vl_moe"}) {
    if (model_type == name) return Family::vision;
  }
  if (!architecture.empty()) return Family::other;
  if (model_type == "ernie4_5") return Family::dense;
  return model_type == "ernie4_5_moe" ? Family::moe : Family::other;
}

std::string first_architecture(SpecReader& config) {
  if (!config.has("architectures")) return {};
  const JsonValue& list = config.at("architectures");
  if (list.is_array() && !list.empty() && list[0].is_string()) return list[0].get<std::string>();
  config.fail("architectures", "is " + SpecReader::shown(list) + "; it has to be a list of class names");
  return {};
}

Result<Family> read_family(SpecReader& config, const std::string& where, std::string& architecture) {
  architecture = first_architecture(config);
  const std::string model_type = config.text("model_type");
  if (!config.status().ok()) return config.status();
  const Family family = family_of(model_type, architecture);
  switch (family) {
    case Family::dense:
      if (architecture.empty()) architecture = "Ernie4_5ForCausalLM";
      return family;
    case Family::moe: architecture = "Ernie4_5_MoeForCausalLM"; return family;
    case Family::vision: architecture = "Ernie4_5_VLMoeForConditionalGeneration"; return family;
    case Family::other: break;
  }
  return invalid(
      where + ": model_type " + (model_type.empty() ? "(none)" : "'" + model_type + "'") + ", architecture " +
          (architecture.empty() ? "(none)" : "'" + architecture + "'") +
          " is not an ERNIE-4.5 model; allowed are Ernie4_5ForCausalLM, Ernie4_5_MoeForCausalLM and "
          "Ernie4_5_VLMoeForConditionalGeneration.",
      "architectures");
}

// Settings that change the arithmetic in a way this decoder does not implement.
void check_arithmetic(SpecReader& config) {
  if (config.boolean("use_bias").value_or(false)) config.fail("use_bias", "is true; only false is offered");
  if (config.positive_or("compression_ratio", 1.0) != 1.0) {
    config.fail("compression_ratio",
                "is " + SpecReader::shown(config.at("compression_ratio")) + "; only 1.0 is offered");
  }
  const std::string activation = config.text("hidden_act");
  if (!activation.empty() && activation != "silu") {
    config.fail("hidden_act", "is '" + activation + "'; only silu is offered");
  }
}

// The same for the router. All published checkpoints select by corrected probabilities and have weights that
// sum to 1; moe_capacity limits nothing outside of training.
void check_routing(SpecReader& config) {
  const std::string gate = config.text("moe_gate");
  if (!gate.empty() && gate != "topk") config.fail("moe_gate", "is '" + gate + "'; only topk is offered");
  for (const char* key : {"moe_use_aux_free", "norm_gate_logits"}) {
    if (!config.boolean(key).value_or(true)) config.fail(key, "is false; only true is offered");
  }
  constexpr double kNormMin = 1e-12;
  if (config.positive_or("moe_norm_min", kNormMin) != kNormMin) {
    config.fail("moe_norm_min",
                "is " + SpecReader::shown(config.at("moe_norm_min")) + "; only 1e-12 is offered");
  }
}

// Shared experts of a config.json that does not count them: as many as their tensors are wide.
void count_shared(SpecReader& config, const ExpertTensors& tensors, ModelSpec& spec) {
  const std::int64_t width = tensors.shared_width, each = std::max(spec.expert_intermediate, 1);
  spec.shared_experts = static_cast<int>(std::min<std::int64_t>(width / each, kernels::kMostExperts));
  if (width != each * spec.shared_experts) {
    config.fail("moe_num_shared_experts", "is missing, and the tensors of the shared experts are " +
                                              std::to_string(width) + " wide; that has to be a multiple of " +
                                              "moe_intermediate_size, " + std::to_string(each) +
                                              ", of at most " + std::to_string(kernels::kMostExperts));
  }
}

Status read_experts(SpecReader& config, const std::string& where, const FindExpertTensors& find,
                    ModelSpec& spec) {
  for (const char* key : {"moe_num_experts", "moe_k", "moe_intermediate_size", "moe_num_shared_experts",
                          "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"}) {
    if (config.has(key) && config.at(key).is_array()) {
      return failure(Code::unsupported, where + ": " + key + " is " + SpecReader::shown(config.at(key)) +
                                            "; allowed is one number: experts per modality are those of " +
                                            "vision-language models.");
    }
  }
  check_routing(config);
  spec.experts = static_cast<int>(config.integer("moe_num_experts", 1, kernels::kMostExperts));
  spec.top_k = static_cast<int>(config.integer("moe_k", 1, std::min(spec.experts, kernels::kMostChosen)));
  spec.expert_intermediate = static_cast<int>(config.integer("moe_intermediate_size", 1, kMaxWidth));
  if (!config.status().ok()) return config.status();
  ExpertTensors tensors;
  const auto is_missing = [&config](const char* key) { return !config.has(key); };
  const bool incomplete = std::ranges::any_of(std::array{"moe_num_shared_experts", "moe_layer_start_index",
                                                         "moe_layer_end_index", "moe_layer_interval"},
                                              is_missing);
  if (incomplete && find) {
    Result<ExpertTensors> found = find(spec.hidden);
    if (!found) return found.status();
    tensors = *std::move(found);
    std::erase_if(tensors.layers, [&spec](int layer) { return layer >= spec.layers; });
  }
  const std::vector<int>& layers = tensors.layers;
  const int start = layers.empty() ? 1 : layers.front();
  const int interval = layers.size() < 2 ? 1 : layers[1] - layers[0];
  if (is_missing("moe_num_shared_experts")) {
    count_shared(config, tensors, spec);
  } else {
    spec.shared_experts =
        static_cast<int>(config.integer("moe_num_shared_experts", 0, kernels::kMostExperts));
  }
  spec.moe_start = static_cast<int>(config.integer_or("moe_layer_start_index", start, 0, kMaxLayers));
  spec.moe_interval = static_cast<int>(config.integer_or("moe_layer_interval", interval, 1, kMaxLayers));
  const std::int64_t end =
      config.integer_or("moe_layer_end_index", layers.empty() ? -1 : layers.back(), -1, kMaxLayers);
  const std::int64_t last = spec.layers - 1;
  spec.moe_end = static_cast<int>(end < 0 ? last : std::min(end, last));
  if (config.status().ok() && spec.moe_layers() == 0) {
    config.fail("moe_layer_start_index",
                "is " + std::to_string(spec.moe_start) + ", and with moe_layer_end_index " +
                    std::to_string(end) + ", moe_layer_interval " + std::to_string(spec.moe_interval) +
                    " and num_hidden_layers " + std::to_string(spec.layers) + " no layer has experts");
  }
  return config.status();
}

double rope_theta(SpecReader& config, const std::string& where) {
  constexpr double kFamilyDefault = 500000.0;
  const double flat = config.positive_or("rope_theta", kFamilyDefault);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    if (!config.at(key).is_object()) {
      config.fail(key, "is " + SpecReader::shown(config.at(key)) + "; it has to be an object");
      return flat;
    }
    const std::string inner = where + ": " + key;
    SpecReader rope(config.at(key), inner);
    const std::string type = rope.has("rope_type") ? rope.text("rope_type") : rope.text("type");
    const double theta = rope.positive_or("rope_theta", flat);
    if (!rope.status().ok()) return config.fail(key, "is wrong: " + rope.status().message), flat;
    if (!type.empty() && type != "default") {
      config.fail(key, "has rope_type '" + type + "'; only default is offered");
    }
    return theta;
  }
  return flat;
}

std::optional<DType> stored_type(SpecReader& config) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = config.text(key);
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "float32") return DType::f32;
  config.fail(key, "is '" + name + "'; allowed are bfloat16, float16 and float32");
  return std::nullopt;
}

std::vector<TokenId> eos_ids(SpecReader& config, int vocab) {
  std::vector<TokenId> ids;
  if (!config.has("eos_token_id")) return ids;
  const JsonValue& value = config.at("eos_token_id");
  const JsonValue list = value.is_array() ? value : JsonValue::array({value});
  for (const JsonValue& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab || ids.size() == 64) {
      config.fail("eos_token_id", "is " + SpecReader::shown(value) + "; allowed are up to 64 ids below " +
                                      std::to_string(vocab));
      return {};
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace

std::int64_t ModelSpec::kv_bytes_per_token(DType type) const {
  return std::int64_t{2} * kv_layers() * kv_width() * static_cast<std::int64_t>(size_of(type));
}

int ModelSpec::moe_layers() const {
  int count = 0;
  for (int layer = 0; layer < layers; ++layer) count += moe_layer(layer) ? 1 : 0;
  return count;
}

namespace {

// Counts `taken` of each layer's experts.
std::int64_t count_parameters(const ModelSpec& spec, int taken) {
  const std::int64_t h = spec.hidden;
  const std::int64_t attention = 2 * h * spec.q_width() + 2 * h * spec.kv_width();
  const std::int64_t mlp = 3 * h * spec.intermediate;
  const std::int64_t router = (h + 1) * spec.experts;  // and its bias
  const std::int64_t moe = router + 3 * h * spec.expert_intermediate * (taken + spec.shared_experts);
  const std::int64_t tables = (spec.tied.value_or(true) ? 1 : 2) * h * spec.vocab;
  const std::int64_t moe_layers = spec.moe_layers();
  const std::int64_t draft = spec.draft_layers * (attention + mlp + 2 * h * h + 4 * h);
  return tables + spec.layers * (attention + 2 * h) + (spec.layers - moe_layers) * mlp + moe_layers * moe +
         h + draft;
}

}  // namespace

std::int64_t ModelSpec::parameters() const {
  std::int64_t count = count_parameters(*this, experts);
  if (vision) {
    const std::int64_t expert =
        std::int64_t{3} * hidden * vision->expert_intermediate + hidden + 1;  // and its router
    count += vision_parameters(*vision, hidden) + moe_layers() * experts * expert;
  }
  return count;
}

std::int64_t ModelSpec::active_parameters() const { return count_parameters(*this, top_k); }

Result<ModelSpec> parse_spec(std::string_view text, const std::string& where, const FindExpertTensors& find) {
  Result<JsonValue> json = config::parse_json_object(text, where);
  if (!json) return json.status();
  ModelSpec spec;
  SpecReader whole(*json, where);
  const Result<Family> family = read_family(whole, where, spec.architecture);
  if (!family) return family.status();
  if (*family == Family::vision) {
    if (Status s = split_vision(*json, where, spec.vision.emplace()); !s.ok()) return s;
  }
  SpecReader config(*json, where);
  check_arithmetic(config);
  spec.vocab = static_cast<int>(config.integer("vocab_size", 1, kMaxVocab));
  spec.hidden = static_cast<int>(config.integer("hidden_size", 1, kMaxWidth));
  spec.intermediate = static_cast<int>(config.integer("intermediate_size", 1, kMaxWidth));
  spec.layers = static_cast<int>(config.integer("num_hidden_layers", 1, kMaxLayers));
  spec.heads = static_cast<int>(config.integer("num_attention_heads", 1, kMaxHeads));
  spec.kv_heads = static_cast<int>(config.integer_or("num_key_value_heads", spec.heads, 1, kMaxHeads));
  spec.max_positions =
      static_cast<int>(config.integer_or("max_position_embeddings", 131072, 1, kMaxPositions));
  if (!config.status().ok()) return config.status();

  if (spec.heads % spec.kv_heads != 0) {
    config.fail("num_attention_heads", "is " + std::to_string(spec.heads) +
                                           "; it has to be a multiple of num_key_value_heads, " +
                                           std::to_string(spec.kv_heads));
  }
  if (spec.heads / spec.kv_heads > kernels::kMostGroup) {
    config.fail("num_attention_heads", "is " + std::to_string(spec.heads) + "; allowed are up to " +
                                           std::to_string(kernels::kMostGroup) +
                                           " times num_key_value_heads, " + std::to_string(spec.kv_heads));
  }
  if (config.has("head_dim")) {
    spec.head_dim = static_cast<int>(config.integer("head_dim", 2, kMaxHeadDim));
  } else if (spec.hidden % spec.heads == 0 && spec.hidden / spec.heads <= kMaxHeadDim) {
    spec.head_dim = spec.hidden / spec.heads;
  } else {
    config.fail("head_dim", "is missing, and hidden_size " + std::to_string(spec.hidden) +
                                " does not divide into " + std::to_string(spec.heads) + " heads of at most " +
                                std::to_string(kMaxHeadDim));
  }
  if (spec.head_dim % 2 != 0) {
    config.fail("head_dim", "is " + std::to_string(spec.head_dim) + "; rotation needs an even one");
  }
  if (!config.status().ok()) return config.status();
  if (spec.vision) {
    if (Status s = check_vision(*spec.vision, spec.head_dim, spec.vocab, where); !s.ok()) return s;
  }
  if (*family != Family::dense) {
    if (Status s = read_experts(config, where, find, spec); !s.ok()) return s;
  }
  spec.rope_theta = static_cast<float>(rope_theta(config, where));
  spec.rms_norm_eps = static_cast<float>(config.positive_or("rms_norm_eps", 1e-5));
  spec.initializer_range = static_cast<float>(config.positive_or("initializer_range", 0.02));
  spec.tied = config.boolean("tie_word_embeddings");
  spec.stored = stored_type(config);
  spec.eos_ids = eos_ids(config, spec.vocab);
  spec.nextn_layers = static_cast<int>(config.integer_or("num_nextn_predict_layers", 0, 0, kMaxLayers));
  if (!config.status().ok()) return config.status();
  if (config.has("quantization_config")) {
    Result<StoredQuantisation> stored =
        StoredQuantisation::parse(config.at("quantization_config").dump(), where);
    if (!stored) return stored.status();
    spec.stored_quantisation = std::move(*stored);
  }
  return spec;
}

Result<ModelSpec> read_spec(const std::filesystem::path& directory, const std::string& config_name) {
  const std::filesystem::path file = directory / config_name;
  Result<std::string> text = config::read_small_file(file);
  if (!text) return text.status();
  return parse_spec(*text, file.string(), [&](int hidden) { return find_expert_tensors(directory, hidden); });
}

std::uint64_t spec_hash(const ModelSpec& spec) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (value >> (8 * byte) & 0xff)) * 0x100000001b3u;
    }
  };
  for (const int value :
       {spec.vocab, spec.hidden, spec.intermediate, spec.layers, spec.heads, spec.kv_heads, spec.head_dim,
        spec.max_positions, spec.experts, spec.top_k, spec.expert_intermediate, spec.shared_experts}) {
    mix(static_cast<std::uint64_t>(value));
  }
  for (int layer = 0; layer < spec.layers; ++layer) mix(spec.moe_layer(layer) ? 1 : 0);
  mix(std::bit_cast<std::uint32_t>(spec.rope_theta));
  mix(std::bit_cast<std::uint32_t>(spec.rms_norm_eps));
  if (spec.vision) {
    const VisionSpec& v = *spec.vision;
    for (const int value :
         {v.depth, v.width, v.heads, v.intermediate, v.expert_intermediate, v.temporal_pairs, v.patch,
          v.video_patch, v.image_start, v.image_end, v.video_start, v.video_end}) {
      mix(static_cast<std::uint64_t>(value));
    }
  }
  mix(spec.tied ? 1 + std::uint64_t{*spec.tied} : 0);
  mix(spec.stored ? 1 + static_cast<std::uint64_t>(*spec.stored) : 0);
  if (spec.stored_quantisation) {
    std::vector<std::string> modules = linear_modules(spec);
    for (int layer = 0; layer < spec.layers; ++layer) {
      if (spec.moe_layer(layer)) modules.push_back(expert_module(layer));
    }
    if (spec.shared_experts > 0) modules.push_back(shared_module(0));
    for (const std::string& module : modules) {
      const std::optional<StoredFormat> stored = spec.stored_quantisation->of(module);
      mix(stored
              ? (stored->fp8 ? 1ull << 63 : 0) | static_cast<std::uint64_t>(stored->order) << 40 |
                    static_cast<std::uint64_t>(stored->bits) << 32 | static_cast<std::uint32_t>(stored->group)
              : 1);
    }
    mix(spec.stored_quantisation->static_kv() ? 1 : 0);
  }
  return hash;
}

std::string expert_module(int layer) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts.0.up_proj";
}

std::string shared_module(int layer) {
  return "model.layers." + std::to_string(layer) + ".mlp.shared_experts.up_proj";
}

std::vector<std::string> linear_modules(const ModelSpec& spec) {
  int dense = -1, mixture = -1;
  for (int layer = spec.layers - 1; layer >= 0; --layer) (spec.moe_layer(layer) ? mixture : dense) = layer;
  return {"model.layers.0.self_attn.q_proj",
          dense < 0 ? std::string() : "model.layers." + std::to_string(dense) + ".mlp.up_proj",
          mixture < 0 ? std::string() : expert_module(mixture), "lm_head"};
}

}  // namespace troupe::model
