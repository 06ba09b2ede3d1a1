#pragma once
// One matrix product for all ops that have one.
//
//   y[p] = W_g · x[row(p)]        for every row p of group g
//
// A dense product is one group of all rows. A grouped product has one weight per group (an expert) and its
// rows sorted by group. There are seven ways to run it; choose.h says which.
#include <cstddef>
#include <cstdint>

#include "gpu/cuda.h"
#include "kernels/add_rms_norm.h"
#include "kernels/batch.h"
#include "kernels/cuda/product/choose.h"
#include "kernels/cuda/product/shape.h"
#include "kernels/dense_tail.h"
#include "kernels/linear_add.h"
#include "kernels/linear_bias.h"
#include "kernels/lm_head.h"
#include "kernels/matrix.h"
#include "kernels/mlp.h"
#include "kernels/moe_tail.h"
#include "kernels/qkv_rope_kv_write.h"

namespace troupe::kernels::cuda {

/// Rows of a grouped product: group g has rows offsets[g] … offsets[g + 1] - 1.
struct Groups {
  const std::int32_t* offsets = nullptr;  ///< (count + 1), device memory; null: one group of all rows
  const std::int32_t* gather = nullptr;   ///< (rows) x row of row p; null: row p itself
  int count = 1;
  std::size_t weight_stride = 0;  ///< bytes from one group's weight to the next
  /// The offsets are settled (kernels/cuda/launch.cuh): an earlier kernel, after the one that wrote them, is
  /// a grouped product of the same offsets, which holds the next kernel. So this one may fetch weights before
  /// its wait.
  bool settled = false;
  /// Streams alone: the weight of group 0. Those of the next groups follow it; behind the last weight comes
  /// the first.
  int first_weight = 0;
  /// Streams alone: the first `known` groups have `known_rows` rows each, which are rows 0 … of x, and x is
  /// settled (launch.cuh). So their blocks need not wait for the kernel that writes the offsets; they write
  /// `out` before it has ended, which no kernel since the one that made x touches.
  int known = 0;
  int known_rows = 0;

