#pragma once
// How a linear of a checkpoint that is quantised already stores its codes.
#include <cstdint>

namespace troupe::model {

/// Where a linear's codes lie in its tensor.
enum class CodeOrder : std::uint8_t {
  rows,              ///< an output's codes one after the other, as kernels::StoredScales says
  paddle,            ///< interleaved for Paddle's weight-only product: paddle_codes.h
  paddle_w4a8,       ///< interleaved for Paddle's W4A8 product
  wint2,             ///< [inputs / 4, outputs], a byte for four inputs: kernels/wint2.h
  paddle_w4a8_rows,  ///< W4A8 [inputs / 2, outputs], nibbles in two's complement, the even input low
};

struct StoredFormat {
  int bits = 0;   ///< 8, 4 or, of wint2, 2
  int group = 0;  ///< integers: inputs that share a scale; 0: all
  bool fp8 = false;
  CodeOrder order = CodeOrder::rows;

  bool operator==(const StoredFormat&) const = default;
  bool wint2() const { return order == CodeOrder::wint2; }
  /// True if the rows that it multiplies become int8 codes by a static scale.
  bool w4a8() const { return order == CodeOrder::paddle_w4a8 || order == CodeOrder::paddle_w4a8_rows; }
};

}  // namespace troupe::model
