#pragma once
// Linears of a copy in the form of FastDeploy's tools: experts in wint2, the others in the order of Paddle's
// wint8.
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
