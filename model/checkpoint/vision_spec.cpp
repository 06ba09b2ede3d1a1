#include "model/checkpoint/vision_spec.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/patch_grid.h"
#include "kernels/attention.h"
#include "model/checkpoint/spec_reader.h"

namespace troupe::model {
namespace {

using JsonValue = nlohmann::json;

constexpr TokenId kMostId = 1 << 22;

/// A list of one whole number for text and one for vision; a single number counts for both.
std::pair<std::int64_t, std::int64_t> pair_of(SpecReader& config, const char* key) {
  const JsonValue& value = config.at(key);
  if (value.is_number_integer()) return {value.get<std::int64_t>(), value.get<std::int64_t>()};
  const bool fits =
      value.is_array() && value.size() == 2 && value[0].is_number_integer() && value[1].is_number_integer();
  if (fits) return {value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
  config.fail(key,
              "is " + SpecReader::shown(value) + "; allowed is one whole number for text and one for vision");
  return {};
}

/// Layers as "first, last, interval" from a list of "dense" and "sparse".
void read_layer_types(SpecReader& reader, JsonValue& config) {
  constexpr const char* kKey = "mlp_layer_types";
  if (!reader.has(kKey)) return;
  const JsonValue types = reader.at(kKey);
  std::vector<std::size_t> sparse;
  bool fits =
      types.is_array() && config.contains("num_hidden_layers") && config["num_hidden_layers"] == types.size();
  for (std::size_t i = 0; fits && i < types.size(); ++i) {
    if (types[i] == "sparse") sparse.push_back(i);
    fits = types[i] == "sparse" || types[i] == "dense";
  }
  if (!fits || sparse.empty()) {
    return reader.fail(kKey, "is " + SpecReader::shown(types) +
                                 "; allowed is \"dense\" or \"sparse\" for each of num_hidden_layers layers, "
                                 "and at least one that is sparse");
  }
  const std::size_t interval = sparse.size() < 2 ? 1 : sparse[1] - sparse[0];
  bool even = interval == 1 || (sparse.front() + 1) % interval == 0;
  for (std::size_t i = 0; i < sparse.size(); ++i) even = even && sparse[i] == sparse[0] + i * interval;
  if (!even) {
    return reader.fail(kKey, "is " + SpecReader::shown(types) +
                                 "; allowed are sparse layers at an even distance d, each followed by a "
                                 "multiple of d layers in all");
  }
  config["moe_layer_start_index"] = sparse.front();
  config["moe_layer_end_index"] = sparse.back();
  config["moe_layer_interval"] = interval;
}

/// Makes the key's pair one number, that of text. `last`: numbers above it, or below 0, count as it.
Status split_layers(SpecReader& reader, JsonValue& config, const std::string& where, const char* key,
                    std::int64_t last) {
  if (!reader.has(key)) return {};
  const auto [text, vision] = pair_of(reader, key);
  const auto clamped = [last](std::int64_t layer) { return layer < 0 || layer > last ? last : layer; };
  if (reader.status().ok() && clamped(text) != clamped(vision)) {
    return failure(Code::unsupported, where + ": " + key + " is " + SpecReader::shown(reader.at(key)) +
                                          "; layers with experts for one modality alone are not offered.");
  }
  config[key] = text;
  return {};
}

Status split_experts(SpecReader& reader, JsonValue& config, const std::string& where, VisionSpec& vision) {
  read_layer_types(reader, config);
  if (reader.has("moe_num_experts")) {
    const auto [text, seen] = pair_of(reader, "moe_num_experts");
    if (text != seen) {
      reader.fail("moe_num_experts", "is " + SpecReader::shown(reader.at("moe_num_experts")) +
                                         "; text and vision have to have the same number");
    }
    config["moe_num_experts"] = text;
  }
  if (!reader.has("moe_intermediate_size")) {
    reader.fail("moe_intermediate_size", "is missing");
  } else {
    const auto [text, seen] = pair_of(reader, "moe_intermediate_size");
    if (seen < 1 || seen > kMaxWidth) {
      reader.fail("moe_intermediate_size", "is " + SpecReader::shown(reader.at("moe_intermediate_size")) +
                                               "; allowed are whole numbers from 1 to " +
                                               std::to_string(kMaxWidth));
    }
    config["moe_intermediate_size"] = text;
    vision.expert_intermediate = static_cast<int>(seen);
  }
  if (!reader.status().ok()) return reader.status();
  const std::int64_t last = reader.integer("num_hidden_layers", 1, kMaxLayers) - 1;
  for (const char* key : {"moe_layer_start_index", "moe_layer_end_index"}) {
    SpecReader now(config, where);
    if (Status s = split_layers(now, config, where, key, last); !s.ok()) return s;
    if (!now.status().ok()) return now.status();
  }
  return reader.status();
}

void read_tower(SpecReader& config, const std::string& where, VisionSpec& vision) {
  if (!config.has("vision_config") || !config.at("vision_config").is_object()) {
    return config.fail("vision_config", "is missing; it has to be an object that describes the tower");
  }
  const std::string inner = where + ": vision_config";
  SpecReader tower(config.at("vision_config"), inner);
  vision.depth = static_cast<int>(tower.integer("depth", 1, kMaxLayers));
  const char* const width = tower.has("embed_dim") ? "embed_dim" : "hidden_size";
  vision.width = static_cast<int>(tower.integer(width, 4, kMaxWidth / 8));
  if (tower.integer_or("hidden_size", vision.width, 1, kMaxWidth) != vision.width) {
    tower.fail("hidden_size", "is " + SpecReader::shown(tower.at("hidden_size")) +
                                  "; it has to be embed_dim, " + std::to_string(vision.width));
  }
  vision.heads = static_cast<int>(tower.integer("num_heads", 1, kMaxHeads));
  if (tower.status().ok() && (vision.width % vision.heads != 0 || vision.head_dim() % 4 != 0 ||
                              vision.head_dim() > kernels::kMostHeadDim)) {
    tower.fail("num_heads", "is " + std::to_string(vision.heads) + "; it has to cut the width, " +
                                std::to_string(vision.width) + ", into heads of a multiple of 4, at most " +
                                std::to_string(kernels::kMostHeadDim));
  }
  const double ratio = tower.positive_or("mlp_ratio", 4.0);
  const auto derived = static_cast<std::int64_t>(std::llround(std::min(ratio, 64.0) * vision.width));
  vision.intermediate = static_cast<int>(
      tower.integer_or("intermediate_size", std::clamp<std::int64_t>(derived, 1, kMaxWidth), 1, kMaxWidth));
  const auto only = [&](const char* key, std::int64_t value) {
    if (tower.integer_or(key, value, 0, kMaxWidth) == value) return;
    tower.fail(key,
               "is " + SpecReader::shown(tower.at(key)) + "; only " + std::to_string(value) + " is offered");
  };
  only("patch_size", kPatchSide);
  only("in_channels", 3);
  only("spatial_merge_size", kMergeSide);
  only("temporal_merge_size", kMergeFrames);
  const std::string activation = tower.text("hidden_act");
  if (!activation.empty() && activation != "quick_gelu") {
    tower.fail("hidden_act", "is '" + activation + "'; only quick_gelu is offered");
  }
  if (!tower.status().ok()) config.fail("vision_config", "is wrong: " + tower.status().message);
}

void read_merging(SpecReader& config, const VisionSpec& vision) {
  const auto only = [&](const char* key, std::int64_t value) {
    if (config.integer_or(key, value, 0, kMaxWidth) == value) return;
    config.fail(
        key, "is " + SpecReader::shown(config.at(key)) + "; only " + std::to_string(value) + " is offered");
  };
  only("pixel_hidden_size", vision.width);
  only("spatial_conv_size", kMergeSide);
  only("temporal_conv_size", kMergeFrames);
  for (const char* key : {"use_temporal_conv", "rope_3d"}) {
    if (!config.boolean(key).value_or(true)) config.fail(key, "is false; only true is offered");
  }
}

/// How many pairs of a head turn with time: the last of mrope_section, whose first two are equal, or
/// freq_allocation.
int read_temporal_pairs(SpecReader& config) {
  constexpr int kReleased = 20;
  if (config.has("rope_parameters") && config.at("rope_parameters").is_object() &&
      config.at("rope_parameters").contains("mrope_section")) {
    const JsonValue& section = config.at("rope_parameters")["mrope_section"];
    const auto whole = [](const JsonValue& v) { return v.is_number_integer() && v >= 0 && v <= kMaxHeads; };
    const bool fits = section.is_array() && section.size() == 3 && std::ranges::all_of(section, whole) &&
                      section[0] == section[1];
    if (fits) return section[2].get<int>();
    config.fail("rope_parameters", "has mrope_section " + SpecReader::shown(section) +
                                       "; allowed are three whole numbers, the first two equal");
    return 0;
  }
  return static_cast<int>(config.integer_or("freq_allocation", kReleased, 0, kMaxHeads));
}

void read_ids(SpecReader& config, VisionSpec& vision) {
  struct Id {
    const char* key;
    TokenId& id;
    TokenId released;
  };
  const bool nested = config.has("image_token_id");
  vision.patch =
      static_cast<TokenId>(config.integer_or(nested ? "image_token_id" : "im_patch_id", 100'295, 0, kMostId));
  vision.video_patch = static_cast<TokenId>(config.integer_or("video_token_id", vision.patch, 0, kMostId));
  for (const auto& [key, id, released] : {Id{"image_start_token_id", vision.image_start, 101'304},
                                          Id{"image_end_token_id", vision.image_end, 101'305},
                                          Id{"video_start_token_id", vision.video_start, 101'306},
                                          Id{"video_end_token_id", vision.video_end, 101'307}}) {
    id = static_cast<TokenId>(config.integer_or(key, released, 0, kMostId));
  }
}

}  // namespace

Status split_vision(JsonValue& config, const std::string& where, VisionSpec& vision) {
  if (const auto text = config.find("text_config"); text != config.end() && !text->is_null()) {
    if (!text->is_object()) return invalid(where + ": text_config has to be an object.", "text_config");
    JsonValue keys = std::move(*text);
    config.erase("text_config");
    keys.erase("model_type");
    keys.erase("architectures");
    for (auto& [key, value] : keys.items()) {
      if (!value.is_null()) config[key] = std::move(value);
    }
  }
  JsonValue of_text = config;
  SpecReader reader(config, where);
  read_tower(reader, where, vision);
  read_merging(reader, vision);
  vision.temporal_pairs = read_temporal_pairs(reader);
  read_ids(reader, vision);
  if (!reader.status().ok()) return reader.status();
  if (Status s = split_experts(reader, of_text, where, vision); !s.ok()) return s;
  config = std::move(of_text);
  return {};
}

Status check_vision(const VisionSpec& vision, int head_dim, int vocab, const std::string& where) {
  const int pairs = head_dim / 2;
  if (vision.temporal_pairs > pairs || (pairs - vision.temporal_pairs) % 2 != 0) {
    return invalid(where + ": freq_allocation is " + std::to_string(vision.temporal_pairs) +
                       "; allowed are numbers up to head_dim / 2, " + std::to_string(pairs) +
                       ", that leave an even number of pairs for rows and columns.",
                   "freq_allocation");
  }
  struct Id {
    const char* key;
    TokenId id;
  };
  for (const auto& [key, id] :
       {Id{"im_patch_id", vision.patch}, Id{"image_start_token_id", vision.image_start},
        Id{"image_end_token_id", vision.image_end}, Id{"video_start_token_id", vision.video_start},
        Id{"video_end_token_id", vision.video_end}}) {
    if (id < vocab) continue;
    return invalid(where + ": " + key + " is " + std::to_string(id) + "; allowed are ids below vocab_size, " +
                       std::to_string(vocab) + ".",
                   key);
  }
  return {};
}

}  // namespace troupe::model
