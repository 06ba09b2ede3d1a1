#pragma once
// Activations as fp8 codes, for products with fp8 weights.
#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// Codes from one row to the next: whole blocks, as a row of fp8 weights of `cols` inputs has them.
constexpr int coded_stride(int cols) { return (cols + kFp8Block - 1) / kFp8Block * kFp8Block; }
/// Scales of a row.
constexpr int coded_blocks(int cols) { return coded_stride(cols) / kFp8Block; }

/// For each row r and each block b of kFp8Block columns, by the rules of quantize.h:
///   scales[r][b] = largest magnitude of x[r][128 b …] / 448
///   codes[r][c]  = e4m3 of x[r][c] / scales[r][c / 128]; +0 behind the last column
/// A number that is not finite makes its block's scale a NaN, and so every output of a product with that row.
struct QuantiseRows {
  std::uint8_t* codes = nullptr;  ///< (rows, coded_stride(cols)); aligned to 16 bytes
  float* scales = nullptr;        ///< (rows, coded_blocks(cols))
  const void* x = nullptr;        ///< (rows, padded(cols)) of dtype; aligned to 16 bytes
  DType dtype = DType::bf16;
  int rows = 0;
  int cols = 0;
};

/// Bytes of the codes and the scales of so many rows, a multiple of 256.
constexpr std::size_t coded_bytes(int rows, int cols) {
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t bytes = count * static_cast<std::size_t>(coded_stride(cols)) +
                            count * static_cast<std::size_t>(coded_blocks(cols)) * sizeof(float);
  return (bytes + 255) / 256 * 256;
}

/// Points `codes` and `scales` into coded_bytes() at `memory`.
inline void lay_out(QuantiseRows& op, void* memory) {
  op.codes = static_cast<std::uint8_t*>(memory);
  op.scales = reinterpret_cast<float*>(op.codes + static_cast<std::size_t>(op.rows) *
                                                      static_cast<std::size_t>(coded_stride(op.cols)));
}

void run(Cuda& device, const QuantiseRows& op);

}  // namespace troupe::kernels
