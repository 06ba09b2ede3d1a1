// Codes and scales of fp8 weights by the rules of quantize.h. A block of threads makes those of 128 outputs ×
// 128 inputs, which share a scale; it is stored for each kFp8ScaleOutputs of them (matrix.h).
#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/quantise.h"
#include "kernels/cuda/quantise.cuh"
#include "kernels/quantize.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRowsOfWarp = kFp8Block / kWarps;
constexpr int kOfLane = kFp8Block / 32;  // inputs of a row

struct QuantiseBlocksArgs {
  std::uint8_t* codes;  // of output 0 of the matrix
  float* scales;
  int inputs, stride;  // of a source row
  int row_bytes;       // of a row of codes
  int eights;          // scales of a block of inputs
  Place place;
  int first, output, outputs;
  const void* rows;
};

template <class T>
__global__ void __launch_bounds__(kWarps * 32) quantise_blocks_kernel(const QuantiseBlocksArgs a) {
  __shared__ float largest_of[kWarps];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int input = static_cast<int>(blockIdx.x) * kFp8Block + lane * kOfLane;
  const int first =
      static_cast<int>(blockIdx.y) * kFp8Block + warp;  // row; the warp's others are kWarps apart
  float numbers[kRowsOfWarp][kOfLane];
  unsigned largest_bits = 0;
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int o = first + r * kWarps;
    const T* row =
        static_cast<const T*>(a.rows) + static_cast<std::size_t>(o) * static_cast<std::size_t>(a.stride);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      numbers[r][i] = o < a.outputs && input + i < a.inputs ? to_float(row[input + i]) : 0.0f;
      largest_bits = max(largest_bits, magnitude_bits(numbers[r][i]));
    }
  }
  const float largest = warp_magnitude(largest_bits);
  if (lane == 0) largest_of[warp] = largest;
  __syncthreads();
  const float scale = __fdiv_rn(warp_magnitude(magnitude_bits(largest_of[lane % kWarps])), kLargestFp8);
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int o = first + r * kWarps;
    if (o >= a.outputs) break;
    const int placed = placed_row(a.place, a.first, a.output + o);
    std::uint8_t* codes = a.codes + static_cast<std::size_t>(placed) * static_cast<std::size_t>(a.row_bytes);
    const float* n = numbers[r];
    *reinterpret_cast<std::uint32_t*>(codes + input) = fp8_codes(n[0], n[1], n[2], n[3], scale);
    if (placed % kFp8ScaleOutputs == 0 && lane == 0) {
      a.scales[static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(a.eights) +
               static_cast<std::size_t>(placed / kFp8ScaleOutputs)] = scale;
    }
  }
}

}  // namespace

void quantise_blocks(Cuda& device, const Quantise& op) {
  const WeightFormat& format = op.into.format;
  TROUPE_CHECK(format.kind == WeightKind::fp8 && op.output % kFp8Block == 0 &&
               op.first % kFp8ScaleOutputs == 0);
  const QuantiseBlocksArgs arguments{.codes = static_cast<std::uint8_t*>(op.into.data),
                                     .scales = static_cast<float*>(scales_of(op.into)),
                                     .inputs = op.into.inputs,
                                     .stride = padded(op.into.inputs),
                                     .row_bytes = row_bytes(format, op.into.inputs),
                                     .eights = padded(op.into.outputs) / kFp8ScaleOutputs,
                                     .place = op.place,
                                     .first = op.first,
                                     .output = op.output,
                                     .outputs = op.outputs,
                                     .rows = op.rows};
  const dim3 grid(unsigned(padded_inputs(format, op.into.inputs) / kFp8Block),
                  unsigned((op.outputs + kFp8Block - 1) / kFp8Block));
  with_element(op.dtype, [&](auto element) {
    troupe::cuda::launch(device, quantise_blocks_kernel<decltype(element)>,
                         {.grid = grid, .block = kWarps * 32}, arguments);
  });
}

}  // namespace troupe::kernels::cuda
