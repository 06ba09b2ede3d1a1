// Routing, two grouped products, and the sum of each row's experts. The products are those of every other
// op (kernels/cuda/product/linear.h): rows sorted by expert, a weight per group.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/moe/static_inputs.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/scratch.h"
#include "kernels/moe.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels {
namespace {

constexpr int kMostThreads = 384;
constexpr int kColumns = 8;  // of a thread: one load of 16 bytes for the 16-bit types
constexpr int kMostAtOnce = 8;

struct CombineArgs {
  float* residual;
  const void* outputs;  ///< by place
  const float* scales;  ///< by place, of the outputs; null: they are scaled
  const std::int32_t* places;
  const std::int32_t* offsets;
  const KvSlot* slots;
  int held, shared, top_k, stride;
};

template <class Element>
struct alignas(16) ColumnValues {
  Element value[kColumns];
};

/// Adds the outputs of a row's experts, rising, then those of the shared slices.
template <class Element>
__global__ void __launch_bounds__(kMostThreads) combine_kernel(CombineArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const auto row = static_cast<std::size_t>(blockIdx.x);
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kColumns;
  if (column >= a.stride || (a.slots != nullptr && a.slots[row].block == kPaddingBlock)) return;
  float4* at = reinterpret_cast<float4*>(a.residual + row * a.stride + column);
  const float4 low = at[0], high = at[1];
  float sum[kColumns] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int parts = a.top_k + a.shared;
  for (int first = 0; first < parts; first += kMostAtOnce) {
    ColumnValues<Element> part[kMostAtOnce];  // all on their way before the first is added
    float scale[kMostAtOnce];
    bool there[kMostAtOnce];
#pragma unroll
    for (int i = 0; i < kMostAtOnce; ++i) {
      const int k = first + i;
      if (k >= parts) break;
      const int place =
          k < a.top_k ? a.places[row * a.top_k + k] : a.offsets[a.held + k - a.top_k] + static_cast<int>(row);
      there[i] = place >= 0;
      if (!there[i]) continue;
      scale[i] = a.scales == nullptr ? 1.0f : a.scales[place];
      part[i] = *reinterpret_cast<const ColumnValues<Element>*>(
          static_cast<const Element*>(a.outputs) + static_cast<std::size_t>(place) * a.stride + column);
    }
#pragma unroll
    for (int i = 0; i < kMostAtOnce; ++i) {
      if (first + i >= parts) break;
      if (!there[i]) continue;  // another rank's expert
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[c] += scale[i] * cuda::to_float(part[i].value[c]);
    }
  }
  at[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  at[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
}

}  // namespace

void run(Cuda& device, const Moe& op) {
  TROUPE_CHECK(op.experts >= 1 && op.experts <= kMostExperts && op.shared >= 0);
  TROUPE_CHECK(op.top_k >= 1 && op.top_k <= std::min(op.experts, kMostChosen));
  TROUPE_CHECK(op.router.activations() == DType::f32 &&
               op.gate_up.first.activations() == op.down.first.activations());
  TROUPE_CHECK(op.first >= 0 && op.first + op.in_stacks() <= op.experts);
  TROUPE_CHECK(op.gate_up.count == op.in_stacks() + op.shared && op.down.count == op.gate_up.count);
  const bool w4a8 = op.gate_up_inputs != nullptr;
  TROUPE_CHECK(!w4a8 ||
               (op.shared == 0 && op.down_inputs != nullptr && op.down.first.format.scales_outputs() &&
                op.down.first.inputs % kHadamardBlock == 0));
  TROUPE_CHECK(!op.largest.wanted());
  if (op.rows == 0) return;
  const DType dtype = op.down.first.activations();
  const int hidden = padded(op.down.first.outputs), places = cuda::most_places(op);
  const bool coded = cuda::takes_coded_x(op.down.first.format);
  TROUPE_CHECK(coded == cuda::takes_coded_x(op.gate_up.first.format));
  const cuda::GpuTraits gpu = cuda::traits_of(device);
  auto* const memory = static_cast<std::byte*>(device.scratch(cuda::scratch_bytes(op, gpu)));
  const cuda::MoeLayout layout = cuda::lay_out(op, gpu, memory);
  const cuda::Routing& routing = layout.routing;

  if (op.norm.weight != nullptr) {  // the router reads numbers, the experts codes
    AddRmsNorm norm = op.norm;
    if (coded) {
      norm.codes = layout.coded_x.codes;
      norm.scales = layout.coded_x.scales;
    }
    run(device, norm);
  } else {
    run(device, layout.coded_x);
  }
  cuda::route(device, op, routing);
  const auto groups = [&](const MatrixStack& stack, const std::int32_t* gather, bool settled) {
    return cuda::Groups{.offsets = routing.offsets,
                        .gather = gather,
                        .count = stack.count,
                        .weight_stride = stack.stride(),
                        .settled = settled};
  };
  if (w4a8) cuda::gather_codes(device, op, layout);
  cuda::run(
      device,
      cuda::Linear{.weight = op.gate_up.first,
                   .x = w4a8 ? layout.place_codes : op.x,
                   .x_codes = coded ? layout.coded_x.codes : nullptr,
                   .x_scales = coded ? layout.coded_x.scales : nullptr,
                   .rows = places,
                   .groups = groups(op.gate_up, w4a8 ? nullptr : routing.gather, false),
                   .x_rows = op.rows,
                   .x_is_int8 = w4a8 && layout.gate_up.way == cuda::LinearWay::unpacked,
                   .interleaves_out = layout.interleaved,
                   .working_memory = layout.working_memory,
                   .ending = w4a8 && !layout.activated ? cuda::Ending::store_scaled : cuda::Ending::swiglu,
                   .out = w4a8 ? layout.gate_up_sums : layout.activations,
                   .scale = layout.gate_up_factors},
      layout.gate_up);
  run(device, layout.coded_activations);
  if (w4a8) cuda::rotate_activations(device, op, layout);
  cuda::run(device,
            cuda::Linear{.weight = op.down.first,
                         .x = layout.activations,
                         .x_codes = coded ? layout.coded_activations.codes : nullptr,
                         .x_scales = coded ? layout.coded_activations.scales : nullptr,
                         .rows = places,
                         .groups = groups(op.down, nullptr, true),
                         .x_is_interleaved = layout.interleaved,
                         .x_is_int8 = w4a8 && layout.down.way == cuda::LinearWay::unpacked,
                         .working_memory = layout.working_memory,
                         .ending = layout.exact ? cuda::Ending::store_f32 : cuda::Ending::store_scaled,
                         .out = layout.outputs,
                         .scale = w4a8 ? layout.down_factors : routing.scale},
            layout.down);
  const CombineArgs arguments{.residual = op.residual,
                              .outputs = layout.outputs,
                              .scales = layout.exact || w4a8 ? routing.scale : nullptr,
                              .places = routing.places,
                              .offsets = routing.offsets,
                              .slots = op.slots,
                              .held = op.in_stacks(),
                              .shared = op.shared,
                              .top_k = op.top_k,
                              .stride = hidden};
  const int threads = hidden / kColumns;  // of a row, in equal blocks
  const int blocks = (threads + kMostThreads - 1) / kMostThreads;
  const int block = (threads + blocks * 32 - 1) / (blocks * 32) * 32;
  cuda::with_element(layout.exact ? DType::f32 : dtype, [&](auto element) {
    troupe::cuda::launch(device, combine_kernel<decltype(element)>,
                         {.grid = dim3(unsigned(op.rows), unsigned(blocks)), .block = unsigned(block)},
                         arguments);
  });
}

}  // namespace troupe::kernels
