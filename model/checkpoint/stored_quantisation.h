#pragma once
// How a checkpoint that is quantised already stores its linears: quantization_config of its config.json.
//
// The one form that is read is compressed-tensors' "pack-quantized" with symmetric 8-bit or 4-bit integers. A linear X
// is three tensors there:
//   X.weight_packed  int32 [outputs, words]: an output's codes, each plus 2^(bits - 1), packed from the lowest bits of
//                    little-endian words; the last word is filled up with zeros
//   X.weight_scale   [outputs, 1], or [outputs, inputs / group]: a weight is code * scale
//   X.weight_shape   int64 [2]: outputs and inputs
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe::model {

struct StoredFormat {
  int bits = 0;   ///< 8 or 4
  int group = 0;  ///< inputs that share a scale; 0: all

  bool operator==(const StoredFormat&) const = default;
};

class StoredQuantisation {
 public:
  /// Parses the value of quantization_config; `where` begins the messages. unsupported: a method or a form of it that
  /// is not read; the message names it and what to use instead.
  static Result<StoredQuantisation> parse(std::string_view json, const std::string& where);

  /// The format of a linear, by the module's name ("model.layers.0.mlp.up_proj"); nothing if it is not quantised.
  std::optional<StoredFormat> of(const std::string& module) const;

 private:
  struct Group {
    std::vector<std::string> targets;
    StoredFormat format;
  };
  std::vector<Group> groups_;
  std::vector<std::string> ignore_;
};

}  // namespace troupe::model
