#pragma once
// Pack of sources that are quantised already into the GPU's order.
#include "gpu/cuda.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"

namespace troupe::kernels::cuda {

/// As run(Cuda&, const Pack&) says. A scale that is not finite becomes a NaN, and an fp8 code that is a NaN
/// makes the scale of its kFp8ScaleOutputs outputs and kFp8Block inputs one.
void pack_codes(Cuda& device, const Pack& op);

/// Pack of a source of wint2 (StoredWint2), and its random weights, as their run() say.
void pack_wint2(Cuda& device, const Pack& op);
void fill_wint2(Cuda& device, const FillRandom& op);

}  // namespace troupe::kernels::cuda
