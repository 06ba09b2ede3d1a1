#pragma once
// How a checkpoint that is quantised already stores its linears: quantization_config of its config.json.
//
// Three forms are read. compressed-tensors' "pack-quantized" with symmetric 8-bit or 4-bit integers, where a
// linear X is three tensors:
//   X.weight_packed  int32 [outputs, words]: an output's codes, each plus 2^(bits - 1), packed from the
//                    lowest bits of little-endian words; the last word is filled up with zeros
//   X.weight_scale   [outputs, 1], or [outputs, inputs / group]: a weight is code * scale
//   X.weight_shape   int64 [2]: outputs and inputs
// And "fp8" with a weight_block_size of [128, 128], where it is two:
//   X.weight            e4m3 [outputs, inputs]
//   X.weight_scale_inv  [outputs / 128, inputs / 128], rounded up: a weight is code * scale
// And Paddle's (paddle_quantisation.h), where the tensors decide which linears are quantised:
//   X.quant_weight      codes in an order of Paddle's kernels (paddle_codes.h)
//   X.weight_scale      [outputs]; of W4A8 also X.activation_scale, one number
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/paddle_quantisation.h"
#include "model/checkpoint/stored_format.h"

namespace troupe::model {

class StoredQuantisation {
 public:
  /// Parses the value of quantization_config; `where` begins the messages. unsupported: a method or a form of
  /// it that is not read; the message names it and what to use instead.
  static Result<StoredQuantisation> parse(std::string_view json, const std::string& where);

  /// The format of a linear, by the module's name ("model.layers.0.mlp.up_proj"); nothing if it is not
  /// quantised.
  std::optional<StoredFormat> of(const std::string& module) const;

  /// True if it is a -Paddle checkpoint's; a linear without codes is then quantised while it loads.
  bool paddle() const { return paddle_.has_value(); }
  /// True if the checkpoint has static scales of keys and values.
  bool static_kv() const { return paddle_ && paddle_->static_kv; }

 private:
  struct Group {
    std::vector<std::string> targets;
    StoredFormat format;
  };
  static Result<StoredQuantisation> parse_fp8(const std::string& json, const std::string& where);

  std::optional<PaddleQuantisation> paddle_;
  std::vector<Group> groups_;
  std::vector<std::string> ignore_;  // as in compressed-tensors
  std::vector<std::string> parts_;   // modules that are not quantised, nor those within them
};

}  // namespace troupe::model
