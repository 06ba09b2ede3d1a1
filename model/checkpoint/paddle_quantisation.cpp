#include "model/checkpoint/paddle_quantisation.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/moe.h"

namespace troupe::model {
namespace {

using JsonValue = nlohmann::json;

constexpr const char* kExpertTypes = "wint8, wint4, wint2 and w4a8";

class ConfigReader {
 public:
  ConfigReader(const JsonValue& config, const std::string& where) : config_(config), where_(where) {}

  Result<PaddleQuantisation> read() {
    PaddleQuantisation made;
    const std::string method = text(config_, "quantization");
    if (method == "wint2.5") type_of("quantization", method, true);  // of which no checkpoint is known
    const bool mixed = config_.contains("dense_quant_type") || config_.contains("moe_quant_type");
    if (mixed) {
      made.dense = type_of("dense_quant_type", text(config_, "dense_quant_type"), false);
      if (const auto found = config_.find("moe_quant_config"); found != config_.end() && found->is_object())
        read_ranges(*found, made);
      else
        made.experts = type_of("moe_quant_type", text(config_, "moe_quant_type"), true);
    } else {
      made.experts = type_of("quantization", method, true);
      // FastDeploy keeps 8 bits outside of the experts.
      made.dense = StoredFormat{.bits = 8, .order = CodeOrder::paddle};
    }
    made.shared_experts = made.dense;
    if (const std::string shared = text(config_, "shared_experts_quant_type"); !shared.empty())
      made.shared_experts = type_of("shared_experts_quant_type", shared, true);
    read_kv(made);
    if (!status_.ok()) return status_;
    return made;
  }

 private:
  static std::string text(const JsonValue& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  }

  void refuse(const std::string& what) {
    if (status_.ok())
      status_ = failure(Code::unsupported, where_ + ": quantization_config " + what +
                                               "; use the checkpoint in bfloat16 with --quantization wint8 "
                                               "or wint4.");
  }

  /// Empty: not quantised.
  std::optional<StoredFormat> type_of(const char* key, const std::string& type, bool experts) {
    if (type.empty()) return std::nullopt;
    if (type == "wint8") return StoredFormat{.bits = 8, .order = CodeOrder::paddle};
    if (type == "wint4") return StoredFormat{.bits = 4, .order = CodeOrder::paddle};
    if (type == "wint2" && experts) return StoredFormat{.bits = 2, .order = CodeOrder::wint2};
    if (type == "w4a8" && experts) return w4a8();
    refuse(std::string("says ") + key + " " + type.substr(0, 40) + "; of a checkpoint quantised by Paddle " +
           (experts ? kExpertTypes : "wint8 and wint4") + (experts ? " experts" : " linears") + " are read");
    return std::nullopt;
  }

  StoredFormat w4a8() {
    const auto permuted = config_.find("is_permuted");
    const bool kernel_order = permuted == config_.end() || !permuted->is_boolean() || permuted->get<bool>();
    const auto block = config_.find("hadamard_block_size");
    if (block != config_.end() && !block->is_null() && *block != JsonValue(kernels::kHadamardBlock)) {
      refuse("says hadamard_block_size " + block->dump(-1, ' ', true).substr(0, 40) + ", 128 is read");
    }
    return {.bits = 4, .order = kernel_order ? CodeOrder::paddle_w4a8 : CodeOrder::paddle_w4a8_rows};
  }

  // Two ranges of layers. The end of the first decides, as in FastDeploy.
  void read_ranges(const JsonValue& ranges, PaddleQuantisation& made) {
    const JsonValue *early = nullptr, *late = nullptr;
    for (const auto& [name, range] : ranges.items()) {
      if (!range.is_object())
        return refuse("has a moe_quant_config with " + name.substr(0, 40) + " that is no object");
      const auto start = range.find("quant_start_layer");
      const bool first = start != range.end() && *start == JsonValue(0);
      (first || name == "moe_w4_quant_config" ? early : late) = &range;
    }
    if (early != nullptr) {
      made.early_experts = type_of("quant_type", text(*early, "quant_type"), true);
      const auto end = early->find("quant_end_layer");
      if (end == early->end() || !end->is_number_integer() || *end < 0 || *end > 100'000)
        return refuse("has no quant_end_layer of the layers whose experts have " +
                      text(*early, "quant_type"));
      made.early_layers = end->get<int>() + 1;
    }
    if (late == nullptr) return refuse("has a moe_quant_config without the experts of its last layers");
    made.experts = type_of("quant_type", text(*late, "quant_type"), true);
  }

  void read_kv(PaddleQuantisation& made) {
    const std::string type = text(config_, "kv_cache_quant_type");
    if (type.empty()) return;
    made.static_kv = type == "int8";
    if (!made.static_kv) refuse("says kv_cache_quant_type " + type.substr(0, 40) + ", int8 is read");
  }

  const JsonValue& config_;
  const std::string& where_;
  Status status_;
};

/// The layer of "model.layers.7.…"; -1 elsewhere.
int layer_of(std::string_view module) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!module.starts_with(kLayers)) return -1;
  module.remove_prefix(kLayers.size());
  int layer = -1;
  std::from_chars(module.data(), module.data() + module.size(), layer);
  return layer;
}

}  // namespace

Result<PaddleQuantisation> PaddleQuantisation::parse(const nlohmann::json& config, const std::string& where) {
  return ConfigReader(config, where).read();
}

std::optional<StoredFormat> PaddleQuantisation::of(const std::string& module) const {
  const int layer = layer_of(module);
  if (layer < 0) return std::nullopt;  // the head, the draft layer
  if (module.find(".mlp.shared_experts.") != std::string::npos) return shared_experts;
  if (module.find(".mlp.experts.") == std::string::npos) return dense;
  return layer < early_layers ? early_experts : experts;
}

}  // namespace troupe::model
