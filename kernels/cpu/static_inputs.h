#pragma once
// Rows of W4A8 experts: int8 codes by a static scale of the expert, and the rotation before its down product.
#include <cstddef>

#include "kernels/cpu/routines.h"
#include "kernels/moe.h"

namespace troupe::kernels {

/// `x`: `count` floats, a multiple of kDotInputs. `row`: codes, then an OperandGroup for each kDotInputs of
/// them, as the tile of int4 weights takes it (linear.h). A number that is not finite makes its outputs NaN.
void quantise_static(std::byte* row, const float* x, std::size_t count, StaticInput by);

/// The unnormalised Hadamard transform (natural order) of each kHadamardBlock of `count` floats, with strides
/// 1, 2, … 64; every stage is rounded to `dtype`. `count` is a multiple of kHadamardBlock.
void rotate_blocks(const Routines& r, DType dtype, float* x, std::size_t count);

/// The floats rounded to `dtype`; `count` is a multiple of 16, at most kHadamardBlock.
void round_to(const Routines& r, DType dtype, float* x, std::size_t count);

}  // namespace troupe::kernels
