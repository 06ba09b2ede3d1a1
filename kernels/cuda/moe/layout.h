#pragma once
// How a mixture of experts runs on a GPU: the ways of its two products, and its working memory. A pure
// function of shapes and of the GPU, so that it can be made and tested where there is none.
#include <cstddef>

#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/product/choose.h"
#include "kernels/moe.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {

/// Places that this device's experts are expected to get: all of the shared slices', and of the others' as
/// many as the experts in the stacks are of all. What a way costs depends on them, not on most_places(). At
/// least 1.
int expected_places(int rows, int top_k, int shared, int held, int experts);

struct MoeLayout {
  LinearChoice gate_up{}, down{};
  bool few = false;    ///< the products and the sum run as those of a few rows (few_launch.h)
  bool exact = false;  ///< `outputs` are fp32 and not scaled yet
  /// Activations are written in the order in which an unpacked down product reads them.
  bool interleaved = false;
  Routing routing{};  ///< shared_first if both products are streams, whose blocks of shared slices then run
                      ///< beside the router
  std::byte* activations = nullptr;  ///< (most_places(), padded(intermediate)) of the experts' dtype; of
                                     ///< W4A8 as place_codes
  /// Of W4A8 experts (static_inputs.h), else null:
  std::byte* place_codes = nullptr;  ///< (most_places(), padded(hidden)) of that dtype, or int8 for an
                                     ///< unpacked product; its memory becomes that of `outputs`
  /// gate|up, rounded: (most_places(), gate_up_outputs(intermediate)) of that dtype. `activated`: an unpacked
  /// product ends in silu(gate) · up: (most_places(), padded(intermediate)).
  std::byte* gate_up_sums = nullptr;
  bool activated = false;
  float *gate_up_factors = nullptr, *down_factors = nullptr;  ///< by place: StaticInput::of_sums
  std::byte* outputs = nullptr;  ///< (most_places(), padded(hidden)) of that dtype, or fp32
  /// With fp8 weights the rows and the activations in codes; else their `rows` are 0. Rows are quantised
  /// before they are gathered: once, though several experts read them.
  QuantiseRows coded_x{}, coded_activations{};
  std::byte* working_memory = nullptr;  ///< Linear::working_memory of both products, one after the other
  std::size_t bytes = 0;
};

/// Lays it out in `memory`; null: only sizes and choices mean something.
MoeLayout lay_out(const Moe& op, const GpuTraits& gpu, std::byte* memory);

}  // namespace troupe::kernels::cuda
