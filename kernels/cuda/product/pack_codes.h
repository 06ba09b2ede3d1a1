#pragma once
// Pack of a source that is quantised already (StoredScales) into the GPU's order.
#include "gpu/cuda.h"
#include "kernels/pack.h"

namespace troupe::kernels::cuda {

/// As run(Cuda&, const Pack&) says. A scale that is not finite becomes a NaN, and an fp8 code that is a NaN
/// makes the scale of its kFp8ScaleOutputs outputs and kFp8Block inputs one.
void pack_codes(Cuda& device, const Pack& op);

}  // namespace troupe::kernels::cuda
