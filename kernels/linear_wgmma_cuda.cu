// Products of many rows on Hopper: which shape of tiles, and the launch. The kernel:
// kernels/cuda/product/wgmma_product.cuh.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/wgmma_product.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace troupe::kernels::cuda {
namespace {

template <class T, class Shape>
void launch_product(Cuda& device, const Linear& linear) {
  const Matrix& weight = linear.weight;
  const Groups& groups = linear.groups;
  const auto row_bytes = static_cast<std::uint64_t>(padded(weight.inputs)) * sizeof(T);
  const bool grouped = groups.offsets != nullptr;
  const int count = grouped ? groups.count : 1;
  const CUtensorMap weight_map =
      tensor_map({.data = weight.data,
                  .dtype = weight.dtype,
                  .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)),
                            static_cast<std::uint64_t>(weight.outputs), static_cast<std::uint64_t>(count)},
                  .strides = {row_bytes, count > 1 ? groups.weight_stride : row_bytes},
                  .box = {kStepInputs, Shape::kColumns, 1}});
  const CUtensorMap x_map = groups.gather != nullptr
                                ? weight_map  // unused
                                : tensor_map({.data = linear.x,
                                              .dtype = weight.dtype,
                                              .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)),
                                                        static_cast<std::uint64_t>(linear.rows), 1},
                                              .strides = {row_bytes, row_bytes},
                                              .box = {kStepInputs, Shape::kRows, 1}});
  Product product{.offsets = groups.offsets,
                  .gather = groups.gather,
                  .groups = count,
                  .rows = linear.rows,
                  .steps = steps_along(weight.inputs),
                  .row_chunks = static_cast<int>(row_bytes / 16),
                  .x = linear.x};
  product.finish = {.ending = linear.ending,
                    .outputs = weight.outputs,
                    .columns = padded(weight.outputs),
                    .out = linear.out,
                    .scale = linear.scale,
                    .q = linear.q,
                    .rope = linear.rope,
                    .kv = linear.kv,
                    .layer = linear.layer,
                    .heads = linear.heads,
                    .slots = linear.slots};
  const int width = linear.ending == Ending::swiglu ? weight.outputs / 2
                    : linear.ending == Ending::qkv  ? linear.heads * linear.kv.head_dim
                                                    : weight.outputs;
  product.finish.stride = static_cast<std::size_t>(padded(width));

  const long long row_tiles =
      grouped ? linear.rows / Shape::kRows + count : (linear.rows + Shape::kRows - 1) / Shape::kRows;
  const long long tiles = row_tiles * ((product.finish.columns + Shape::kColumns - 1) / Shape::kColumns);
  const long long blocks =
      Shape::kSplit > 1 ? tiles * Shape::kSplit : std::min<long long>(tiles, device.multiprocessors());
  const auto kernel = product_kernel<T, Shape>;
  allow_shared(kernel, Shape::kSharedBytes);
  launch(device, kernel,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kThreads),
          .shared_bytes = Shape::kSharedBytes,
          .cluster = Shape::kSplit,
          .overlap = {.holds_next = grouped, .reads_constant = grouped ? nullptr : weight.data}},
         x_map, weight_map, product);
}

/// What tiles cost in cycles, fitted to measurements of all shapes of the models at 128 … 8192 rows on an
/// H200.
struct Cost {
  int rows, columns, split;
  int step;  ///< 64 inputs further
};
constexpr Cost kCosts[] = {{128, 256, 1, 1100}, {128, 192, 1, 850}, {128, 160, 1, 720},
                           {128, 128, 1, 610},  {64, 256, 1, 770},  {64, 128, 1, 390},
                           {128, 128, 2, 610},  {128, 128, 4, 610}, {64, 128, 2, 390}};
constexpr double kEnd = 4500, kAdd = 6000;  // a 128 × 256 tile's ending
constexpr double kSplit2 = 2400, kSplit4 = 4100;

/// Nothing when the shape cannot do the product.
std::optional<double> cost_of(const Cost& c, const Linear& linear, int multiprocessors) {
  const bool grouped = linear.groups.offsets != nullptr;
  const int steps = steps_along(linear.weight.inputs);
  const int share = (c.rows == 128 ? c.columns : c.columns / 2) / c.split;
  if (linear.ending == Ending::swiglu && share % 64 != 0) return {};  // gate and its up value in one thread
  if (c.split > 1 && (grouped || steps < 4 * c.split)) return {};

  const int columns = (padded(linear.weight.outputs) + c.columns - 1) / c.columns;
  const double end =
      (linear.ending == Ending::add ? kAdd : kEnd) * (c.rows * c.columns) / (128 * 256 * c.split);
  const double tile = static_cast<double>(steps) / c.split * c.step + end;
  if (grouped) {  // how many rows a group has is not known here; its last tile is half full on average
    const double rows = static_cast<double>(linear.rows) / linear.groups.count / c.rows;
    return std::max(1.0, linear.groups.count * std::max(1.0, rows + 0.5) * columns / multiprocessors) * tile;
  }
  const int blocks = (linear.rows + c.rows - 1) / c.rows * columns * c.split;
  // Clusters of four leave some multiprocessors of a partition unused.
  const int room = c.split == 4 ? multiprocessors * 10 / 11 : multiprocessors;
  if (c.split > 1 && blocks > room) return {};
  const int waves = (blocks + room - 1) / room;
  return waves * tile + (c.split == 2 ? kSplit2 : c.split == 4 ? kSplit4 : 0);
}

const Cost& choose(const Linear& linear, int multiprocessors) {
  const Cost* best = nullptr;
  double least = 0;
  for (const Cost& c : kCosts) {
    const std::optional<double> cost = cost_of(c, linear, multiprocessors);
    if (cost && (best == nullptr || *cost < least)) {
      best = &c;
      least = *cost;
    }
  }
  return *best;
}

template <class T, std::size_t... kIndex>
void launch_choice(Cuda& device, const Linear& linear, const Cost& choice, std::index_sequence<kIndex...>) {
  ((&choice == &kCosts[kIndex]
        ? launch_product<T, TileShape<kCosts[kIndex].rows, kCosts[kIndex].columns, kCosts[kIndex].split>>(
              device, linear)
        : void()),
   ...);
}

}  // namespace

bool wgmma_takes(const Cuda& device, const Linear& linear) {
  return device.hopper() && linear.weight.dtype != DType::f32 &&
         (linear.ending != Ending::qkv ||
          (linear.kv.head_dim % 64 == 0 && linear.kv.dtype == linear.weight.dtype));
}

void run_wgmma(Cuda& device, const Linear& linear) {
  if (linear.rows <= 0) return;
  if (linear.weight.dtype == DType::f16) return launch_product<F16, TileShape<128, 128>>(device, linear);
  launch_choice<Bf16>(device, linear, choose(linear, device.multiprocessors()),
                      std::make_index_sequence<std::size(kCosts)>());
}

}  // namespace troupe::kernels::cuda
