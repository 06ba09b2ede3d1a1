#pragma once
// Rows of W4A8 experts on a GPU: codes -127 … 127 by a static scale of the expert.
//
// A product of unpacked codes multiplies them as int8. For every other way they are whole numbers of the
// activations' dtype: bf16 and f16 hold them, and codes of weights, exactly, and an fp32 sum of up to
// 16,512 products, of magnitudes up to 127 · 8, is the exact integer. So all ways, and the Cpu, agree on a
// sum to the bit.
//
// int8 rows are in an order of their own: of each 32, byte 4 t + e is input 8 t + {0, 4, 1, 5}[e], and byte
// 16 + 4 t + e is input 8 t + {2, 6, 3, 7}[e] (t, e: 0 … 3). A word of eight codes of a weight (code_place())
// then is two words of an operand: its lower and its upper halves of bytes.
#include "kernels/cuda/moe/layout.h"

namespace troupe::kernels::cuda {

/// By place: the row that it multiplies becomes codes by its expert's scale, in layout.place_codes, and the
/// factors of its sums are written.
void gather_codes(Cuda& device, const Moe& op, const MoeLayout& layout);

/// By place: silu(gate) · up of layout.gate_up_sums, rounded, rotated in blocks of kHadamardBlock, and made
/// codes by the expert's scale, in layout.activations.
void rotate_activations(Cuda& device, const Moe& op, const MoeLayout& layout);

}  // namespace troupe::kernels::cuda
