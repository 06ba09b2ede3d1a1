#pragma once
// Layouts of matrices and of KV memory on the GPU. Host and device code (constexpr). What they contain:
// matrix.h and batch.h.
//
// Matrix: row-major, one row per output, rows of padded(inputs) elements (a multiple of 64 bytes, so every
// row starts aligned for 16-byte loads and for tensor maps). Padding elements are zero, as they are in
// activations: inner products run over padded(inputs) without a tail.
//
// Codes of quantised weights lie in the order in which the kernels' lanes take them, so that one load of 16
// bytes is expanded to operands of mma without moving anything between lanes. A row is pieces of 64 bytes;
// lane t of four takes the 16 bytes from 16 t, which are inputs 8 t … 8 t + 7 of each 32 inputs that the
// piece covers: 64 for codes of 8 bits, 128 for 4 bits. See code_place(). Scales follow the codes: for each
// output a float, in groups [group][padded(outputs)] of bf16.
//
// gate|up: in groups of 8, gate rows 8j … 8j+7 and then up rows 8j … 8j+7. So a tensor core's accumulator
// holds a gate and its up value in one thread, whichever of the two operands the weights are.
//
// KV: K and V of a block are 64 tokens × head_dim, and lie as wgmma wants to find an operand in shared
// memory (128-byte swizzle), so that a plain bulk copy of the contiguous piece is enough:
// for head_dim a multiple of 64 in halves of 64 columns, [head_dim / 64][64 tokens][64], where the 16-byte
// chunk c of token t's row lies at chunk c ^ (t % 8); other head_dims and fp32 are row-major [64][head_dim].
//
// 8-bit KV: codes are row-major [64][head_dim] with 16-byte chunks swizzled within a row, so that ldmatrix
// reads eight tokens without bank conflicts: chunk c of token t at c ^ (t % 8) if head_dim is a multiple of
// 128, at c ^ (t / 2 % 4) if it is an odd multiple of 64, else at c. Scales of tokens 0 … 63 follow
// (KvCache).
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

/// Inputs that a piece of 64 bytes of a row covers, in 32s.
constexpr int operands_of(const WeightFormat& format) { return 16 / format.bits(); }

/// Bytes of a row of the matrix.
constexpr int row_bytes(const WeightFormat& format, int inputs) {
  return padded_inputs(format, inputs) * format.bits() / 8;
}

struct CodePlace {
  int byte;   ///< of the row
  int shift;  ///< in the byte: 0, or 4 for the second code of a byte
};

/// Where the code of an input lies. Of the 16 bytes of a lane, codes of 8 bits have a word for each four
/// inputs, with bytes in the order 0 2 1 3: bytes 0 and 2, or 1 and 3, are a pair of neighbours 16 bits
/// apart. Codes of 4 bits have a word for each eight inputs: pair k is at bits 4 k and 16 + 4 k.
constexpr CodePlace code_place(const WeightFormat& format, int input) {
  const int covered = 32 * operands_of(format), piece = input / covered, within = input % covered;
  const int operand = within / 32, lane = within % 32 / 8, j = within % 8;
  const int at = piece * 64 + lane * 16;
  if (format.bits() == 8) return {at + operand * 8 + j / 4 * 4 + (j % 2 * 2 + j % 4 / 2), 0};
  const int bit = 4 * (j / 2) + 16 * (j % 2);
  return {at + operand * 4 + bit / 8, bit % 8};
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

/// Slot of row r in KvCache::unquantised().
constexpr KvSlot row_slot(int r) { return {r / kBlockTokens, r % kBlockTokens}; }

/// Byte offset of (token t of the block, dimension d) within an 8-bit K or V piece.
constexpr int kv_code_index(int head_dim, int t, int d) {
  const int turn = head_dim % 128 == 0 ? t % 8 : head_dim % 64 == 0 ? t / 2 % 4 : 0;
  return t * head_dim + ((d / 16) ^ turn) * 16 + d % 16;
}

}  // namespace troupe::kernels::cuda