  constexpr int weight_of(int group) const {
    return group + first_weight < count ? group + first_weight : group + first_weight - count;
  }
};

/// An RMS norm of the residual stream, made in two halves without a kernel of its own. The product that ends
/// in the stream produces h * weight and the squares of h; the product after it consumes them, and multiplies
/// its sums by 1 / sqrt(mean square + eps). One rounding less than AddRmsNorm has. Strips and slabs
/// only.
struct HalvedNorm {
  void* weighted = nullptr;  ///< (rows, padded(cols)) of the weights' dtype: h * weight; null: no norm
  float* squares = nullptr;  ///< of h: sums of the squares of neighbours, (rows, sums_of_squares(cols)) of
                             ///< strips, (rows, slab_square_sums(cols)) of slabs
  int squares_per_sum = kSquaresPerSum;  ///< or kSquaresPerSmallSum, which strips produce and do not consume
  const float* weight = nullptr;         ///< (padded(cols))
  int cols = 0;
  float eps = 0;
};

/// Of a norm that is plain, with squares of so many columns.
constexpr HalvedNorm halves_of(const AddRmsNorm& norm, float* squares, int squares_per_sum = kSquaresPerSum) {
  return {.weighted = norm.out,
          .squares = squares,
          .squares_per_sum = squares_per_sum,
          .weight = norm.weight,
          .cols = norm.cols,
          .eps = norm.eps};
}

struct Linear {
  Matrix weight{};          ///< of group 0; outputs counts both halves of gate|up
  const void* x = nullptr;  ///< rows of padded(weight.inputs) elements of the weight's activations
  /// x as QuantiseRows makes it: all that a product with fp8 weights reads of x. Null: see with_coded_x()
  const std::uint8_t* x_codes = nullptr;
  const float* x_scales = nullptr;
  int rows = 0;       ///< all groups together; grouped: at most so many (the offsets decide)
  AddRmsNorm norm{};  ///< with a weight: x is its `out`, not computed yet. run() computes it first, with
                      ///< fp8 weights as codes alone
  HalvedNorm consumed_norm{};  ///< instead of x
  HalvedNorm produced_norm{};  ///< with Ending::add
  Groups groups{};
  // LinearWay::unpacked may read x in an order of its own (unpacked.h):
  int x_rows = 0;                 ///< of x, if rows are gathered
  bool x_is_interleaved = false;  ///< x has that order already
  bool x_is_int8 = false;         ///< int4 alone: x is int8, in the order of moe/static_inputs.h. swiglu then
                                  ///< multiplies both halves by `scale` and rounds them first
  bool interleaves_out = false;   ///< swiglu: out gets it
  /// working_bytes() of it: for expanded weights or interleaved x. Null: run() takes the device's.
  void* working_memory = nullptr;
  Ending ending = Ending::add;
  void* out = nullptr;           ///< rows of padded(outputs) elements (swiglu: padded(outputs / 2)); fp32
                                 ///< for store_f32 and add, else as x. Unused by qkv. Padding
                                 ///< columns get zeros.
  const float* scale = nullptr;  ///< (rows), store_scaled and swiglu of int8
  // qkv:
  void* q = nullptr;
  const float* rope = nullptr;
  KvCache kv{};
  int layer = 0;
  int heads = 0;
  const KvSlot* slots =
      nullptr;  ///< rows whose block is kPaddingBlock write no key and value; null: row_slot()
  /// LinearBias alone, whose tiles have an ending of their own (wgmma_biased.cuh, biased_four.cuh). As there.
  const float* bias = nullptr;
  BiasEnding bias_ending = BiasEnding::store;
};

Linear linear_of(const LinearAdd& op);
Linear linear_of(const LmHead& op);
/// With a quantised cache, K and V go to op.unquantised; call quantise_kv() after the product.
Linear linear_of(const QkvRopeKvWrite& op);
void quantise_kv(Cuda& device, const QkvRopeKvWrite& op);
Linear gate_up_of(const Mlp& op);
Linear down_of(const Mlp& op);

/// What choose() needs to know of a product.
inline LinearShape shape_of(const Linear& linear) {
  return {.ending = linear.ending,
          .format = linear.weight.format,
          .outputs = linear.weight.outputs,
          .inputs = linear.weight.inputs,
          .rows = linear.rows,
          .groups = linear.groups.offsets != nullptr ? linear.groups.count : 0,
          .head_dim = linear.kv.head_dim,
          .kv = linear.kv.dtype,
          .consumes_halved_norm = linear.consumed_norm.weighted != nullptr,
          .produces_halved_norm = linear.produced_norm.weighted != nullptr,
          .squares_per_sum = linear.produced_norm.squares_per_sum};
}

/// fp8 weights are multiplied by x in codes: blocks of kFp8Block inputs, rising,
///   y[o] = sum over b of
///            (sum over k in b of x_codes[k] * w_codes[o][k]) * (x_scales[b] * w_scales[b][o / 8])
/// in fp32, whatever the number of rows.
constexpr bool takes_coded_x(const WeightFormat& format) { return format.kind == WeightKind::fp8; }
/// The product with x_codes and x_scales, if its weights take them. If they are null, x is quantised into
/// coded_x_bytes() at `memory`, or its norm is told to make codes there; x is not gathered then.
Linear with_coded_x(Cuda& device, const Linear& linear, void* memory);
/// 0 if the product takes no codes or has them.
std::size_t coded_x_bytes(const Linear& linear);
/// What a product takes as working_memory that runs this way.
std::size_t working_bytes(const Linear& linear, LinearWay way);
/// What run() asks of the device: codes of x, then working memory if the product brings none.
std::size_t scratch_bytes(const Linear& linear, LinearWay way);

/// What choose() needs to know of a LinearBias, and whether its product ends in the bias then.
LinearShape shape_of(const LinearBias& op);
constexpr bool ends_in_bias(const LinearChoice& choice) {
  return choice.way == LinearWay::wgmma || (choice.way == LinearWay::stream && choice.stream.many_rows);
}

/// Whether a dense layer's tail has halved norms, and the ways of its products then.
DenseTailChoice choose(const DenseTail& op, const GpuTraits& gpu);

/// How a MoeTail runs.
struct MoeTailChoice {
  /// Its experts are a few rows', and its norms are made in halves: the first by attention_out and by the
  /// routing and the experts, the second by the experts and by the next product. Else op by op.
  bool halved = false;
  bool next_halved = false;  ///< else there is no next product, or its norm is a kernel
  LinearChoice attention_out{}, next{};
};
MoeTailChoice choose(const MoeTail& op, const GpuTraits& gpu);

/// Runs the norm if there is one, then the product as choose() says. Nothing without rows.
void run(Cuda& device, const Linear& linear);
/// Runs the product as `choice` says: choose() of its shape.
void run(Cuda& device, const Linear& linear, const LinearChoice& choice);

// The ways. They check nothing; a product without rows is no product.
void run_generic(Cuda& device, const Linear& linear);
void run_stream(Cuda& device, const Linear& linear, const StreamPlan& plan);
void run_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan);  ///< run_stream() of many rows
/// The same, ending in `bias` and `bias_ending`; weights that are no codes.
void run_biased_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan);
void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan);
void run_slabs(Cuda& device, const Linear& linear, const SlabPlan& plan);
void run_wgmma(Cuda& device, const Linear& linear, int tile);  ///< index into kWgmmaTiles
void run_wgmma_fp8(Cuda& device, const Linear& linear, int tile);
void run_unpacked(Cuda& device, const Linear& linear);
void run_expanded(Cuda& device, const Linear& linear, int tile);  ///< the same for weights that are codes

}  // namespace troupe::kernels::cuda
