// Products with a bias. Many rows of 16-bit types are tiles that end in it, of wgmma on Hopper and else of
// mma.sync; everything else is a product to fp32 and a second kernel that ends it.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/biased.h"
#include "kernels/cuda/product/wgmma_launch.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/linear_bias.h"

namespace troupe::kernels {
namespace {

using cuda::BiasedTile;

constexpr int kEndThreads = 256;
constexpr int kColumns = 4;  // of a thread

template <class T, int kTile>
constexpr cuda::WgmmaRow row_of() {
  constexpr cuda::WgmmaTile kAt = cuda::kWgmmaTiles[kTile];
  return cuda::wgmma_row<T, BiasedTile<kAt.rows, kAt.columns>>();
}
constexpr cuda::WgmmaRow kRows[] = {row_of<cuda::Bf16, cuda::kBiasedWideTile>(),
                                    row_of<cuda::Bf16, cuda::kBiasedNarrowTile>(),
                                    row_of<cuda::F16, cuda::kBiasedNarrowTile>()};

bool is_sum(BiasEnding ending) { return ending == BiasEnding::set || ending == BiasEnding::add; }

void run_tiles(Cuda& device, const LinearBias& op, const cuda::LinearShape& shape,
               const cuda::LinearChoice& choice) {
  const cuda::Linear linear{.weight = op.weight,
                            .x = op.x,
                            .rows = op.rows,
                            .ending = shape.ending,
                            .out = is_sum(op.ending) ? static_cast<void*>(op.sum) : op.out,
                            .bias = op.bias,
                            .bias_ending = op.ending};
  if (choice.way == cuda::LinearWay::stream) return cuda::run_biased_tiles(device, linear, choice.stream);
  const int tile = cuda::biased_wgmma_plan(shape, device.multiprocessors());
  const int row = op.weight.activations() == DType::f16 ? 2 : tile == cuda::kBiasedWideTile ? 0 : 1;
  cuda::launch_wgmma(device, linear, tile, kRows[row]);
}

struct EndArgs {
  void* out;
  float* sums;  ///< the products; of set and add also where the result stays
  const float* bias;
  int stride;
  std::size_t fours;
  BiasEnding ending;
};

template <class Element>
__global__ void __launch_bounds__(kEndThreads) end_kernel(EndArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const std::size_t four = std::size_t(blockIdx.x) * kEndThreads + threadIdx.x;
  if (four >= a.fours) return;
  const std::size_t at = four * kColumns;
  float4 y = *reinterpret_cast<const float4*>(a.sums + at);
  if (a.bias != nullptr) {
    const float4 b = *reinterpret_cast<const float4*>(a.bias + at % a.stride);
    y = make_float4(y.x + b.x, y.y + b.y, y.z + b.z, y.w + b.w);
  }
  if (a.ending == BiasEnding::set || a.ending == BiasEnding::add) {
    *reinterpret_cast<float4*>(a.sums + at) = y;
    return;
  }
  if (a.ending == BiasEnding::quick_gelu) {
    y = make_float4(cuda::quick_gelu<Element>(y.x), cuda::quick_gelu<Element>(y.y),
                    cuda::quick_gelu<Element>(y.z), cuda::quick_gelu<Element>(y.w));
  } else if (a.ending == BiasEnding::gelu) {
    y = make_float4(cuda::gelu(y.x), cuda::gelu(y.y), cuda::gelu(y.z), cuda::gelu(y.w));
  }
  cuda::store_four(static_cast<Element*>(a.out) + at, y.x, y.y, y.z, y.w);
}

/// Some rows, whose sums go to `sums` unless they stay where the op says.
void run_in_two(Cuda& device, const LinearBias& op, float* sums) {
  float* const to = is_sum(op.ending) ? op.sum : sums;
  cuda::run(device,
            cuda::Linear{.weight = op.weight,
                         .x = op.x,
                         .rows = op.rows,
                         .ending = op.ending == BiasEnding::add ? cuda::Ending::add : cuda::Ending::store_f32,
                         .out = to});
  if (is_sum(op.ending) && op.bias == nullptr) return;
  const int stride = padded(op.weight.outputs);
  const EndArgs arguments{.out = op.out,
                          .sums = to,
                          .bias = op.bias,
                          .stride = stride,
                          .fours = std::size_t(op.rows) * std::size_t(stride / kColumns),
                          .ending = op.ending};
  cuda::with_element(op.weight.activations(), [&](auto element) {
    troupe::cuda::launch(
        device, end_kernel<decltype(element)>,
        {.grid = unsigned((arguments.fours + kEndThreads - 1) / kEndThreads), .block = kEndThreads},
        arguments);
  });
}

}  // namespace

void run(Cuda& device, const LinearBias& op) {
  TROUPE_CHECK(!op.weight.format.quantised());
  if (op.rows <= 0) return;
  const cuda::LinearShape shape = cuda::shape_of(op);
  const cuda::LinearChoice choice = cuda::choose(shape, cuda::traits_of(device));
  if (cuda::ends_in_bias(choice)) return run_tiles(device, op, shape, choice);

  // Plain weights take no working memory of their own (scratch_bytes()), so all of it is for the sums.
  const auto stride = std::size_t(padded(op.weight.outputs));
  const std::size_t x_row = std::size_t(padded(op.weight.inputs)) * size_of(op.weight.activations());
  const std::size_t out_row = stride * size_of(op.weight.activations());
  const int at_once = cuda::biased_rows_at_once(op);
  auto* const sums = static_cast<float*>(device.scratch(cuda::scratch_bytes(op, cuda::traits_of(device))));
  for (int first = 0; first < op.rows; first += at_once) {
    LinearBias some = op;
    const auto skipped = std::size_t(first);
    some.rows = std::min(at_once, op.rows - first);
    some.x = static_cast<const std::byte*>(op.x) + skipped * x_row;
    if (is_sum(op.ending))
      some.sum += skipped * stride;
    else
      some.out = static_cast<std::byte*>(op.out) + skipped * out_row;
    run_in_two(device, some, sums);
  }
}

std::vector<cuda::CompiledKernel> cuda::biased_kernels() { return compiled_of(kRows); }

}  // namespace troupe::kernels
