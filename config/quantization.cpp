#include "config/quantization.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "config/in_quotes.h"
#include "config/json_flags.h"
#include "config/nearest.h"

namespace troupe::config {
namespace {

constexpr std::string_view kWorking[] = {"wint8", "wint4", "block_wise_fp8", "wint2",
                                         "w4a8"};  // as WeightQuant, from wint8 on
constexpr std::string_view kW4a8c8 = "w4a8c8";     // w4a8 with kv_cache_quant_type int8
constexpr std::string_view kMixed = "mix_quant";
/// FastDeploy's other methods, which are refused by name.
constexpr std::string_view kMissing[] = {"wint2.5", "w4w2",  "w4afp8",   "w8a8",
                                         "mxfp4",   "nvfp4", "wfp8afp8", "tensor_wise_fp8"};
constexpr std::string_view kMissingCaches[] = {"int8_zp", "int4_zp", "fp8_zp", "float8_e4m3fn_zp"};

template <class List>
bool lists(const List& names, std::string_view name) {
  return std::ranges::count(names, name) > 0;
}

Status unavailable(const std::string& what) { return {Code::unsupported, what}; }

Status wrong_method(std::string_view got) {
  std::vector<std::string_view> all(std::begin(kWorking), std::end(kWorking));
  all.push_back(kW4a8c8);
  all.push_back(kMixed);
  const std::string guess = did_you_mean(got, all);
  return invalid(
      "got " + in_quotes(got) +
      ", expected wint8, wint4, block_wise_fp8, wint2, w4a8, w4a8c8, or a JSON object with the key "
      "\"quantization\"" +
      guess);
}

/// A method for one kind of weights.
Result<WeightQuant> read_type(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kWorking); ++i) {
    if (kWorking[i] == name) return static_cast<WeightQuant>(i + 1);
  }
  if (lists(kMissing, name)) {
    return unavailable(std::string(name) + " is not among the formats of weights; wint8 and wint4 are");
  }
  return wrong_method(name);
}

bool for_experts_alone(WeightQuant type) { return type == WeightQuant::wint2 || type == WeightQuant::w4a8; }

Result<Quantization> of_method(std::string_view name) {
  if (name == kMixed) {
    return invalid(
        "mix_quant is written as a JSON object with the keys \"quantization\", \"dense_quant_type\" and "
        "\"moe_quant_type\"");
  }
  const bool cache = name == kW4a8c8;
  const auto type = read_type(cache ? "w4a8" : name);
  if (!type) return type.status();
  const bool few_bits = *type == WeightQuant::wint4 || for_experts_alone(*type);
  return Quantization{*type, few_bits ? WeightQuant::wint8 : *type, *type,
                      cache ? KvCacheDType::int8 : KvCacheDType::automatic};
}

/// The JSON form, read key by key; the first error is kept.
class ObjectReader {
 public:
  explicit ObjectReader(const nlohmann::json& object) : object_(object) {}

  Result<Quantization> read() {
    check_keys();
    const std::string method = text("quantization").value_or("");
    if (method.empty()) fail(invalid("the key \"quantization\" is missing"));
    Quantization read;
    if (method == kMixed) {
      read.dense = read.mixture = type_of("dense_quant_type");
      if (for_experts_alone(read.dense)) {
        fail(invalid(std::string("key \"dense_quant_type\": got ") + to_string(read.dense) +
                     ", which experts alone have"));
      }
      read.experts = type_of("moe_quant_type");
      check_image_experts(read.experts);
      if (read.dense == WeightQuant::none && read.experts == WeightQuant::none) {
        fail(invalid("mix_quant needs the key \"dense_quant_type\" or \"moe_quant_type\""));
      }
    } else if (status_.ok()) {
      for (const char* key : {"dense_quant_type", "moe_quant_type", "image_moe_quant_type"}) {
        if (object_.contains(key))
          fail(invalid("the key \"" + std::string(key) + "\" needs \"quantization\": \"mix_quant\""));
      }
      const Result<Quantization> named = of_method(method);
      if (named) read = *named;
      if (!named) fail(named.status());
    }
    if (object_.contains("kv_cache_quant_type")) read.kv_cache = cache_type();
    if (!status_.ok()) return status_;
    return read;
  }

 private:
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  void check_keys() {
    static constexpr std::string_view kKeys[] = {"quantization", "dense_quant_type", "moe_quant_type",
                                                 "image_moe_quant_type", "kv_cache_quant_type"};
    for (const auto& [name, value] : object_.items()) {
      if (lists(kKeys, name)) continue;
      fail(invalid("unknown key " + in_quotes(name) +
                   did_you_mean(name, {std::begin(kKeys), std::end(kKeys)})));
    }
  }

