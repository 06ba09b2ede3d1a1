#pragma once
// Numbers to wint2 (wint2.h), which published tools only decode. Host code: a checkpoint is encoded once.
#include <cstddef>
#include <cstdint>

#include "gpu/cpu.h"

namespace troupe::kernels {

/// Tensors of `outputs` columns, as a file has them; `stride` columns lie from a line to the next.
struct Wint2Columns {
  std::uint8_t* codes = nullptr;          ///< inputs / kWint2Inputs lines
  std::uint8_t* groups = nullptr;         ///< inputs / kWint2Unit lines
  std::uint16_t* super_scales = nullptr;  ///< bf16
  float* code_scales = nullptr;
  float* code_zps = nullptr;
  std::size_t stride = 0;
};

/// Sums of squares over the weights.
struct Wint2Error {
  double squares =
      0;  ///< of the differences of decoded weights, before they are rounded to bf16, and weights
  double of_weights = 0;
  bool finite = true;  ///< false: a weight is a NaN or an infinity

  Wint2Error& operator+=(const Wint2Error& other);
};

/// Encodes the inputs of output `column`, a multiple of kWint2Unit. All 256 bytes are tried for each four
/// weights, by turns with least-squares scales of groups and of the output. One line serves all outputs. The
/// bytes depend on the numbers alone, on one instruction set.
Wint2Error encode_wint2(Isa isa, const float* weights, int inputs, const Wint2Columns& to,
                        std::size_t column);

}  // namespace troupe::kernels
