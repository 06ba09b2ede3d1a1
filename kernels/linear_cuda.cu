// Running a product as the chooser says, and the generic way: fp32 multiply-adds on tiles in shared memory.
#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/ending.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kTile = 64;      // outputs and rows of a block
constexpr int kDepth = 32;     // inputs at a time
constexpr int kThreads = 256;  // 16 × 16, each 4 outputs × 4 rows
constexpr int kPitch = kTile + 4;

struct GenericArgs {
  const void* weight = nullptr;
  const void* x = nullptr;
  int stride = 0;  ///< elements of a row of weight and of x
  int rows = 0;
  int row_tiles = 0;
  Groups groups{};
  EndingArgs ending{};
};

// Sums run over the inputs in rising order whatever the tile, so a row's bits do not depend on other rows.
template <class T>
__global__ void __launch_bounds__(kThreads) generic(const GenericArgs a) {
  __shared__ float w_tile[kDepth][kPitch], x_tile[kDepth][kPitch];
  __shared__ float sums_at[kTile][kPitch];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one (Groups::settled)
  const int tile = static_cast<int>(blockIdx.x);
  const int first_output = tile / a.row_tiles * kTile;
  const RowTile rows = find_rows(a.groups.offsets, a.groups.count, a.rows, kTile, tile % a.row_tiles);
  if (rows.count <= 0) return;
  const int outputs = min(kTile, a.ending.outputs - first_output);
  const auto stride = static_cast<std::size_t>(a.stride);
  const T* weight =
      reinterpret_cast<const T*>(static_cast<const char*>(a.weight) +
                                 static_cast<std::size_t>(rows.group) * a.groups.weight_stride) +
      static_cast<std::size_t>(first_output) * stride;
  const T* x = static_cast<const T*>(a.x);

  // Each thread loads 8 inputs of one row of each operand; four threads share a row.
  const int thread = static_cast<int>(threadIdx.x);
  const int line = thread / 4, at = thread % 4 * 8;
  const T* w_from = line < outputs ? weight + static_cast<std::size_t>(line) * stride + at : nullptr;
  const T* x_from = nullptr;
  if (line < rows.count) {
    const int p = rows.first + line;
    const int from = a.groups.gather != nullptr ? a.groups.gather[p] : p;
    x_from = x + static_cast<std::size_t>(from) * stride + at;
  }
  const int m = thread % 16 * 4, n = thread / 16 * 4;
  float sums[4][4] = {};
  for (int k = 0; k < a.stride; k += kDepth) {
    for (int i = 0; i < 8; ++i) {
      w_tile[at + i][line] = w_from != nullptr ? to_float(w_from[k + i]) : 0.0f;
      x_tile[at + i][line] = x_from != nullptr ? to_float(x_from[k + i]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const float4 w = *reinterpret_cast<const float4*>(&w_tile[i][m]);
      const float4 v = *reinterpret_cast<const float4*>(&x_tile[i][n]);
      const float ws[4] = {w.x, w.y, w.z, w.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int o = 0; o < 4; ++o) sums[r][o] = fmaf(ws[o], vs[r], sums[r][o]);
      }
    }
    __syncthreads();
  }
  for (int r = 0; r < 4; ++r) {
    *reinterpret_cast<float4*>(&sums_at[n + r][m]) =
        make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
  }
  __syncthreads();
  const bool pairs = a.ending.ending == Ending::swiglu;
  const int fours = pairs ? outputs / 8 : outputs / 4;
  for (int i = thread; i < fours * rows.count; i += kThreads) {
    const int r = i / fours, f = i % fours;
    const int o = pairs ? f / 2 * 16 + f % 2 * 4 : f * 4;
    const float4 y = *reinterpret_cast<const float4*>(&sums_at[r][o]);
    const float4 up = pairs ? *reinterpret_cast<const float4*>(&sums_at[r][o + 8]) : y;
    if (a.ending.ending == Ending::qkv && a.ending.kv.head_dim % 4 != 0) {
      end_pair<T>(a.ending, rows.first + r, first_output + o, y.x, y.y);
      end_pair<T>(a.ending, rows.first + r, first_output + o + 2, y.z, y.w);
    } else {
      Four<T> four(a.ending, rows.first + r, first_output + o);
      four.read();
      four.finish(y, up);
    }
  }
}

}  // namespace

void run_generic(Cuda& device, const Linear& linear) {
  const GenericArgs a{.weight = linear.weight.data,
               .x = linear.x,
               .stride = row_stride(linear.weight.inputs),
               .rows = linear.rows,
               .row_tiles = most_row_tiles(linear, kTile),
               .groups = linear.groups,
               .ending = ending_of(linear)};
  const int tiles = (a.ending.outputs + kTile - 1) / kTile * a.row_tiles;
  const troupe::cuda::Shape shape{.grid = dim3(static_cast<unsigned>(tiles)),
                                  .block = dim3(kThreads),
                                  .overlap = {.holds_next = true}};
  with_element(linear.weight.activations(),
               [&](auto element) { troupe::cuda::launch(device, generic<decltype(element)>, shape, a); });
}

void run(Cuda& device, const Linear& linear, const LinearChoice& choice) {
  switch (choice.way) {
    case LinearWay::generic: return run_generic(device, linear);
    case LinearWay::stream: return run_stream(device, linear, choice.stream);
    case LinearWay::strips: return run_strips(device, linear, choice.strips);
    case LinearWay::wgmma: return run_wgmma(device, linear, choice.wgmma_tile);
    case LinearWay::unsupported: break;
  }
  TROUPE_CHECK(false);
}

void run(Cuda& device, const Linear& linear) {
  if (linear.rows <= 0) return;
  if (linear.norm.weight != nullptr) run(device, linear.norm);
  run(device, linear, choose(shape_of(linear), traits_of(device)));
}

}  // namespace troupe::kernels::cuda
