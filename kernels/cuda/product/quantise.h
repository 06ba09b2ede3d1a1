#pragma once
// Rows of floats in device memory into codes and scales of a quantised matrix.
#include "gpu/cuda.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels::cuda {

struct Quantise {
  Matrix into{};
  Place place = Place::rows;  ///< as for Pack
  int first = 0;              ///< as for Pack
  int output = 0;             ///< source row of the first of `rows`; a multiple of quantised_together()
  int outputs = 0;
  const void* rows = nullptr;  ///< (outputs, padded(part.inputs(into))) of dtype
  DType dtype = DType::bf16;
  RowPart part{};
};

/// Outputs that have to be in one Quantise because they share scales.
constexpr int quantised_together(const WeightFormat& format) {
  return format.kind == WeightKind::fp8 ? kFp8Block : 1;
}

/// As kernels/quantize.h says.
void quantise(Cuda& device, const Quantise& op);
/// The same for fp8 alone. `first` is a multiple of kFp8ScaleOutputs.
void quantise_blocks(Cuda& device, const Quantise& op);

}  // namespace troupe::kernels::cuda
