// Routing, two grouped products, and the sum of each row's experts. The products are those of every other
// op (kernels/cuda/product/linear.h): rows sorted by expert, a weight per group.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe/few_launch.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/cuda/moe/static_inputs.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/scratch.h"
#include "kernels/moe.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels {
namespace {

constexpr int kMostThreads = 384;
constexpr int kColumns = 8;  // of a thread: one load of 16 bytes for the 16-bit types
constexpr int kMostHeld = 8;
/// Of more, a prompt of 2,048 tokens takes 1 to 2 % longer with sum and norm in one kernel than apart.
constexpr int kMostRowsNormed = 512;

struct CombineArgs {
  float* residual;
  const void* outputs;  ///< by place
  const float* scales;  ///< by place, of the outputs; null: they are scaled
  const std::int32_t* places;
  const std::int32_t* offsets;
  const KvSlot* slots;
  int held, shared, top_k, stride;
  int shared_rows;  ///< of Routing::shared_first; else 0

  __device__ bool is_padding(int row) const { return slots != nullptr && slots[row].block == kPaddingBlock; }
  /// Of a row's k-th expert, the shared slices last; negative: another rank has it.
  __device__ int place(int row, int k) const {
    if (k < top_k) return places[row * top_k + k];
    const int slice = k - top_k;
    return (shared_rows > 0 ? slice * shared_rows : offsets[held + slice]) + row;
  }
};

template <class Element, int kCount>
struct alignas(kCount * sizeof(Element)) ColumnValues {
  Element value[kCount];
};

/// Adds the outputs of a row's experts, rising, then those of the shared slices, to kTimes times kCount
/// columns: those from `column` on, from `column` + kStep on, and so on, as far as there are columns. kAtOnce
/// experts' outputs are on their way before the first is added.
template <class Element, int kTimes, int kCount, int kStep, int kAtOnce>
__device__ __forceinline__ void add_experts(const CombineArgs& a, int row, int column,
                                            float (&sums)[kTimes][kCount]) {
  using Values = ColumnValues<Element, kCount>;
  const int parts = a.top_k + a.shared;
  for (int first = 0; first < parts; first += kAtOnce) {
    Values part[kAtOnce][kTimes];
    float scale[kAtOnce];
    bool there[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int k = first + i;
      if (k >= parts) break;
      const int place = a.place(row, k);
      there[i] = place >= 0;
      if (!there[i]) continue;
      scale[i] = a.scales == nullptr ? 1.0f : a.scales[place];
      const Element* from =
          static_cast<const Element*>(a.outputs) + static_cast<std::size_t>(place) * a.stride + column;
#pragma unroll
      for (int t = 0; t < kTimes; ++t) {
        if (kTimes == 1 || column + t * kStep < a.stride)
          part[i][t] = *reinterpret_cast<const Values*>(from + t * kStep);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= parts) break;
      if (!there[i]) continue;
#pragma unroll
      for (int t = 0; t < kTimes; ++t) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) sums[t][c] += scale[i] * cuda::to_float(part[i][t].value[c]);
      }
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(kMostThreads) combine_kernel(CombineArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int row = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kColumns;
  if (column >= a.stride || a.is_padding(row)) return;
  float4* at = reinterpret_cast<float4*>(a.residual + static_cast<std::size_t>(row) * a.stride + column);
  const float4 low = at[0], high = at[1];
  float sum[1][kColumns] = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  add_experts<Element, 1, kColumns, 0, 8>(a, row, column, sum);
  at[0] = make_float4(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
  at[1] = make_float4(sum[0][4], sum[0][5], sum[0][6], sum[0][7]);
}

struct NextNormArgs {
  void* out;
  const float* weight;
  int cols;
  float eps;
};

/// The same, and the norm of the row: a block has a row, a thread kHeld times four columns of it. The bits
/// are those of AddRmsNorm.
template <class Element, int kHeld>
__global__ void __launch_bounds__(cuda::kNormThreads) combine_norm_kernel(CombineArgs a, NextNormArgs norm) {
  constexpr int kTogether = cuda::kNormTogether;
  const int row = static_cast<int>(blockIdx.x), first = static_cast<int>(threadIdx.x) * 4;
  float4 weight[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * kTogether < a.stride) weight[k] = cuda::load_four(norm.weight + first + k * kTogether);
  }
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t at = static_cast<std::size_t>(row) * a.stride + first;
  float* h = a.residual + at;
  float sum[kHeld][4] = {};
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * kTogether >= a.stride) continue;
    const float4 v = cuda::load_four(h + k * kTogether);
    sum[k][0] = v.x, sum[k][1] = v.y, sum[k][2] = v.z, sum[k][3] = v.w;
  }
  const bool counts = !a.is_padding(row);
  if (counts && first < a.stride)
    add_experts<Element, kHeld, 4, kTogether, kHeld <= 3 ? 8 : 4>(a, row, first, sum);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * kTogether >= a.stride) continue;
    const float4 v = make_float4(sum[k][0], sum[k][1], sum[k][2], sum[k][3]);
    if (counts) *reinterpret_cast<float4*>(h + k * kTogether) = v;
    squares += cuda::squares_of(v);
  }
  const float factor = cuda::norm_factor(squares, norm.cols, norm.eps);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * kTogether >= a.stride) continue;
    const float4 y =
        cuda::normed<Element>(make_float4(sum[k][0], sum[k][1], sum[k][2], sum[k][3]), factor, weight[k]);
    cuda::store_four(static_cast<Element*>(norm.out) + at + k * kTogether, y.x, y.y, y.z, y.w);
  }
}

