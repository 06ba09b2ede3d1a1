// Launching strips. kernels/cuda/product/strip_block.cuh says how they work, kernels/cuda/product/strip.h how they are cut.
#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/strip_block.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace strips;

/// Cycles from one KiB of weights that is asked for to the next. Found by trying on an H200, where all
/// multiprocessors together ask for 5 TB/s so. Behind a norm a step of the 0.3B is shorter if what is needed
/// at once is hindered less.
constexpr int kPace = 53;
constexpr int pace_behind_norm(int rows) { return rows <= 2 ? 70 : rows <= 4 ? 85 : 60; }

template <Ending kEnding, int kSplit, int kEights, int kPieces, int kSets, bool kTakes>
__global__ void __launch_bounds__(kThreads, 2) strip_kernel(const StripArgs a) {
  extern __shared__ __align__(128) char shared[];
  troupe::cuda::let_next_start();
  using Block = Strip<kSplit, kEights, kPieces, kSets, kTakes>;
  const Block strip{.a = a, .shared = shared};
  if (strip.outputs <= 0) return troupe::cuda::wait_for_previous();
  const st::Address got = strip.full + kGotAt;
  const int half = a.height / 2;  // of a cluster's outputs, that a block of it finishes
  if (threadIdx.x == 0) {
    for (int i = 0; i < (kEights + 1) / 2; ++i)
      st::barrier_init(strip.full + static_cast<st::Address>(i * 8), 1);
    if constexpr (kSplit == 2) {
      st::barrier_init(got, 1);
      st::barrier_expect(got, max(0, min(half, strip.outputs - strip.rank * half)) * a.rows * 4);
    }
    st::barrier_publish();
  }
  __syncthreads();
  if constexpr (kSplit == 2) st::cluster_arrive();
  if (strip.warp == 0) strip.bring_weights();
  // What this thread finishes: four outputs of a row; there are at most 8 rows of 12 such.
  constexpr bool pairs = kEnding == Ending::swiglu;
  EndingArgs ending = a.ending;
  ending.ending = kEnding;  // known to the compiler
  const int fours = strip.outputs / (pairs ? 8 : 4);
  const int n = static_cast<int>(threadIdx.x) / fours, four = static_cast<int>(threadIdx.x) - n * fours;
  const int m = pairs ? four / 2 * 16 + four % 2 * 4 : four * 4;
  const int owner = kSplit == 2 && m >= half ? 1 : 0;
  const bool sums_up = n < a.rows, finishes = sums_up && owner == strip.rank;
  Four<Bf16> out(ending, finishes ? n : 0, strip.first_output + (finishes ? m : 0));
  const HalfOut half_out(kEnding == Ending::add ? a.leaves : HalvedNorm{}, finishes, n,
                         strip.first_output + m, a.ending.outputs);
  const typename Block::Places at = strip.places(n, m);
  typename Block::Held held;
  typename Block::Loaded loaded;
  typename Block::Sums sums;
  strip.hold(held, at);
  if constexpr (kSplit == 2) st::cluster_wait();  // the other may be sent to
  troupe::cuda::wait_for_previous(a.rows < 0);
  strip.load(loaded, at);
  if (finishes) out.read();
  strip.multiply(sums, loaded, at, held);
  if constexpr (kTakes) strip.leave_squares(loaded, at);
  strip.hand_over(sums, at);
  if (!sums_up) return;
  float4 y = strip.total(at, 0);
  if constexpr (kSplit == 2) {
    float4* const inbox =
        reinterpret_cast<float4*>(shared + kStripHeaderBytes) + (n * half + m - owner * half) / 4;
    if (!finishes)
      return st::send(st::address_at(st::address_of(inbox), owner), y, st::address_at(got, owner));
    st::barrier_wait(got, 0);
    y = make_float4(y.x + inbox->x, y.y + inbox->y, y.z + inbox->z, y.w + inbox->w);
  }
  float4 up = pairs ? strip.total(at, 8) : y;
  if constexpr (kTakes) {
    const float factor = strip.factor(n);
    y = scaled(y, factor);
    if constexpr (pairs) up = scaled(up, factor);
  }
  out.finish(y, up);
  if constexpr (kEnding == Ending::add) half_out.leave(out.added(y));
}

