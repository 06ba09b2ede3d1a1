#pragma once
// A checkpoint's tensor into the device's matrix order.
#include <cstddef>
#include <cstdint>

#include "gpu/byte_source.h"
#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

enum class Place {
  rows,  ///< source row o is output first + o
  gate,  ///< source row o is gate row o of a gate|up matrix
  up,    ///< source row o is up row o of a gate|up matrix
};

/// A source that is quantised already, in the matrix's own format: the tensor holds codes, and source_stride
/// codes lie from an output's first to the next one's. Integers are stored plus 2^(bits - 1); those of 4 bits
/// begin with the lower half of a byte, and an output begins with a whole byte. fp8 is e4m3, and kFp8Block
/// outputs share a row of scales.
struct StoredScales {
  const ByteSource* file = nullptr;  ///< null: the tensor holds numbers
  std::uint64_t offset = 0;          ///< bytes; the first output's first scale
  DType dtype = DType::bf16;
  std::ptrdiff_t stride =
      0;  ///< scales from one output's first to the next one's; fp8: from one row to the next
  int first_in_block = 0;  ///< fp8: outputs of the first row of scales before the first one of the source; a
                           ///< multiple of kFp8ScaleOutputs
};

/// A source of wint2 (wint2.h): tensors with a column for each output. Their columns and lines are those of
/// the first output and the first input of the source; lines of the tensors of bytes lie Pack::source_stride
/// apart.
struct StoredWint2 {
  struct Tensor {
    const ByteSource* file = nullptr;
    std::uint64_t offset = 0;
  };
  Tensor groups;                 ///< a byte for kWint2Unit inputs, the first group in its upper half
  Tensor super_scales;           ///< of super_type
  Tensor code_scales, code_zps;  ///< fp32
  DType super_type = DType::bf16;
};

/// The inputs that a matrix takes of longer rows. Where one scale is for all inputs of an output it is that
/// of the whole row, so that the parts of a matrix have its very codes; in other formats only the part is
/// read.
struct RowPart {
  int first = 0;
  int whole = 0;  ///< inputs of a row; 0: as many as the matrix has

  /// Inputs of a row of the source of such a matrix, and the first that the matrix takes.
  constexpr int inputs(const Matrix& into) const { return counts(into) ? whole : into.inputs; }
  constexpr int skipped(const Matrix& into) const { return counts(into) ? first : 0; }
  constexpr bool counts(const Matrix& into) const { return whole != 0 && into.format.scales_outputs(); }
};

/// Copies a tensor of outputs × inputs into a (part of a) packed matrix, converting its dtype. q, k and v
/// land in one matrix by three packs with rising `first`; gate and up by Place. Touches no other output's
/// weights, so the parts of one matrix come in any order, but one at a time. The matrix was zeroed
/// when it was allocated.
struct Pack {
  Matrix into{};
  const void* source = nullptr;      ///< host memory; aligned to its element size
  const ByteSource* file = nullptr;  ///< instead of `source`: the tensor begins at `offset` bytes of it, at
                                     ///< any alignment. Read on several threads, and no more after run()
  std::uint64_t offset = 0;
  DType source_dtype = DType::bf16;
  bool transposed = false;           ///< false: source[out][in]; true: source[in][out]
  std::ptrdiff_t source_stride = 0;  ///< elements from one source line to the next; 0: dense. Longer when
                                     ///< the source is some columns of a joined q|k|v or gate|up
  Place place = Place::rows;
  int first = 0;                       ///< for Place::rows
  int outputs = 0;                     ///< rows of the source; its inputs are part.inputs(into)
  RowPart part{};                      ///< of a source without scales
  StoredScales scales{};               ///< from a file that is not transposed; the Cpu has no fp8
  const StoredWint2* wint2 = nullptr;  ///< into wint2, which only the Cpu has; `file` has the bytes of codes
};

void run(Cpu& device, const Pack& op);
void run(Cuda& device, const Pack& op);

}  // namespace troupe::kernels
