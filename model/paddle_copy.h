#pragma once
// Linears of a copy in the form of FastDeploy's tools: experts in wint2 or W4A8, the others in the order of
// Paddle's wint8. Of W4A8, is_permuted is true: codes lie in the kernels' order (checkpoint/paddle_codes.h),
// activation_scale is 1 / a and weight_scale bf16(w · a / (127 · 112)), with a the largest magnitude of the
// inputs and w that of an output's weights. down's weights are W · H / 128 in blocks of 128 inputs, H the
// unnormalised Hadamard matrix in natural order, rounded to bf16.
#include <cstddef>
#include <vector>

#include "gpu/cpu.h"
#include "kernels/encode_wint2.h"
#include "model/copy_modules.h"

namespace troupe::model {

/// The elements of a module's slices, each as rows of its inputs.
using SliceRows = std::vector<std::vector<std::byte>>;

/// Writes the module's tensors one after the other to `out`, which is zeroed. Numbers that are not finite
/// make `finite` false; the squares are those of wint2 alone.
kernels::Wint2Error write_paddle_module(Cpu& device, const CopyModule& module, const SliceRows& rows,
                                        std::byte* out);

}  // namespace troupe::model
