// g++ 12 warns of std::regex's own code when it is compiled with sanitizers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "model/checkpoint/stored_quantisation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "kernels/weight_format.h"

namespace troupe::model {
namespace {

using JsonValue = nlohmann::json;

constexpr std::string_view kRegex = "re:";
constexpr const char* kOtherwise = "; use the checkpoint in bfloat16 with --quantization wint8 or wint4";

Status unsupported(const std::string& where, const std::string& what) {
  return failure(Code::unsupported, where + ": quantization_config " + what + kOtherwise + ".");
}

std::string text_of(const JsonValue& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool given(const JsonValue& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

std::string shown(const JsonValue& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? "nothing" : found->dump(-1, ' ', true).substr(0, 60);
}

/// Methods other than compressed-tensors, each with its own sentence.
Status check_method(const JsonValue& config, const std::string& where) {
  const std::string method = text_of(config, "quant_method");
  if (method == "compressed-tensors" || method == "fp8") return {};
  if (method == "awq" || method == "gptq") {
    return unsupported(where, "says quant_method " + method +
                                  ", which is not read; of quantised checkpoints "
                                  "compressed-tensors (pack-quantized) and fp8 are");
  }
  return unsupported(where,
                     "says quant_method " + shown(config, "quant_method") +
                         "; of quantised checkpoints compressed-tensors (pack-quantized) and fp8 are read");
}

Result<StoredFormat> read_weights(const JsonValue& weights, const std::string& where) {
  const auto refuse = [&](const char* key, const char* allowed) {
    return unsupported(where, std::string("has weights with ") + key + " " + shown(weights, key) + ", " +
                                  allowed + " is read");
  };
  const auto number = [&](const char* key) {
    const auto found = weights.find(key);
    return found != weights.end() && found->is_number_integer() ? found->get<int>() : 0;
  };
  StoredFormat format{.bits = number("num_bits")};
  if (text_of(weights, "type") != "int") return refuse("type", "\"int\"");
  if (format.bits != 4 && format.bits != 8) return refuse("num_bits", "4 or 8");
  if (!weights.contains("symmetric") || weights["symmetric"] != JsonValue(true))
    return refuse("symmetric", "true");
  if (given(weights, "actorder") && text_of(weights, "actorder") != "static")
    return refuse("actorder", "null");
  const std::string strategy = text_of(weights, "strategy");
  if (strategy == "group") {
    format.group = number("group_size");
    if (format.group < 1) return refuse("group_size", "32, 64 or 128");
  } else if (strategy != "channel") {
    return refuse("strategy", "\"channel\" or \"group\"");
  }
  return format;
}

bool matches(const std::string& target, const std::string& module) {
  if (target == "Linear" || target == module) return true;
  if (!target.starts_with(kRegex)) return false;
  // From the name's beginning, as Python's re.match.
  return std::regex_search(module, std::regex(target.substr(kRegex.size())),
                           std::regex_constants::match_continuous);
}

Result<std::vector<std::string>> read_names(const JsonValue& list, const char* key,
                                            const std::string& where) {
  std::vector<std::string> names;
  for (const JsonValue& name : list.is_array() ? list : JsonValue::array({list})) {
    if (!name.is_string() || name.get_ref<const std::string&>().size() > 200) {
      return invalid(where + ": quantization_config has a list " + key +
                     " with something that is not a name.");
    }
    names.push_back(name.get<std::string>());
    if (!names.back().starts_with(kRegex)) continue;
    try {
      const std::regex compiled(names.back().substr(kRegex.size()));
    } catch (const std::regex_error&) {
      return invalid(where + ": quantization_config has the wrong regular expression " + names.back() + ".");
    }
  }
  return names;
}

/// True if `part` is the module, or one that the module lies in, by its whole name or by its last names:
/// "lm_head", "model.layers.0.mlp", "mlp.gate".
bool lies_in(const std::string& module, const std::string& part) {
  const std::string dotted = "." + module + ".";
  return dotted.find("." + part + ".") != std::string::npos;
}

}  // namespace

Result<StoredQuantisation> StoredQuantisation::parse_fp8(const std::string& json, const std::string& where) {
  const JsonValue config = JsonValue::parse(json);
  const JsonValue blocks = JsonValue::array({kernels::kFp8Block, kernels::kFp8Block});
  if (!given(config, "weight_block_size") || config["weight_block_size"] != blocks) {
    return unsupported(where, "says fp8 with weight_block_size " + shown(config, "weight_block_size") + ", " +
                                  blocks.dump() + " is read");
  }
  for (const auto& [key, read] : {std::pair{"fmt", "e4m3"}, std::pair{"activation_scheme", "dynamic"}}) {
    if (given(config, key) && text_of(config, key) != read)
      return unsupported(
          where, std::string("says fp8 with ") + key + " " + shown(config, key) + ", " + read + " is read");
  }
  StoredQuantisation stored;
  stored.groups_.push_back({{"Linear"}, {.bits = 8, .fp8 = true}});
  stored.parts_ = {"lm_head"};  // whatever the lists say
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    if (!given(config, key)) continue;
    Result<std::vector<std::string>> names = read_names(config[key], key, where);
    if (!names) return names.status();
    for (std::string& name : *names) stored.parts_.push_back(std::move(name));
  }
  return stored;
}

Result<StoredQuantisation> StoredQuantisation::parse(std::string_view json, const std::string& where) {
  const JsonValue config = JsonValue::parse(json, nullptr, false);
  if (!config.is_object()) return invalid(where + ": quantization_config has to be an object.");
  if (!config.contains("quant_method") && !text_of(config, "quantization").empty()) {
    Result<PaddleQuantisation> paddle = PaddleQuantisation::parse(config, where);
    if (!paddle) return paddle.status();
    StoredQuantisation stored;
    stored.paddle_ = std::move(*paddle);
    return stored;
  }
  if (Status s = check_method(config, where); !s.ok()) return s;
  if (text_of(config, "quant_method") == "fp8") return parse_fp8(std::string(json), where);
  if (text_of(config, "format") != "pack-quantized") {
    return unsupported(where, "has the format " + shown(config, "format") +
                                  "; of compressed-tensors pack-quantized is read");
  }
  if (given(config, "kv_cache_scheme")) {
    return unsupported(where, "has a kv_cache_scheme; --kv-cache-dtype makes its own scales");
  }
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object() || groups->empty()) {
    return invalid(where + ": quantization_config has no config_groups.");
  }
  StoredQuantisation stored;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object() ||
        !group.contains("targets")) {
      return invalid(where + ": quantization_config has the group " + name.substr(0, 40) +
                     " without targets or weights.");
    }
    for (const char* key : {"input_activations", "output_activations"}) {
      if (given(group, key)) return unsupported(where, std::string("has quantised ") + key);
    }
    const Result<StoredFormat> format = read_weights(group["weights"], where);
    if (!format) return format.status();
    Result<std::vector<std::string>> targets = read_names(group["targets"], "targets", where);
    if (!targets) return targets.status();
    stored.groups_.push_back({std::move(*targets), *format});
  }
  if (given(config, "ignore")) {
    Result<std::vector<std::string>> ignore = read_names(config["ignore"], "ignore", where);
    if (!ignore) return ignore.status();
    stored.ignore_ = std::move(*ignore);
  }
  return stored;
}

std::optional<StoredFormat> StoredQuantisation::of(const std::string& module) const {
  if (paddle_) return paddle_->of(module);
  const auto names_it = [&](const std::string& target) { return matches(target, module); };
  if (std::ranges::any_of(ignore_, names_it)) return std::nullopt;
  if (std::ranges::any_of(parts_, [&](const std::string& part) { return lies_in(module, part); }))
    return std::nullopt;
  // A group that names the module goes before one for all linears.
  const Group* found = nullptr;
  for (const Group& group : groups_) {
    if (!std::ranges::any_of(group.targets, names_it)) continue;
    const bool general = std::ranges::count(group.targets, "Linear") > 0;
    if (found == nullptr || !general) found = &group;
  }
  return found == nullptr ? std::nullopt : std::optional(found->format);
}

}  // namespace troupe::model
