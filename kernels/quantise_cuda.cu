// Codes and scales of int8 and int4 by the rules of quantize.h. One warp makes an output's.
#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/quantise.h"
#include "kernels/cuda/quantise.cuh"
#include "kernels/quantize.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // of a block

struct QuantiseWeightsArgs {
  std::byte* codes;  ///< of output 0 of the matrix
  void* scales;
  WeightFormat format;
  int inputs;              ///< of the matrix
  int skipped;             ///< inputs of a source row before them
  int row_inputs, stride;  ///< of a source row
  int matrix_outputs;      ///< with padding
  int row_bytes;           ///< of a row of codes
  float largest;           ///< code
  Place place;
  int first, output, outputs;
  const void* rows;
};

/// The scale of inputs begin … end - 1 of a row, in all lanes.
template <class T>
__device__ __forceinline__ float scale_of(const T* row, int begin, int end, float largest_code,
                                          bool of_group) {
  unsigned largest = 0;
  for (int i = begin + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
    largest = max(largest, magnitude_bits(to_float(row[i])));
  }
  const float scale = __fdiv_rn(warp_magnitude(largest), largest_code);
  return of_group ? group_scale(scale) : scale;
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) quantise_kernel(const QuantiseWeightsArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int o = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (o >= a.outputs) return;
  const T* row =
      static_cast<const T*>(a.rows) + static_cast<std::size_t>(o) * static_cast<std::size_t>(a.stride);
  const int placed = placed_row(a.place, a.first, a.output + o), lane = static_cast<int>(threadIdx.x) % 32;
  std::byte* codes = a.codes + static_cast<std::size_t>(placed) * static_cast<std::size_t>(a.row_bytes);
  const int group = a.format.group == 0 ? a.inputs : a.format.group;
  const T* const taken = row + a.skipped;
  for (int begin = 0; begin < a.inputs; begin += group) {
    const int end = min(begin + group, a.inputs);
    const float scale = a.format.group == 0 ? scale_of(row, 0, a.row_inputs, a.largest, false)
                                            : scale_of(row, begin, end, a.largest, true);
    if (lane == 0) {
      if (a.format.group == 0) {
        static_cast<float*>(a.scales)[placed] = scale;
      } else {
        static_cast<Bf16*>(a.scales)[static_cast<std::size_t>(begin / group) * a.matrix_outputs + placed] =
            from_float<Bf16>(scale);
      }
    }
    if (a.format.bits() == 8) {
      for (int i = begin + lane; i < end; i += 32)
        codes[code_place(a.format, i).byte] =
            static_cast<std::byte>(integer_code(to_float(taken[i]), scale, a.largest));
      continue;
    }
    // Two codes of a byte are two inputs apart: bits 4 k and 4 k + 4 are pairs k and k + 1.
    for (int i = begin + lane; i < end; i += 32) {
      const CodePlace at = code_place(a.format, i);
      if (at.shift != 0) continue;
      const int low = integer_code(to_float(taken[i]), scale, a.largest);
      const int high = i + 2 < end ? integer_code(to_float(taken[i + 2]), scale, a.largest) : 0;
      codes[at.byte] = static_cast<std::byte>((low & 15) | (high & 15) << 4);
    }
  }
}

}  // namespace

void quantise(Cuda& device, const Quantise& op) {
  const WeightFormat& format = op.into.format;
  if (format.kind == WeightKind::fp8) return quantise_blocks(device, op);
  TROUPE_CHECK(format.kind == WeightKind::int8 || format.kind == WeightKind::int4);
  const QuantiseWeightsArgs arguments{.codes = static_cast<std::byte*>(op.into.data),
                                      .scales = scales_of(op.into),
                                      .format = format,
                                      .inputs = op.into.inputs,
                                      .skipped = op.part.skipped(op.into),
                                      .row_inputs = op.part.inputs(op.into),
                                      .stride = padded(op.part.inputs(op.into)),
                                      .matrix_outputs = padded(op.into.outputs),
                                      .row_bytes = row_bytes(format, op.into.inputs),
                                      .largest = largest_code(format.kind),
                                      .place = op.place,
                                      .first = op.first,
                                      .output = op.output,
                                      .outputs = op.outputs,
                                      .rows = op.rows};
  with_element(op.dtype, [&](auto element) {
    troupe::cuda::launch(device, quantise_kernel<decltype(element)>,
                         {.grid = unsigned((op.outputs + kWarps - 1) / kWarps), .block = kWarps * 32},
                         arguments);
  });
}

}  // namespace troupe::kernels::cuda