template <Ending kEnding, int kSplit, int kEights, int kPieces, int kSets, bool kTakes>
void launch_strips(Cuda& device, const Linear& linear, const StripPlan& plan) {
  const int stride = row_stride(linear.weight.inputs);
  StripArgs a{.weight = static_cast<const char*>(linear.weight.data),
         .x = static_cast<const char*>(kTakes ? linear.takes.weighted : linear.x),
         .squares = linear.takes.squares,
         .eps = linear.takes.eps,
         .stride = stride,
         .part = stride / kSplit,
         .rows = linear.rows,
         .height = plan.height,
         .pace = static_cast<unsigned>(kAskedFor * stride / kSplit * 2 / 1024.0 *
                                       (kTakes ? pace_behind_norm(linear.rows) : kPace)),
         .sums_at = plan.sums_at,
         .sums_over_weights = plan.sums_over_weights,
         .ending = ending_of(linear),
         .leaves = linear.leaves};
  if constexpr (kTakes) a.of_mean = 1.0f / static_cast<float>(linear.takes.cols);
  const auto kernel = strip_kernel<kEnding, kSplit, kEights, kPieces, kSets, kTakes>;
  const troupe::cuda::Shape shape{.grid = dim3(static_cast<unsigned>(plan.blocks)),
                                  .block = dim3(kThreads),
                                  .shared_bytes = static_cast<std::size_t>(plan.bytes),
                                  .cluster = kSplit,
                                  .overlap = {.reads_constant = linear.weight.data}};
  troupe::cuda::allow_shared(kernel, shape.shared_bytes);
  troupe::cuda::launch(device, kernel, shape, a);
}

template <int kSplit, int kEights, int kPieces, int kSets, bool kTakes>
void start(Cuda& device, const Linear& linear, const StripPlan& plan) {
  if constexpr (has_strip_kernel(kSplit, kEights, kPieces, kTakes)) {
    if (linear.ending == Ending::qkv)
      return launch_strips<Ending::qkv, kSplit, kEights, kPieces, kSets, kTakes>(device, linear, plan);
    if constexpr (kSplit == 1) {
      if (linear.ending == Ending::swiglu)
        return launch_strips<Ending::swiglu, kSplit, kEights, kPieces, kSets, kTakes>(device, linear, plan);
    }
    if constexpr (!kTakes)
      return launch_strips<Ending::add, kSplit, kEights, kPieces, kSets, kTakes>(device, linear, plan);
  }
  TROUPE_CHECK(false);  // not a plan of strip_plan()
}
template <int kSplit, int kEights, int kPieces>
void start(Cuda& device, const Linear& linear, const StripPlan& plan) {
  const bool takes = linear.takes.weighted != nullptr;
  if (plan.two_sets) {
    return takes ? start<kSplit, kEights, kPieces, 2, true>(device, linear, plan)
                 : start<kSplit, kEights, kPieces, 2, false>(device, linear, plan);
  }
  return takes ? start<kSplit, kEights, kPieces, 1, true>(device, linear, plan)
               : start<kSplit, kEights, kPieces, 1, false>(device, linear, plan);
}
template <int kEights>
void start(Cuda& device, const Linear& linear, const StripPlan& plan) {
  if (plan.split == 2) {
    return plan.pieces == 2 ? start<2, kEights, 2>(device, linear, plan)
                            : start<2, kEights, 3>(device, linear, plan);
  }
  return plan.pieces == 2 ? start<1, kEights, 2>(device, linear, plan)
                          : start<1, kEights, 4>(device, linear, plan);
}

}  // namespace

void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan) {
  switch (plan.eights) {
    case 1: return start<1>(device, linear, plan);
    case 2: return start<2>(device, linear, plan);
    case 3: return start<3>(device, linear, plan);
    case 4: return start<4>(device, linear, plan);
    case 5: return start<5>(device, linear, plan);
    default: return start<6>(device, linear, plan);
  }
}

}  // namespace troupe::kernels::cuda
