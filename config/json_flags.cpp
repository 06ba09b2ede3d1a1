#include "config/json_flags.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/media_rules.h"
#include "config/nearest.h"

namespace troupe::config {
namespace {

using JsonValue = nlohmann::json;

enum class JsonType { boolean, integer, number, text, text_or_object, integers, texts };

struct Key {
  const char* name;
  JsonType type;
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  std::vector<std::string_view> allowed = {};
};

constexpr std::size_t kMaxText = 64 << 10;  // options are written by hand
constexpr int kMaxJsonDepth = 16;

/// The object, or nothing. Depth is bounded before the parser recurses. A key that an object has twice is
/// left in `twice`; the last value counts.
std::optional<JsonValue> parse_object(std::string_view text, std::string* twice = nullptr) {
  if (text.size() > kMaxText) return std::nullopt;
  bool too_deep = false;
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto guard = [&](int depth, JsonValue::parse_event_t event, JsonValue& value) {
    too_deep = too_deep || depth > kMaxJsonDepth;
    if (event == JsonValue::parse_event_t::object_start) keys.emplace_back();
    if (event == JsonValue::parse_event_t::object_end) keys.pop_back();
    if (event == JsonValue::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second &&
        twice != nullptr) {
      *twice = value.get<std::string>();
    }
    return !too_deep;
  };
  JsonValue value = JsonValue::parse(text, guard, false);
  if (too_deep || !value.is_object()) return std::nullopt;
  return value;
}

Status not_an_object(std::string_view text) {
  return invalid("got \"" + std::string(text.substr(0, 80)) +
                 "\", expected a JSON object such as {\"key\": 1}");
}

Result<JsonValue> read_object(std::string_view text) {
  std::string twice;
  std::optional<JsonValue> object = parse_object(text, &twice);
  if (!object) return not_an_object(text);
  if (!twice.empty())
    return invalid("the key \"" + twice.substr(0, 80) + "\" is given twice", {}, "duplicate_key");
  return *std::move(object);
}

bool in_range(const JsonValue& value, const Key& key) {
  const double number = value.get<double>();
  return number >= key.min && number <= key.max;
}

bool matches(const JsonValue& value, const Key& key) {
  const auto all_of = [&](auto&& test) {
    return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), test);
  };
  switch (key.type) {
    case JsonType::boolean: return value.is_boolean();
    case JsonType::integer: return value.is_number_integer() && in_range(value, key);
    case JsonType::number: return value.is_number() && in_range(value, key);
    case JsonType::text:
      return value.is_string() && (key.allowed.empty() ||
                                   std::ranges::count(key.allowed, value.get_ref<const std::string&>()) > 0);
    case JsonType::text_or_object: return value.is_string() || value.is_object();
    case JsonType::integers:
      return all_of([&](const JsonValue& v) { return v.is_number_integer() && in_range(v, key); });
    case JsonType::texts:
      return value.is_array() && std::ranges::all_of(value, [](auto& v) { return v.is_string(); });
  }
  return false;
}

std::string bounds(const Key& key) {
  const auto show = [](double x) {
    return JsonValue(x == static_cast<long>(x) ? JsonValue(static_cast<long>(x)) : JsonValue(x)).dump();
  };
  std::string out;
  if (key.min > std::numeric_limits<double>::lowest()) out += " of at least " + show(key.min);
  if (key.max < std::numeric_limits<double>::max())
    out += (out.empty() ? " of at most " : " and at most ") + show(key.max);
  return out;
}

std::string expected(const Key& key) {
  switch (key.type) {
    case JsonType::boolean: return "true or false";
    case JsonType::integer: return "a whole number" + bounds(key);
    case JsonType::number: return "a number" + bounds(key);
    case JsonType::text: {
      std::string out = key.allowed.empty() ? "a text" : "";
      for (std::string_view word : key.allowed) out += (out.empty() ? "" : " or ") + std::string(word);
      return out;
    }
    case JsonType::text_or_object: return "a text or an object";
    case JsonType::integers: return "a list, not empty, of whole numbers" + bounds(key);
    case JsonType::texts: return "a list of texts";
  }
  return {};
}

Status check_keys(std::string_view text, const std::vector<Key>& keys) {
  const auto object = read_object(text);
  if (!object) return object.status();
  for (const auto& [name, value] : object->items()) {
    const auto key = std::ranges::find_if(keys, [&](const Key& k) { return name == k.name; });
    if (key == keys.end()) {
      std::vector<std::string_view> names;
      for (const Key& k : keys) names.emplace_back(k.name);
      return invalid("unknown key \"" + name + "\"" + did_you_mean(name, names));
    }
    if (value.is_null()) continue;  // null means the default
    if (!matches(value, *key)) {
      return invalid("key \"" + name + "\": got " + value.dump().substr(0, 80) + ", expected " +
                     expected(*key));
    }
  }
  return {};
}

}  // namespace

