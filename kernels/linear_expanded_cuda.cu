// Products of many rows on Hopper whose weights are codes: codes become bf16 in working memory, some groups
// at a time, and those are multiplied by wgmma. A bf16 holds every code; scales of outputs multiply the sums.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/expanded.h"
#include "kernels/cuda/product/wgmma_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kExpandWarps = 8;

struct ExpandWeightsArgs {
  const char* codes = nullptr;  ///< of the first group
  std::size_t group_bytes = 0;  ///< from a group's codes to the next
  std::size_t scales_at = 0;    ///< bytes from a group's codes to its scales
  int scale_group = 0;          ///< inputs that share a scale; 0: none do
  int row_bytes = 0;            ///< of codes
  int outputs = 0;              ///< padded
  Bf16* to = nullptr;           ///< (groups, outputs, stride)
  int stride = 0;
};

/// A warp for each output of a group: block (x, g) has outputs 8 x … 8 x + 7 of group g. A lane takes 16
/// bytes of codes at a time; the four lanes of a piece of 64 bytes write 64 neighbouring bytes for each 32
/// inputs.
template <class Codes>
__global__ void __launch_bounds__(kExpandWarps * 32) expand_weights(const ExpandWeightsArgs a) {
  const int output = static_cast<int>(blockIdx.x) * kExpandWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The product before this one reads `to`, so no store before the wait; codes are constants.
  const char* group = a.codes + static_cast<std::size_t>(blockIdx.y) * a.group_bytes;
  const auto* codes = reinterpret_cast<const uint4*>(group + static_cast<std::size_t>(output) *
                                                                 static_cast<std::size_t>(a.row_bytes));
  Bf16* to = a.to + (static_cast<std::size_t>(blockIdx.y) * static_cast<std::size_t>(a.outputs) +
                     static_cast<std::size_t>(output)) *
                        static_cast<std::size_t>(a.stride);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  if (output >= a.outputs) return;
#pragma unroll 4
  for (int i = lane; i < a.row_bytes / 16; i += 32) {
    const uint4 raw = __ldg(codes + i);
#pragma unroll
    for (int o = 0; o < Codes::kOperands; ++o) {
      const int input = (i / 4 * Codes::kOperands + o) * 32 + i % 4 * 8;
      if (input >= a.stride) break;  // codes of zero, of no input
      uint4 expanded;
      if constexpr (Codes::kGroupScales) {
        const auto* scales = reinterpret_cast<const Bf16*>(group + a.scales_at);
        expanded = Codes::operand(
            raw, o,
            scales[static_cast<std::size_t>(input / a.scale_group) * static_cast<std::size_t>(a.outputs) +
                   output]);
      } else {
        expanded = Codes::operand(raw, o);
      }
      *reinterpret_cast<uint4*>(to + input) = expanded;
    }
  }
}

/// Of int8, int4 and int4 in groups.
constexpr auto kExpandRows = make_table<3>([](auto index) {
  using Codes = typename MultipliedAt<static_cast<int>(CodeKind::int8) + index>::Codes;
  return KernelRow<ExpandWeightsArgs>{expand_weights<Codes>, kExpandWarps * 32};
});
constexpr auto kScaledRows = wgmma_table<WgmmaScales::outputs>();

}  // namespace

void run_expanded(Cuda& device, const Linear& linear, int tile) {
  const Matrix& weight = linear.weight;
  const std::size_t kind = static_cast<std::size_t>(code_kind(weight.format)) - std::size_t(CodeKind::int8);
  TROUPE_CHECK(kind < kExpandRows.size());
  const bool grouped = linear.groups.offsets != nullptr;
  const int groups = grouped ? linear.groups.count : 1, at_once = groups_expanded_at_once(weight, groups);
  void* memory = linear.working_memory != nullptr
                     ? linear.working_memory
                     : device.scratch(working_bytes(linear, LinearWay::expanded));
  const std::size_t scales_at = weight_bytes(weight.format, weight.outputs, weight.inputs);
  for (int first = 0; first < groups; first += at_once) {
    const int count = std::min(at_once, groups - first);
    const char* codes =
        static_cast<const char*>(weight.data) + static_cast<std::size_t>(first) * linear.groups.weight_stride;
    const ExpandWeightsArgs arguments{.codes = codes,
                                      .group_bytes = linear.groups.weight_stride,
                                      .scales_at = scales_at,
                                      .scale_group = weight.format.group,
                                      .row_bytes = row_bytes(weight.format, weight.inputs),
                                      .outputs = padded(weight.outputs),
                                      .to = static_cast<Bf16*>(memory),
                                      .stride = row_stride(weight.inputs)};
    Linear plain = linear;
    plain.weight.data = memory;
    plain.weight.format = weight.activations();
    if (grouped) {
      plain.groups.offsets += first;
      plain.groups.count = count;
      plain.groups.weight_stride = expanded_group_bytes(weight);
    }
    const ExpandedWeights expanded{.scales = codes + scales_at, .scales_stride = linear.groups.weight_stride};
    launch(device, kExpandRows[kind],
           {.x = (arguments.outputs + kExpandWarps - 1) / kExpandWarps, .y = count}, {}, arguments);
    if (weight.format.scales_outputs()) {
      launch_wgmma(device, plain, tile, kScaledRows[static_cast<std::size_t>(tile)], &expanded);
    } else {
      run_wgmma(device, plain, tile, &expanded);
    }
  }
}

std::vector<CompiledKernel> expanded_kernels() { return compiled_of(kExpandRows, kScaledRows); }

}  // namespace troupe::kernels::cuda
