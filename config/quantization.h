#pragma once
// What --quantization asks for: FastDeploy's names of methods, and its JSON form.
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/options.h"

namespace troupe::config {

/// Storage of a group of weights. `none`: the activations' type.
enum class WeightQuant { none, wint8, wint4, block_wise_fp8, wint2, w4a8 };

const char* to_string(WeightQuant quant);

/// One type for each kind of weight. Embedding, router and norms are never quantised.
struct Quantization {
  WeightQuant dense = WeightQuant::none;    ///< attention and MLPs of a model without experts
  WeightQuant mixture = WeightQuant::none;  ///< attention and dense MLPs of a model with experts
  WeightQuant experts = WeightQuant::none;  ///< with the shared ones
  KvCacheDType kv_cache = KvCacheDType::automatic;

  /// True if keys and values have static scales, one for each channel: int8 beside w4a8.
  bool static_kv() const { return experts == WeightQuant::w4a8 && kv_cache == KvCacheDType::int8; }

  bool operator==(const Quantization&) const = default;
};

/// "wint8", "wint4", "block_wise_fp8", "wint2", "w4a8", "w4a8c8", or a JSON object: {"quantization": one of
/// these, or "mix_quant" with "dense_quant_type" and "moe_quant_type", and with "image_moe_quant_type" if it
/// is the same as the latter; "kv_cache_quant_type": "int8", "fp8" or "block_wise_fp8"}. wint4 means wint8
/// outside of the experts when there are any, and so do wint2 and w4a8, which only experts have; w4a8c8 is
/// w4a8 with kv_cache_quant_type int8. The empty text asks for nothing. invalid_argument names the key and
/// what is allowed; unsupported: a method of FastDeploy's that is not there, with what is.
Result<Quantization> parse_quantization(std::string_view text);

/// The errors of parse_quantization() but for `unsupported`, and that one alone ("" when there is none).
Status check_quantization(std::string_view text);
std::string unavailable_quantization(std::string_view text);

/// The options' --quantization, --quantization-group, --lm-head-dtype and --kv-cache-dtype fit each other.
Status check_quantization_options(const QuantizationOptions& options);

/// --kv-cache-dtype, or what --quantization says. The options have passed check_quantization_options().
KvCacheDType kv_cache_dtype(const QuantizationOptions& options);

}  // namespace troupe::config
