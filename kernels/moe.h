#pragma once
// The mixture-of-experts feed-forward block: router, selection, experts, weighted sum.
#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "kernels/add_rms_norm.h"
#include "kernels/batch.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// `count` matrices of one shape, one after the other.
struct MatrixStack {
  Matrix first{};
  int count = 0;

  std::size_t stride() const { return matrix_bytes(first.format, first.outputs, first.inputs); }
  Matrix at(int i) const {
    Matrix matrix = first;
    if (first.data != nullptr) {
      matrix.data = static_cast<std::byte*>(first.data) + static_cast<std::size_t>(i) * stride();
    }
    return matrix;
  }
};

/// How the rows of an expert's product become int8 codes by a static scale:
/// code = number · to_codes, rounded half away from zero and clamped to ±127; an output is
/// of_sums · (sum of code · code of the weight) · scale of the weight. Both in fp32; a W4A8 checkpoint has
/// of_sums 16, because its scales are of weights' codes times 16.
struct StaticInput {
  float to_codes = 0;  ///< 127 / largest magnitude
  float of_sums = 0;   ///< a power of two keeps the sums exact
};

/// Neighbouring inputs of a W4A8 expert's down product that are rotated together.
inline constexpr int kHadamardBlock = 128;

/// Statistics of the experts' inputs, from which static scales are made: an expert's element is raised to the
/// largest magnitude among the inputs of its rows. NaN once one was. Null: not wanted.
struct LargestInputs {
  float* gate_up = nullptr;  ///< (in_stacks()) of x
  float* down = nullptr;     ///< (in_stacks()) of down's inputs, rotated as W4A8 experts rotate them; their
                             ///< width is a multiple of kHadamardBlock

  constexpr bool wanted() const { return gate_up != nullptr; }
  /// Those of a later layer, where all layers' lie one after the other.
  constexpr LargestInputs of_layer(int layer, int experts) const {
    const auto skipped = static_cast<std::size_t>(layer) * static_cast<std::size_t>(experts);
    return wanted() ? LargestInputs{gate_up + skipped, down + skipped} : LargestInputs{};
  }
};

/// p = softmax(router · x[r]) over all experts, in fp32. The top_k experts with the largest p + bias are
/// chosen, the lowest index among equals; their weights are p / max(sum of the chosen p, 1e-12).
/// A model of two kinds of rows, text and vision, runs the op once for each, with their own routers and
/// stacks.
///   residual[r] += sum over the chosen, in rising order of expert, of round(weight_e * expert_e(x[r]))
///                + sum over the shared slices, in rising order, of round(expert_s(x[r]))
///   expert(x) = down · round(silu(gate · x) * (up · x))
/// round() is to the dtype, and happens nowhere else: products, the scaling by the weight and the sum over a
/// row's experts are fp32. That holds on every device, so that devices differ by the order of their dot
/// products alone. transformers rounds more often: the output of down, its product with the weight, and every
/// partial sum over the experts.
/// `parts`: the stacks have some of the experts' columns alone, and the sum over the ranks is the output. The
/// Cpu does not round parts. Nor does Cuda with 16-bit weights and at most kMostExactParts rows, or with
/// batch_invariant(); else it does: fp32 is 0.7 GB more traffic for 8,192 rows with 8 experts, 2,560 wide.
/// Shared experts are one MLP of width shared * intermediate; cut into slices of `intermediate` it is
/// `shared` more experts that every row takes with weight 1, at the end of the stacks.
/// W4A8 (with gate_up_inputs): each copy of a row becomes codes by its expert's scale, and
///   expert(x) = round(down · codes(H · round(silu(round(gate · x)) * round(up · x))))
/// with H the unnormalised Hadamard transform of blocks of kHadamardBlock inputs, whose stages are rounded.
/// The weighted sum of experts is fp32. No shared slices.
/// A row's bits depend on that row alone on the Cpu, and on Cuda when it is batch_invariant().
/// ERNIE-4.5's router: transformers, modeling_ernie4_5_moe.py, Ernie4_5_MoeTopKRouter.
struct Moe {
  float* residual = nullptr;    ///< (rows, padded(hidden))
  const void* x = nullptr;      ///< (rows, padded(hidden)) of the experts' dtype
  Matrix router{};              ///< f32 whatever the experts' dtype; `experts` outputs, hidden inputs
  const float* bias = nullptr;  ///< (experts) e_score_correction_bias
  MatrixStack gate_up{};  ///< in_stacks() + shared; gate_up_outputs(intermediate) outputs, hidden inputs
  MatrixStack down{};     ///< in_stacks() + shared; hidden outputs, intermediate inputs
  const StaticInput* gate_up_inputs = nullptr;  ///< (in_stacks()) of W4A8 experts in int4; null: of others
  const StaticInput* down_inputs = nullptr;     ///< the same
  int experts = 0;  ///< that the router knows, without the shared slices; at most kMostExperts
  int first = 0;    ///< of the experts in the stacks
  int held = 0;     ///< so many are in the stacks, the others add nothing; 0: all
  bool parts = false;
  int shared = 0;  ///< slices
  int top_k = 0;   ///< 1 … experts, at most kMostChosen
  int rows = 0;
  AddRmsNorm norm{};       ///< if it has a weight, it runs first; its `out` is x
  AddRmsNorm next_norm{};  ///< if it has a weight, it runs last, of `residual`, all rows, with nothing added
  const std::uint8_t* kinds = nullptr;  ///< (rows) rows of another kind than `kind` take the shared slices
                                        ///< alone; null: all are of it
  std::uint8_t kind = 0;
  const KvSlot* slots = nullptr;   ///< rows whose block is kPaddingBlock touch no expert; null: all count
  std::int32_t* chosen = nullptr;  ///< (rows, top_k) the experts chosen, rising, -1 for padding rows, for
                                   ///< statistics; null: not wanted
  LargestInputs largest{};         ///< the Cpu alone, of experts that are not W4A8

  int in_stacks() const { return held > 0 ? held : experts; }
};

inline constexpr int kMostExperts = 256;
inline constexpr int kMostChosen = 32;
inline constexpr int kMostExactParts = 128;

void run(Cpu& device, const Moe& op);
void run(Cuda& device, const Moe& op);

}  // namespace troupe::kernels
