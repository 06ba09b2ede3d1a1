#pragma once
// Finds numbers that are not finite among weights that were quantised. Packing such a number makes its scale
// a NaN (kernels/quantize.h). Which outputs of a matrix a source became is the device's own matter, so that a
// bad matrix is traced to its tensor by reading its sources again.
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "model/weight_target.h"

namespace troupe::model {

/// True if a scale of the matrix is a NaN. Waits for the device.
template <Device D>
bool has_bad_scale(D& device, const kernels::Matrix& matrix) {
  std::vector<std::byte> bytes(kernels::scale_bytes(matrix.format, matrix.outputs, matrix.inputs));
  if (bytes.empty()) return false;
  device.download(bytes.data(), kernels::scales_of(matrix), bytes.size());
  device.sync();
  const DType type = matrix.format.group > 0 ? DType::bf16 : DType::f32;
  for (std::size_t i = 0; i < bytes.size() / size_of(type); ++i) {
    if (std::isnan(load_element(bytes.data(), type, i))) return true;
  }
  return false;
}

/// Checks every quantised matrix, once all sources are packed. The error names the tensor.
template <Device D>
Status check_scales(D& device, const WeightLayout& layout, const ModelSpec& spec, const TensorMap& map) {
  std::set<const void*> fine;
  for (const WeightSource& source : map.sources) {
    const bool copied = source.weight == Weight::embedding && layout.head_copies_embedding(map.tied);
    const WeightTarget target = copied ? WeightTarget{layout.lm_head}
                                       : target_of(layout, spec, source.weight, source.layer, source.expert);
    // Those of wint2 are checked before they are packed.
    if (target.matrix.format.kind == kernels::WeightKind::wint2) continue;
    if (target.vector != nullptr || !target.matrix.format.quantised() || fine.contains(target.matrix.data))
      continue;
    if (!has_bad_scale(device, target.matrix)) {
      fine.insert(target.matrix.data);
    } else if (!all_finite(source)) {
      return invalid("The tensor '" + source.name + "' has a NaN or an infinity among its " +
                     (!source.stored       ? "numbers, which cannot be quantised."
                      : source.stored->fp8 ? "codes or scales."
                                           : "scales."));
    }
  }
  return {};
}

}  // namespace troupe::model
