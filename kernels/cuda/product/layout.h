#pragma once
// Layouts of matrices and of KV memory on the GPU. Host and device code (constexpr). What they contain: matrix.h
// and batch.h.
//
// Matrix: row-major, one row per output, rows of padded(inputs) elements (a multiple of 64 bytes, so every
// row starts aligned for 16-byte loads and for tensor maps). Padding elements are zero, as they are in
// activations: inner products run over padded(inputs) without a tail.
//
// gate|up: in groups of 8, gate rows 8j … 8j+7 and then up rows 8j … 8j+7. So a tensor core's accumulator
// holds a gate and its up value in one thread, whichever of the two operands the weights are.
//
// KV: K and V of a block are 64 tokens × head_dim, and lie as wgmma wants to find an operand in shared
// memory (128-byte swizzle), so that a plain bulk copy of the contiguous piece is enough:
// for head_dim a multiple of 64 in halves of 64 columns, [head_dim / 64][64 tokens][64], where the 16-byte
// chunk c of token t's row lies at chunk c ^ (t % 8); other head_dims and fp32 are row-major [64][head_dim].
//
// 8-bit KV: codes are row-major [64][head_dim] with 16-byte chunks swizzled within a row, so that ldmatrix reads
// eight tokens without bank conflicts: chunk c of token t at c ^ (t % 8) if head_dim is a multiple of 128, at
// c ^ (t / 2 % 4) if it is an odd multiple of 64, else at c. Scales of tokens 0 … 63 follow (KvCache).
#include <cstddef>

#include "gpu/dtype.h"
#include "kernels/batch.h"
#include "kernels/matrix.h"
#include "kernels/pack.h"

namespace troupe::kernels::cuda {

/// Elements from one row of a matrix to the next.
constexpr int row_stride(int inputs) { return (inputs + kPanel - 1) / kPanel * kPanel; }

/// Row of a gate|up matrix that holds gate row i; its up row is 8 later.
constexpr int gate_row(int i) { return i / 8 * 16 + i % 8; }
constexpr int up_row(int i) { return gate_row(i) + 8; }

/// Row of the matrix where source row `o` is stored; see Pack.
constexpr int placed_row(Place place, int first, int o) {
  return place == Place::rows ? first + o : place == Place::gate ? gate_row(o) : up_row(o);
}

/// True if K and V are stored in swizzled halves.
constexpr bool swizzled(DType dtype, int head_dim) { return size_of(dtype) == 2 && head_dim % 64 == 0; }

/// Position of dimension d within a K or V piece, for any token.
class KvColumn {
 public:
  constexpr KvColumn() = default;
  constexpr KvColumn(bool swizzled, int head_dim, int d)
      : first_(swizzled ? d / 64 * (64 * 64) + d % 8 : d),
        pitch_(swizzled ? 64 : head_dim),
        chunk_(swizzled ? d % 64 / 8 * 8 : 0),
        turns_(swizzled ? 7 : 0) {}

  /// Element index of token t of the block.
  constexpr int at(int t) const { return first_ + t * pitch_ + (chunk_ ^ (t & turns_) * 8); }

 private:
  int first_ = 0;
  int pitch_ = 0;
  int chunk_ = 0;  ///< first element of the 16-byte chunk, before the swizzle
  int turns_ = 0;  ///< mask of the token's bits that the swizzle uses
};

/// Element index of (token t of the block, dimension d) within a K or V piece.
constexpr int kv_index(bool swizzled, int head_dim, int t, int d) {
  return KvColumn(swizzled, head_dim, d).at(t);
}

/// Byte offset of (token t of the block, dimension d) within an 8-bit K or V piece.
constexpr int kv_code_index(int head_dim, int t, int d) {
  const int turn = head_dim % 128 == 0 ? t % 8 : head_dim % 64 == 0 ? t / 2 % 4 : 0;
  return t * head_dim + ((d / 16) ^ turn) * 16 + d % 16;
}

}  // namespace troupe::kernels::cuda