Status check_speculative_config(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"method", JsonType::text},
      {"model", JsonType::text},
      {"num_speculative_tokens", JsonType::integer},
      {"num_model_steps", JsonType::integer, 1, 5},
      {"mtp_strategy", JsonType::text, 0, 0, {"default", "with_ngram"}},
      {"quantization", JsonType::text_or_object},
      {"verify_strategy", JsonType::text, 0, 0, {"target_match", "topp", "greedy"}},
      {"accept_policy", JsonType::text, 0, 0, {"normal", "accept_all", "reject_all"}},
      {"max_candidate_len", JsonType::integer, 1},
      {"verify_window", JsonType::integer, 1},
      {"max_ngram_size", JsonType::integer, 1, 64},
      {"min_ngram_size", JsonType::integer, 1, 64},
      {"suffix_decoding_max_tree_depth", JsonType::integer, 0},
      {"suffix_decoding_max_cached_requests", JsonType::integer, -1},
      {"suffix_decoding_max_spec_factor", JsonType::number, 0},
      {"suffix_decoding_min_token_prob", JsonType::number, 0, 1},
      {"num_gpu_block_expand_ratio", JsonType::number, 0},
      {"benchmark_mode", JsonType::boolean},
      {"enf_gen_phase_tag", JsonType::boolean},
      {"enable_draft_logprob", JsonType::boolean},
  };
  return check_keys(text, kKeys);
}

Status check_graph_optimization_config(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"graph_opt_level", JsonType::integer, 0, 2},       {"use_cudagraph", JsonType::boolean},
      {"cudagraph_capture_sizes", JsonType::integers, 1}, {"cudagraph_num_of_warmups", JsonType::integer, 0},
      {"cudagraph_copy_inputs", JsonType::boolean},       {"cudagraph_splitting_ops", JsonType::texts},
      {"cudagraph_only_prefill", JsonType::boolean},      {"full_cuda_graph", JsonType::boolean},
      {"use_unique_memory_pool", JsonType::boolean},      {"draft_model_use_cudagraph", JsonType::boolean},
      {"sot_warmup_sizes", JsonType::integers, 1},
  };
  return check_keys(text, kKeys);
}

Status check_early_stop_config(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"enable_early_stop", JsonType::boolean},
      {"strategy", JsonType::text, 0, 0, {"repetition"}},
      {"window_size", JsonType::integer, 1},
      {"threshold", JsonType::number, 0, 1},
  };
  return check_keys(text, kKeys);
}

Status check_eplb_config(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"redundant_experts_num", JsonType::integer, 0},
      {"redundant_expert_meta_dir", JsonType::text},
      {"redundant_expert_api_user", JsonType::text},
      {"redundant_expert_api_password", JsonType::text},
      {"redundant_expert_eplb_strategy", JsonType::text},
      {"redundant_expert_dump_workload_interval", JsonType::integer, 1},
      {"redundant_expert_async_load_model_shmem_size_gb", JsonType::number, 0},
      {"redundant_expert_enable_schedule_cordon", JsonType::boolean},
      {"moe_quant_type", JsonType::text},
  };
  return check_keys(text, kKeys);
}

Status check_plas_attention_config(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"plas_encoder_top_k_left", JsonType::integer, 0},
      {"plas_encoder_top_k_right", JsonType::integer, 0},
      {"plas_decoder_top_k_left", JsonType::integer, 0},
      {"plas_decoder_top_k_right", JsonType::integer, 0},
      {"plas_use_encoder_seq_limit", JsonType::integer, 0},
      {"plas_use_decoder_seq_limit", JsonType::integer, 0},
      {"plas_block_size", JsonType::integer, 1},
      {"mlp_weight_name", JsonType::text},
      {"plas_max_seq_length", JsonType::integer, 1},
  };
  return check_keys(text, kKeys);
}

Status check_pooler_config(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"pooling_type", JsonType::text},        {"normalize", JsonType::boolean},
      {"dimensions", JsonType::integer, 1},    {"enable_chunked_processing", JsonType::boolean},
      {"max_embed_len", JsonType::integer, 1},
  };
  return check_keys(text, kKeys);
}

Status check_limit_mm_per_prompt(std::string_view text) {
  static const std::vector<Key> kKeys = {
      {"image", JsonType::integer, 0}, {"video", JsonType::integer, 0}, {"audio", JsonType::integer, 0}};
  return check_keys(text, kKeys);
}

Status check_mm_processor_kwargs(std::string_view text) {
  if (const auto object = read_object(text); !object) return object.status();
  const auto members = json::parse(text);
  if (!members) return not_an_object(text);
  MediaSizes sizes;
  std::vector<std::string> unknown;  // warned of: see unknown_media_sizes()
  return read_media_sizes(*members, sizes, unknown);
}

Status check_rsync_config(std::string_view text) {
  Status status = check_json_object(text);
  if (status.ok() && !json_has(text, "etcd_server")) return invalid("the key \"etcd_server\" is missing");
  return status;
}

Status check_json_object(std::string_view text) { return read_object(text).status(); }

bool json_flag(std::string_view text, std::string_view key) {
  const auto object = parse_object(text);
  if (!object) return false;
  const auto found = object->find(std::string(key));
  return found != object->end() && found->is_boolean() && found->get<bool>();
}

bool json_has(std::string_view text, std::string_view key) {
  const auto object = parse_object(text);
  return object && object->contains(std::string(key));
}

}  // namespace troupe::config
