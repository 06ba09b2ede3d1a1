#pragma once
// A matrix product as a chooser sees it: sizes and types, no pointers.
#include "gpu/dtype.h"
#include "kernels/cuda/product/layout.h"

namespace troupe::kernels::cuda {

/// What becomes of the sums y, in registers, so that no intermediate goes to memory.
enum class Ending {
  store_f32,     ///< out_f32[p][o] = y                                   lm_head
  store_scaled,  ///< out[p][o] = cast(scale[p] * y)                      an expert's down
  add,           ///< out_f32[p][o] += y                                  o_proj, down of the dense mlp
  swiglu,        ///< out[p][i] = cast(silu(y[gate i]) * y[up i])         gate|up
  qkv,           ///< rotated and sent to q and KV memory, as QkvRopeKvWrite says
};

/// How tensor cores take weights: a row of the tables of kernels (codes.cuh has a type for each).
enum class CodeKind { bf16, f16, fp8, int8, int4, grouped_int4, wint2 };
inline constexpr int kCodeKinds = 7;
constexpr CodeKind code_kind(const WeightFormat& format) {
  switch (format.kind) {
    case WeightKind::f16: return CodeKind::f16;
    case WeightKind::fp8: return CodeKind::fp8;
    case WeightKind::int8: return CodeKind::int8;
    case WeightKind::int4: return format.group == 0 ? CodeKind::int4 : CodeKind::grouped_int4;
    case WeightKind::wint2: return CodeKind::wint2;
    default: return CodeKind::bf16;
  }
}

/// Neighbouring columns of the residual stream whose squares are added up to one float (HalvedNorm): as many
/// as strips consume, or half as many, for other consumers.
inline constexpr int kSquaresPerSum = 8, kSquaresPerSmallSum = 4;

struct LinearShape {
  Ending ending = Ending::add;
  WeightFormat format{};
  int outputs = 0;  ///< of one group; of gate|up both halves
  int inputs = 0;
  int rows = 0;            ///< all groups together
  int groups = 0;          ///< matrices with rows of their own; 0: a dense product
  int head_dim = 0;        ///< qkv
  DType kv = DType::bf16;  ///< qkv: of KV memory
  /// See HalvedNorm (linear.h). A dense layer's tail asks for them; only strips have them.
  bool consumes_halved_norm = false;
  bool produces_halved_norm = false;
  int squares_per_sum = kSquaresPerSum;  ///< HalvedNorm::squares_per_sum

  constexpr bool grouped() const { return groups > 0; }
  /// Rows of an average group; how many each has is known on the device alone.
  constexpr int average_rows() const { return grouped() ? rows / groups : rows; }
  /// Elements of a row of x, padding included.
  constexpr int stride() const { return row_stride(inputs); }
  constexpr int weight_row_bytes() const { return row_bytes(format, inputs); }
  /// True if a row of the weight covers the inputs of a row of x and no more, as strips need it.
  constexpr bool covers_x() const { return padded_inputs(format, inputs) == stride(); }
  constexpr DType activations() const { return format.activations; }
};

}  // namespace troupe::kernels::cuda