/// The sum of each row's experts, and the norm behind it.
void combine(Cuda& device, const Moe& op, const cuda::MoeLayout& layout) {
  const DType dtype = op.down.first.activations();
  const int hidden = padded(op.down.first.outputs);
  const CombineArgs arguments{
      .residual = op.residual,
      .outputs = layout.outputs,
      .scales = layout.exact || op.gate_up_inputs != nullptr ? layout.routing.scale : nullptr,
      .places = layout.routing.places,
      .offsets = layout.routing.offsets,
      .slots = op.slots,
      .held = op.in_stacks(),
      .shared = op.shared,
      .top_k = op.top_k,
      .stride = hidden,
      .shared_rows = layout.routing.shared_first ? op.rows : 0};
  const AddRmsNorm& norm = op.next_norm;
  const bool wants_norm = norm.weight != nullptr;
  TROUPE_CHECK(!wants_norm || (norm.residual == op.residual && norm.rows == op.rows && norm.add == nullptr &&
                               norm.pick == nullptr && norm.codes == nullptr));
  if (wants_norm && !layout.exact && norm.dtype == dtype && hidden <= kMostHeld * cuda::kNormTogether &&
      op.rows <= kMostRowsNormed) {
    const NextNormArgs next{.out = norm.out, .weight = norm.weight, .cols = norm.cols, .eps = norm.eps};
    cuda::with_element(dtype, [&](auto element) {
      using T = decltype(element);
      troupe::cuda::launch(
          device,
          hidden <= 3 * cuda::kNormTogether ? combine_norm_kernel<T, 3> : combine_norm_kernel<T, kMostHeld>,
          {.grid = unsigned(op.rows),
           .block = cuda::kNormThreads,
           .overlap = {.reads_constant = norm.weight, .writes_settled = norm.out}},
          arguments, next);
    });
    return;
  }
  const int threads = hidden / kColumns;  // of a row, in equal blocks
  const int blocks = (threads + kMostThreads - 1) / kMostThreads;
  const int block = (threads + blocks * 32 - 1) / (blocks * 32) * 32;
  cuda::with_element(layout.exact ? DType::f32 : dtype, [&](auto element) {
    troupe::cuda::launch(device, combine_kernel<decltype(element)>,
                         {.grid = dim3(unsigned(op.rows), unsigned(blocks)), .block = unsigned(block)},
                         arguments);
  });
  if (wants_norm) run(device, norm);
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
  const int places = cuda::most_places(op);
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
    const bool known = routing.shared_first;
    return cuda::Groups{.offsets = routing.offsets,
                        .gather = gather,
                        .count = stack.count,
                        .weight_stride = stack.stride(),
                        .settled = settled,
                        .first_weight = known ? op.in_stacks() : 0,
                        .known = known && !settled ? op.shared : 0,
                        .known_rows = op.rows};
  };
  if (layout.few) {
    cuda::run_few(device, op, layout);
    if (op.next_norm.weight != nullptr) run(device, op.next_norm);
    return;
  }
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
  combine(device, op, layout);
}

}  // namespace troupe::kernels
