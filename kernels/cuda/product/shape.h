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