  std::optional<std::string> text(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return std::nullopt;
    if (found->is_string()) return found->get<std::string>();
    fail(invalid("key \"" + std::string(key) + "\": got " + found->dump().substr(0, 80) +
                 ", expected a name"));
    return std::nullopt;
  }

  WeightQuant type_of(const char* key) {
    const auto name = text(key);
    if (!name) return WeightQuant::none;
    const auto type = read_type(*name);
    if (type) return *type;
    fail({type.status().code, "key \"" + std::string(key) + "\": " + type.status().message});
    return WeightQuant::none;
  }

  /// Experts of vision rows have the type of the others.
  void check_image_experts(WeightQuant experts) {
    constexpr const char* kKey = "image_moe_quant_type";
    const auto name = text(kKey);
    if (!name || type_of(kKey) == experts || !status_.ok()) return;
    fail(unavailable(std::string(kKey) + " " + *name + " with moe_quant_type " + to_string(experts) +
                     " is not offered: experts of images and videos have the type of the others"));
  }

  KvCacheDType cache_type() {
    constexpr const char* kKey = "kv_cache_quant_type";
    const auto name = text(kKey);
    if (!name) return KvCacheDType::automatic;
    if (*name == "int8") return KvCacheDType::int8;
    if (*name == "fp8" || *name == "float8_e4m3fn" || *name == "block_wise_fp8") return KvCacheDType::fp8;
    if (lists(kMissingCaches, *name)) {
      fail(unavailable(std::string(kKey) + " " + *name +
                       " is not among the formats of the KV cache; int8 and fp8 are"));
    } else {
      fail(invalid("key \"" + std::string(kKey) + "\": got " + in_quotes(*name) + ", expected int8 or fp8"));
    }
    return KvCacheDType::automatic;
  }

  const nlohmann::json& object_;
  Status status_;
};

const char* to_string(KvCacheDType type) {
  return type == KvCacheDType::int8 ? "int8" : type == KvCacheDType::fp8 ? "fp8" : "auto";
}

bool has_four_bits(const Quantization& q) {
  return q.dense == WeightQuant::wint4 || q.mixture == WeightQuant::wint4 || q.experts == WeightQuant::wint4;
}

}  // namespace

const char* to_string(WeightQuant quant) {
  return quant == WeightQuant::none ? "none" : kWorking[static_cast<std::size_t>(quant) - 1].data();
}

Result<Quantization> parse_quantization(std::string_view text) {
  if (text.empty()) return Quantization{};
  if (!text.starts_with('{')) return of_method(text);
  if (Status s = check_json_object(text); !s.ok()) return s;
  const nlohmann::json object = nlohmann::json::parse(text);
  return ObjectReader(object).read();
}

Status check_quantization(std::string_view text) {
  const Status status = parse_quantization(text).status();
  return status.code == Code::unsupported ? Status{} : status;
}

std::string unavailable_quantization(std::string_view text) {
  const Status status = parse_quantization(text).status();
  return status.code == Code::unsupported ? status.message : std::string();
}

Status check_quantization_options(const QuantizationOptions& options) {
  const auto asked = parse_quantization(options.method);
  if (!asked) return {};  // its own check has said so, or a refusal by name follows
  if (options.group != 0 && !has_four_bits(*asked) && options.lm_head != LmHeadDType::int4) {
    return invalid("--quantization-group: got " + std::to_string(options.group) +
                       ", which needs 4-bit weights: --quantization wint4 or --lm-head-dtype int4",
                   "quantization-group", "conflict");
  }
  if (options.kv_cache != KvCacheDType::automatic && asked->kv_cache != KvCacheDType::automatic &&
      options.kv_cache != asked->kv_cache) {
    return invalid(std::string("--kv-cache-dtype: got ") + to_string(options.kv_cache) +
                       ", but kv_cache_quant_type in --quantization says " + to_string(asked->kv_cache),
                   "kv-cache-dtype", "conflict");
  }
  return {};
}

KvCacheDType kv_cache_dtype(const QuantizationOptions& options) {
  if (options.kv_cache != KvCacheDType::automatic) return options.kv_cache;
  const auto asked = parse_quantization(options.method);
  return asked ? asked->kv_cache : KvCacheDType::automatic;
}

}  // namespace troupe::config
