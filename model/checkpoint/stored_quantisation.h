#pragma once
// How a checkpoint that is quantised already stores its linears: quantization_config of its config.json.
//
// Two forms are read. compressed-tensors' "pack-quantized" with symmetric 8-bit or 4-bit integers, where a
// linear X is three tensors:
//   X.weight_packed  int32 [outputs, words]: an output's codes, each plus 2^(bits - 1), packed from the
//                    lowest bits of little-endian words; the last word is filled up with zeros
//   X.weight_scale   [outputs, 1], or [outputs, inputs / group]: a weight is code * scale
//   X.weight_shape   int64 [2]: outputs and inputs
// And "fp8" with a weight_block_size of [128, 128], where it is two:
//   X.weight            e4m3 [outputs, inputs]
//   X.weight_scale_inv  [outputs / 128, inputs / 128], rounded up: a weight is code * scale
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe::model {

struct StoredFormat {
  int bits = 0;   ///< 8 or 4
  int group = 0;  ///< integers: inputs that share a scale; 0: all
  bool fp8 = false;

  bool operator==(const StoredFormat&) const = default;
};

class StoredQuantisation {
 public:
  /// Parses the value of quantization_config; `where` begins the messages. unsupported: a method or a form of
  /// it that is not read; the message names it and what to use instead.
  static Result<StoredQuantisation> parse(std::string_view json, const std::string& where);

  /// The format of a linear, by the module's name ("model.layers.0.mlp.up_proj"); nothing if it is not
  /// quantised.
  std::optional<StoredFormat> of(const std::string& module) const;

 private:
  struct Group {
    std::vector<std::string> targets;
    StoredFormat format;
  };
  static Result<StoredQuantisation> parse_fp8(const std::string& json, const std::string& where);

  std::vector<Group> groups_;
  std::vector<std::string> ignore_;  // as in compressed-tensors
  std::vector<std::string> parts_;   // modules that are not quantised, nor those within them
};

}  // namespace troupe::model
