// Launching strips. Which products and how they are cut: kernels/cuda/product/strip.h; how a block works:
// strip_block.cuh.
#include <iterator>
#include <type_traits>

#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/strip_block.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace strips;

template <WeightKind kKind>
using StripCodes =
    std::conditional_t<kKind == WeightKind::int8, Int8Codes,
                       std::conditional_t<kKind == WeightKind::int4, GroupedInt4Codes, PlainCodes>>;

template <int kIndex, int kRowSets>
__global__ void __launch_bounds__(kThreads, 2) strip_kernel(const StripArgs a) {
  constexpr StripKernel kKernel = kStripKernels[kIndex];
  constexpr Ending kEnding = kKernel.ending;
  constexpr int kCluster = kKernel.cluster;
  constexpr bool kConsumesNorm = kKernel.consumes_halved_norm;
  extern __shared__ __align__(128) char shared[];
  troupe::cuda::let_next_start();
  using Codes = StripCodes<kKernel.kind>;
  using Block = Strip<Codes, kCluster, kKernel.tiles, kKernel.slices, kRowSets, kConsumesNorm>;
  const Block strip{.a = a, .shared = shared};
  if (strip.outputs <= 0) return troupe::cuda::wait_for_previous();
  const ptx::SharedAddress peer_barrier = strip.full + kPeerBarrierOffset;
  const int half = a.outputs / 2;  // outputs that each block of a cluster finishes
  if (threadIdx.x == 0) {
    for (int i = 0; i < (kKernel.tiles + 1) / 2; ++i)
      ptx::mbarrier_init(strip.full + static_cast<ptx::SharedAddress>(i * 8), 1);
    if constexpr (kCluster == 2) {
      ptx::mbarrier_init(peer_barrier, 1);
      ptx::mbarrier_arrive_expect(peer_barrier,
                                  max(0, min(half, strip.outputs - strip.rank * half)) * a.rows * 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (kCluster == 2) ptx::warp_cluster_arrive_relaxed();
  if (strip.warp == 0) strip.fetch_weights();
  // A thread adds up four outputs of a row, and finishes them unless the peer block does. There are at most
  // 8 rows of 12 fours.
  constexpr bool pairs = kEnding == Ending::swiglu;
  EndingArgs ending = a.ending;
  ending.ending = kEnding;  // a constant for the compiler
  const int fours = strip.outputs / (pairs ? 8 : 4);
  const int n = static_cast<int>(threadIdx.x) / fours, four = static_cast<int>(threadIdx.x) - n * fours;
  const int m = pairs ? four / 2 * 16 + four % 2 * 4 : four * 4;
  const int owner = kCluster == 2 && m >= half ? 1 : 0;
  const bool sums_up = n < a.rows, finishes = sums_up && owner == strip.rank;
  Four<Bf16> out(ending, finishes ? n : 0, strip.first_output + (finishes ? m : 0));
  const NormProducer<kSquaresPerSum / 4> norm(kEnding == Ending::add ? a.produced_norm : HalvedNorm{},
                                              finishes, n, strip.first_output + m, a.ending.outputs);
  const typename Block::Addresses at = strip.addresses(n, m);
  typename Block::Preloaded preloaded;
  typename Block::Loaded loaded;
  typename Block::Sums sums;
  strip.preload_scales(preloaded);
  float4 scale{}, up_scale{};
  if constexpr (Codes::kOutputScales) {
    if (finishes) {
      scale = strip.output_scales(strip.first_output + m);
      if constexpr (pairs) up_scale = strip.output_scales(strip.first_output + m + 8);
    }
  }
  strip.preload(preloaded, at);
  if constexpr (kCluster == 2) ptx::warp_cluster_wait();  // the peer has begun: it may be sent to
  troupe::cuda::wait_for_previous(a.rows < 0);
  strip.load(loaded, at);
  if (finishes) out.read();
  strip.multiply(sums, loaded, at, preloaded);
  if constexpr (kConsumesNorm) strip.store_squares(loaded, at);
  strip.store_sums(sums, at);
  if (!sums_up) return;
  float4 y = strip.total(at, 0);
  if constexpr (kCluster == 2) {
    float4* const inbox =
        reinterpret_cast<float4*>(shared + kStripHeaderBytes) + (n * half + m - owner * half) / 4;
    if (!finishes)
      return ptx::store_async(ptx::peer_address(ptx::shared_address(inbox), owner), y,
                              ptx::peer_address(peer_barrier, owner));
    ptx::mbarrier_wait(peer_barrier, 0);
    y = make_float4(y.x + inbox->x, y.y + inbox->y, y.z + inbox->z, y.w + inbox->w);
  }
  float4 up = pairs ? strip.total(at, 8) : y;
  if constexpr (Codes::kOutputScales) {
    y = scaled(y, scale);
    up = scaled(up, up_scale);
  }
  if constexpr (kConsumesNorm) {
    const float factor = strip.factor(n);
    y = scaled(y, factor);
    if constexpr (pairs) up = scaled(up, factor);
  }
  out.finish(y, up);
  if constexpr (kEnding == Ending::add) norm.store(out.added(y));
}

constexpr int kRowSets = 2;

/// kStripKernels[i] for one set of rows is row 2 i, for two sets the next.
constexpr auto kRows = make_table<kRowSets * std::size(kStripKernels)>([](auto row) {
  constexpr int kIndex = row / kRowSets, kSets = row % kRowSets + 1;
  if constexpr (kSets <= kStripKernels[kIndex].row_sets) {
    return KernelRow<StripArgs>{strip_kernel<kIndex, kSets>, kThreads};
  } else {
    return KernelRow<StripArgs>{};
  }
});

}  // namespace

void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan) {
  const StripKernel& kernel = plan.kernel;
  const HalvedNorm& consumed = linear.consumed_norm;
  const int stride = row_stride(linear.weight.inputs);
  const int weight_row_bytes = row_bytes(linear.weight.format, linear.weight.inputs);
  const int block_row_bytes = weight_row_bytes / kernel.cluster;
  StripArgs a{.weight = static_cast<const char*>(linear.weight.data),
              .x = static_cast<const char*>(kernel.consumes_halved_norm ? consumed.weighted : linear.x),
              .squares = consumed.squares,
              .eps = consumed.eps,
              .stride = stride,
              .block_inputs = stride / kernel.cluster,
              .row_bytes = weight_row_bytes,
              .block_row_bytes = block_row_bytes,
              .scales = static_cast<const char*>(scales_of(linear.weight)),
              .scale_group = linear.weight.format.group,
              .rows = linear.rows,
              .outputs = plan.outputs,
              .copy_interval_cycles = static_cast<unsigned>(kStripRowsPerCopy * block_row_bytes / 1024.0 *
                                                            plan.copy_interval_cycles),
              .sums_offset = plan.sums_offset,
              .sums_overwrite_weights = plan.sums_overwrite_weights,
              .ending = ending_of(linear),
              .produced_norm = linear.produced_norm};
  if (kernel.consumes_halved_norm) a.inverse_cols = 1.0f / static_cast<float>(consumed.cols);
  const std::size_t row = kRowSets * index_of(kStripKernels, kernel) + (plan.row_sets == 1 ? 0 : 1);
  launch(device, kRows[row], launch_size(plan),
         {.reads_constant = linear.weight.data, .writes_settled = linear.produced_norm.weighted}, a);
}

std::vector<CompiledKernel> strip_kernels() { return compiled_of(kRows); }

}  // namespace troupe::kernels::cuda
