#pragma once
// wint2 (CCQ): four inputs of an output share a byte. A line of the output makes a code word of 15 bits of
// the byte, whose four windows of 6 bits, 3 bits apart, are the weights without their scale.
//
//   c = floor(fl(fused(byte * code_scale + code_zp) + 0.5))     0 ... kWint2LargestWord
//   weight of input 4i + j = ((c >> (9 - 3j)) & 63) - 32, times scale * super_scale
//
// Product and first sum are rounded once (fused). A kernel that rounds the product too gets another c for
// some bytes; count_lines() tells how many outputs have such a byte. tools/generate/wint2_format.py states
// the same in numpy; the tests compare the two bit for bit.
#include <cmath>
#include <cstdint>

#include "gpu/dtype.h"

namespace troupe::kernels {

inline constexpr int kWint2LargestWord = 32767;
inline constexpr int kWint2Inputs = 4;   ///< of a byte
inline constexpr int kWint2Offset = 32;  ///< that windows have more than weights

/// The code word of a byte. It is not limited to 0 ... kWint2LargestWord.
inline float wint2_word(std::uint8_t byte, float code_scale, float code_zp) {
  return std::floor(std::fma(static_cast<float>(byte), code_scale, code_zp) + 0.5f);
}

/// The weight of input j of a word, 0 ... 3, without its scale: -32 ... 31.
constexpr int wint2_code(int word, int j) { return ((word >> (9 - 3 * j)) & 63) - kWint2Offset; }

/// The weight as a GPU's kernel has it, in bf16. `scale`: the group's 4 bits.
inline std::uint16_t wint2_weight(int code, int scale, float super_scale) {
  return float_to_bf16(static_cast<float>(code) * (static_cast<float>(scale) * super_scale));
}

}  // namespace troupe::kernels
