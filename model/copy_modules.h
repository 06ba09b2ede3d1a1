#pragma once
// What a quantised copy of a checkpoint consists of: its tensors with the names of a -PT checkpoint, and
// which weights become which. In a copy with wint2 or W4A8, linears of the layers are joined as -Paddle
// checkpoints have them.
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/weight_format.h"
#include "model/calibration.h"
#include "model/checkpoint/model_files.h"

namespace troupe::model {

/// A linear or another tensor of the copy: a weight, the slices of the shared experts' one MLP, or
/// the correction biases of both modalities.
struct CopyModule {
  std::string name;        ///< without ".weight"
  std::string whole_name;  ///< of the tensor, where it is not quantised
  bool vector = false;     ///< a tensor of one dimension
  std::vector<const WeightSource*> slices;
  kernels::WeightFormat format{};
  bool paddle = false;  ///< quantised in the form of FastDeploy's tools, as every linear of a copy with wint2
                        ///< or W4A8 is
  /// Not 0: W4A8, and the largest magnitude of the inputs.
  float input_largest = 0;
  /// Static scales of keys or values; then there are no slices.
  std::vector<float> scales_of_channels;

  bool w4a8() const { return input_largest > 0; }
  bool wint2() const { return format.kind == kernels::WeightKind::wint2; }
  bool side_by_side() const { return slices.front()->weight == Weight::down; }
  std::int64_t outputs() const {
    return side_by_side() ? slices.front()->outputs : sum(&WeightSource::outputs);
  }
  std::int64_t inputs() const { return side_by_side() ? sum(&WeightSource::inputs) : slices.front()->inputs; }
  std::int64_t sum(int WeightSource::*extent) const {
    std::int64_t all = 0;
    for (const WeightSource* slice : slices) all += slice->*extent;
    return all;
  }
  int scales_of_slice() const {
    return format.group == 0 ? 1 : (slices.front()->inputs + format.group - 1) / format.group;
  }
  bool fp8() const { return format.fp8(); }
  /// Rows and columns of scales of fp8.
  std::int64_t block_rows() const { return (outputs() + kernels::kFp8Block - 1) / kernels::kFp8Block; }
  std::int64_t block_columns() const { return (inputs() + kernels::kFp8Block - 1) / kernels::kFp8Block; }
  std::int64_t words() const { return (inputs() * format.bits() + 31) / 32; }
  std::int64_t scales() const {
    return std::int64_t{scales_of_slice()} * (side_by_side() ? static_cast<std::int64_t>(slices.size()) : 1);
  }
};

struct CopyTensor {
  std::string name;
  const char* type = "";
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
};

/// The tensors of a module, in the order in which its bytes are written.
std::vector<CopyTensor> tensors_of(const CopyModule& module);

/// All modules, in the order of the files' map, into which they point; the static scales of keys and values
/// come last. `calibration`: where the formats have static scales.
std::vector<CopyModule> modules_of(const ModelFiles& files, const Calibration* calibration = nullptr);

}  // namespace troupe::model
