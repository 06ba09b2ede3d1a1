#pragma once
// quantization_config of a -Paddle checkpoint that FastDeploy's tools quantised: a type for the linears, one
// or two for the experts (those of the first layers may have more bits), and static scales for keys and
// values.
//
//   {"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4"}
//   {"quantization": "wint2", "dense_quant_type": "wint8", "moe_quant_type": "w4w2", "moe_quant_config":
//      {"moe_w4_quant_config": {"quant_type": "wint4", "quant_end_layer": 6, …}, "moe_w2_quant_config": …}}
//   {"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "w4a8",
//    "kv_cache_quant_type": "int8", "is_permuted": true, "hadamard_block_size": 128}
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "model/checkpoint/stored_format.h"

namespace troupe::model {

struct PaddleQuantisation {
  std::optional<StoredFormat> dense;  ///< attention, dense MLPs
  /// As `dense`, unless "shared_experts_quant_type" says otherwise, a key of troupe quantize alone.
  std::optional<StoredFormat> shared_experts;
  std::optional<StoredFormat> early_experts;  ///< of layers below `early_layers`
  int early_layers = 0;
  std::optional<StoredFormat> experts;  ///< of the others
  bool static_kv = false;               ///< int8 keys and values with a static scale for each channel

  /// `config`: the object, whose "quantization" is a text; `where` begins the messages. unsupported: a type
  /// that is not read; the message names it and what is.
  static Result<PaddleQuantisation> parse(const nlohmann::json& config, const std::string& where);

  /// As StoredQuantisation::of().
  std::optional<StoredFormat> of(const std::string& module) const;
};

}  // namespace troupe::model
