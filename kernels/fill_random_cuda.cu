#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/pack_codes.h"
#include "kernels/cuda/product/quantise.h"
#include "kernels/fill_random.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;  // of rows that are quantised at a time

// The quantiles are in shared memory. A thread makes the four draws of one hash and stores them together.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    fill_kernel(FillRandom op, int first_draw, const float* quantiles) {
  const int first_group = op.part.first / kDrawsPerHash;
  __shared__ Element table[kQuantiles];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  for (int i = threadIdx.x; i < kQuantiles; i += kThreads) {
    const auto rounded = cuda::from_float<cuda::Bf16>(quantiles[i] * op.deviation);
    table[i] = cuda::from_float<Element>(cuda::to_float(rounded));
  }
  __syncthreads();
  const int inputs = op.into.inputs, stride = padded(inputs);
  const int groups = (inputs + kDrawsPerHash - 1) / kDrawsPerHash;
  const std::size_t all = static_cast<std::size_t>(op.outputs) * groups;
  for (std::size_t n = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; n < all;
       n += static_cast<std::size_t>(gridDim.x) * kThreads) {
    const int o = static_cast<int>(n / groups), group = static_cast<int>(n % groups);
    std::uint64_t bits = draw_bits(op.seed, static_cast<std::uint32_t>(first_draw + o),
                                   static_cast<std::uint32_t>(first_group + group));
    Element* to = static_cast<Element*>(op.into.data) +
                  static_cast<std::size_t>(cuda::placed_row(op.place, op.first, o)) * stride +
                  group * kDrawsPerHash;
    Element draws[kDrawsPerHash];
#pragma unroll
    for (int d = 0; d < kDrawsPerHash; ++d, bits >>= 16) {
      draws[d] = group * kDrawsPerHash + d < inputs ? table[bits % kQuantiles] : Element(0.0f);
    }
    if constexpr (sizeof(Element) == 4) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(draws);
    } else {
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(draws);
    }
  }
}

/// Fills op.outputs rows, which draw as outputs first_draw … do.
void fill(Cuda& device, const FillRandom& op, int first_draw, const float* quantiles) {
  const std::size_t draws = static_cast<std::size_t>(op.outputs) * (padded(op.into.inputs) / kDrawsPerHash);
  const std::size_t blocks = std::min<std::size_t>(
      (draws + kThreads - 1) / kThreads, std::size_t(device.multiprocessors()) * kBlocksPerMultiprocessor);
  cuda::with_element(op.into.activations(), [&](auto element) {
    troupe::cuda::launch(device, fill_kernel<decltype(element)>,
                         {.grid = unsigned(blocks), .block = kThreads}, op, first_draw, quantiles);
  });
}

/// Draws rows of bf16 and quantises them, some outputs at a time.
void fill_quantised(Cuda& device, const FillRandom& op) {
  const int inputs = op.part.inputs(op.into);
  const RowPart drawn{.first = op.part.counts(op.into) ? 0 : op.part.first};
  const std::size_t row = std::size_t(padded(inputs)) * size_of(DType::bf16);
  const int unit = cuda::quantised_together(op.into.format);
  const auto at_once =
      static_cast<int>(std::max<std::size_t>(1, kPieceBytes / row / std::size_t(unit)) * std::size_t(unit));
  const std::size_t rows_bytes = std::size_t(std::min(at_once, op.outputs)) * row;
  auto* memory = static_cast<std::byte*>(device.scratch(sizeof(float) * kQuantiles + rows_bytes));
  auto* quantiles = reinterpret_cast<float*>(memory);
  device.upload(quantiles, normal_quantiles().data(), sizeof(float) * kQuantiles);
  for (int output = 0; output < op.outputs; output += at_once) {
    const int count = std::min(at_once, op.outputs - output);
    const Matrix rows{memory + sizeof(float) * kQuantiles, DType::bf16, count, inputs};
    fill(device, {.into = rows, .outputs = count, .seed = op.seed, .deviation = op.deviation, .part = drawn},
         op.first_output + output, quantiles);
    cuda::quantise(device, {.into = op.into,
                            .place = op.place,
                            .first = op.first,
                            .output = output,
                            .outputs = count,
                            .rows = rows.data,
                            .part = op.part});
  }
}

}  // namespace

void run(Cuda& device, const FillRandom& op) {
  TROUPE_CHECK(op.part.first % kDrawsPerHash == 0);
  TROUPE_CHECK(op.outputs > 0 &&
               cuda::placed_row(op.place, op.first, op.outputs - 1) < padded(op.into.outputs));
  if (op.into.format.kind == WeightKind::wint2) return cuda::fill_wint2(device, op);
  if (op.into.format.quantised()) return fill_quantised(device, op);
  auto* quantiles = static_cast<float*>(device.scratch(sizeof(float) * kQuantiles));
  device.upload(quantiles, normal_quantiles().data(), sizeof(float) * kQuantiles);
  fill(device, op, op.first_output, quantiles);
}

}  // namespace troupe::kernels
