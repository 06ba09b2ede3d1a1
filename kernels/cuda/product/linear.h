#pragma once
// One matrix product for all ops that have one, and the four ways to run it.
//
//   y[p] = W_g · x[row(p)]        for every row p of group g
//
// A dense product is one group of all rows. A grouped product has one weight per group (an expert) and the
// rows sorted by group. `ending` says what becomes of y, in registers, so that no intermediate goes to
// memory.
//
//   generic   any dtype, shape and GPU; slow; what f32, odd shapes and old GPUs fall back to
//   stream    16-bit types: weights are read once for a few rows (decode); mma.sync
//   strips    bf16 on Hopper: up to eight rows, weights of some megabytes; kernels/cuda/product/strip.h
//   wgmma     16-bit types on Hopper: many rows (prefill)
// Each function checks nothing and runs everything it is given; run() chooses.
#include <cstddef>
#include <cstdint>

#include "gpu/cuda.h"
#include "kernels/add_rms_norm.h"
#include "kernels/batch.h"
#include "kernels/linear_add.h"
#include "kernels/matrix.h"
#include "kernels/mlp.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels::cuda {

enum class Ending {
  store_f32,     ///< out_f32[p][o] = y                                   lm_head
  store_scaled,  ///< out[p][o] = cast(scale[p] * y)                      an expert's down
  add,           ///< out_f32[p][o] += y                                  o_proj, down of the dense mlp
  swiglu,        ///< out[p][i] = cast(silu(y[gate i]) * y[up i])         gate|up
  qkv,           ///< rotated and sent to q and KV memory, as QkvRopeKvWrite says
};

/// Rows of a grouped product: group g has rows offsets[g] … offsets[g + 1] - 1.
struct Groups {
  const std::int32_t* offsets = nullptr;  ///< (count + 1), device memory; null: one group of all rows
  const std::int32_t* gather = nullptr;   ///< (rows) x row of row p; null: row p itself
  int count = 1;
  std::size_t weight_stride = 0;  ///< bytes from one group's weight to the next
  /// The offsets are settled (kernels/cuda/launch.cuh): the kernel before this one is a grouped product of
  /// the same offsets, which holds the next kernel. So this one may fetch weights before its wait.
  bool settled = false;
};

/// An RMS norm of the residual stream, in halves: the product that ends in the stream leaves the first, and
/// the product behind it takes it, and multiplies its sums by 1 / sqrt(mean square + eps). So nobody waits
/// for a norm. One rounding less than AddRmsNorm has. For strips alone.
struct HalvedNorm {
  void* weighted = nullptr;       ///< (rows, padded(cols)) of the weights' dtype: h * weight; null: no norm
  float* squares = nullptr;       ///< (rows, padded(cols) / 8): sums of the squares of eight neighbours of h
  const float* weight = nullptr;  ///< (padded(cols))
  int cols = 0;
  float eps = 0;
};

struct Linear {
  Matrix weight{};          ///< of group 0; outputs counts both halves of gate|up
  const void* x = nullptr;  ///< rows of padded(weight.inputs) elements of weight.dtype
  int rows = 0;             ///< all groups together; grouped: at most so many (the offsets decide)
  AddRmsNorm norm{};        ///< with a weight: x is its `out`, and not made yet. run() makes it
  HalvedNorm takes{};       ///< instead of x
  HalvedNorm leaves{};      ///< with Ending::add
  Groups groups{};
  Ending ending = Ending::add;
  void* out = nullptr;           ///< rows of padded(outputs) elements (swiglu: padded(outputs / 2)); fp32
                                 ///< for store_f32 and add, else weight.dtype. Unused by qkv. Padding
                                 ///< columns get zeros.
  const float* scale = nullptr;  ///< (rows), store_scaled
  // qkv:
  void* q = nullptr;
  const float* rope = nullptr;
  KvCache kv{};
  int layer = 0;
  int heads = 0;
  const KvSlot* slots = nullptr;  ///< rows whose block is kPaddingBlock write no key and value
};

Linear linear_of(const LinearAdd& op);
Linear linear_of(const QkvRopeKvWrite& op);
Linear gate_up_of(const Mlp& op);
Linear down_of(const Mlp& op);

void run_generic(Cuda& device, const Linear& linear);
void run_stream(Cuda& device, const Linear& linear);
void run_wgmma(Cuda& device, const Linear& linear);

/// Whether the fast ways take this product: dtype of 16 bits, head_dim a multiple of 64 for qkv, …
bool stream_takes(const Cuda& device, const Linear& linear);
bool wgmma_takes(const Cuda& device, const Linear& linear);

/// Chooses by device, dtype, shape and rows per group, and has the norm made before. Halved norms are not
/// its. With batch_invariant() the choice does not depend on the rows.
void run(Cuda& device, const Linear& linear);

}  // namespace troupe::kernels::cuda
