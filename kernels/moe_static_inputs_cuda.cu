#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe/static_inputs.h"
#include "kernels/cuda/product/ending.cuh"
#include "kernels/quantize.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // of a thread that gathers: int8 rows have an order of each 32
constexpr int kOfLane = kHadamardBlock / 32;

/// The group of a place: so many end before it. -1: no group has it. All lanes of a warp ask for one place,
/// and each reads some offsets at once.
__device__ __forceinline__ int group_of(const std::int32_t* offsets, int groups, int place) {
  int before = 0;
  for (int first = 0; first < groups; first += 32) {
    const int group = first + static_cast<int>(threadIdx.x) % 32;
    before += __popc(__ballot_sync(~0u, group < groups && offsets[group + 1] <= place));
  }
  return before < groups ? before : -1;
}

/// Of a number that is finite.
__device__ __forceinline__ float static_code(float number, float to_codes) {
  return roundf(fminf(fmaxf(number * to_codes, -kLargestInt8), kLargestInt8));
}

/// An infinity or a NaN makes what the place adds to its row NaN, as on the Cpu: its weight becomes one.
__device__ __forceinline__ void spoil(float* weights, int place) {
  weights[place] = __uint_as_float(0x7fc00000u);
}

struct GatherArgs {
  const void* x;
  void* codes;
  const std::int32_t *offsets, *gather;
  const StaticInput *gate_up, *down;
  float *gate_up_factors, *down_factors, *weights;
  int groups, places, warps_of_place, stride;
};

__device__ __forceinline__ std::uint32_t four_bytes(float a, float b, float c, float d) {
  const auto byte = [](float code) { return static_cast<std::uint32_t>(static_cast<int>(code)) & 0xffu; };
  return byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}

/// Some warps for a place; a lane for each 32 columns, with which rows end.
template <class Element, bool kInt8>
__global__ void __launch_bounds__(kThreads) gather_kernel(const GatherArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int warp = static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int place = warp / a.warps_of_place;
  const int column = (warp % a.warps_of_place * 32 + static_cast<int>(threadIdx.x) % 32) * kColumns;
  if (place >= a.places) return;
  const int row = a.gather[place];  // not waited for by the search
  const int group = group_of(a.offsets, a.groups, place);
  if (group < 0 || column >= a.stride) return;
  const float to_codes = a.gate_up[group].to_codes;
  if (column == 0) {
    a.gate_up_factors[place] = a.gate_up[group].of_sums;
    a.down_factors[place] = a.down[group].of_sums;
  }
  constexpr int kWords = kColumns * static_cast<int>(sizeof(Element)) / 16;  // of 16 bytes
  alignas(16) Element numbers[kColumns];
  const auto at = [&](auto* rows, int row) {
    return rows + static_cast<std::size_t>(row) * static_cast<std::size_t>(a.stride) + column;
  };
  const auto* from = reinterpret_cast<const uint4*>(at(static_cast<const Element*>(a.x), row));
#pragma unroll
  for (int i = 0; i < kWords; ++i) reinterpret_cast<uint4*>(numbers)[i] = from[i];
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) finite &= static_cast<bool>(isfinite(to_float(numbers[i])));
  if (!finite) spoil(a.weights, place);
  const auto code = [&](int i) { return static_code(to_float(numbers[i]), to_codes); };
  if constexpr (kInt8) {
    std::uint32_t words[kColumns / 4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      words[t] = four_bytes(code(8 * t), code(8 * t + 4), code(8 * t + 1), code(8 * t + 5));
      words[4 + t] = four_bytes(code(8 * t + 2), code(8 * t + 6), code(8 * t + 3), code(8 * t + 7));
    }
    auto* to = reinterpret_cast<uint4*>(at(static_cast<std::uint8_t*>(a.codes), place));
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[1] = make_uint4(words[4], words[5], words[6], words[7]);
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) numbers[i] = from_float<Element>(code(i));
    auto* to = reinterpret_cast<uint4*>(at(static_cast<Element*>(a.codes), place));
#pragma unroll
    for (int i = 0; i < kWords; ++i) to[i] = reinterpret_cast<const uint4*>(numbers)[i];
  }
}

struct RotateArgs {
  const void* sums;  ///< by place: silu(gate) · up if `activated`, else gate|up
  void* codes;
  const std::int32_t* offsets;
  const StaticInput* down;
  float* weights;
  int groups, items, items_of_place, blocks_of_place;
  int sums_stride, stride;
  bool activated, int8;
};

template <class Element>
struct alignas(sizeof(Element) * kOfLane) OfLane {
  Element of[kOfLane];
};

/// A block of a place, from column `begin` on.
template <class Element>
__device__ __forceinline__ void rotate_block(const RotateArgs& a, int place, int begin, float to_codes) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = begin + lane * kOfLane;
  const auto rounded = [](float number) { return to_float(from_float<Element>(number)); };
  const auto* sums = static_cast<const Element*>(a.sums) +
                     static_cast<std::size_t>(place) * static_cast<std::size_t>(a.sums_stride);
  const auto four = [&](int at) { return *reinterpret_cast<const OfLane<Element>*>(sums + at); };
  float x[kOfLane];
  if (a.activated) {
    const auto products = four(column);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) x[i] = to_float(products.of[i]);
  } else {
    const auto gates = four(gate_row(column)), ups = four(up_row(column));
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      x[i] = rounded(silu<Element>(to_float(gates.of[i])) * to_float(ups.of[i]));
  }
#pragma unroll
  for (int stride = 1; stride < kOfLane; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if ((i & stride) != 0) continue;
      const float first = x[i], second = x[i + stride];
      x[i] = rounded(first + second);
      x[i + stride] = rounded(first - second);
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], lanes);
      x[i] = rounded((lane & lanes) != 0 ? other - x[i] : x[i] + other);
    }
  }
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    if (!isfinite(x[i])) spoil(a.weights, place);
    x[i] = static_code(x[i], to_codes);
  }
  const std::size_t at =
      static_cast<std::size_t>(place) * static_cast<std::size_t>(a.stride) + static_cast<std::size_t>(column);
  if (!a.int8) {
    store_four(static_cast<Element*>(a.codes) + at, x[0], x[1], x[2], x[3]);
    return;
  }
  // Of eight inputs the even lane has the first four. The even one stores the word of inputs 0 4 1 5, the odd
  // one that of 2 6 3 7.
  const bool odd = lane % 2 != 0;
  const float low = __shfl_xor_sync(~0u, odd ? x[0] : x[2], 1),
              high = __shfl_xor_sync(~0u, odd ? x[1] : x[3], 1);
  const std::uint32_t word = odd ? four_bytes(low, x[2], high, x[3]) : four_bytes(x[0], low, x[1], high);
  const int within = column % kColumns / 8;  // t
  auto* const bytes = static_cast<std::uint8_t*>(a.codes) + at - column % kColumns;
  *reinterpret_cast<std::uint32_t*>(bytes + (odd ? 16 : 0) + 4 * within) = word;
}

/// Blocks of a place that a warp rotates one after the other: one, or where there are many places some, so
/// that it looks for the place's group once.
constexpr int kBlocksOfWarp = 6, kManyPlaces = 1024;

/// A warp for some blocks of a place, four neighbours a lane.
template <class Element>
__global__ void __launch_bounds__(kThreads) rotate_kernel(const RotateArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int item = static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (item >= a.items) return;
  const int place = item / a.items_of_place;
  const int group = group_of(a.offsets, a.groups, place);
  if (group < 0) return;
  const float to_codes = a.down[group].to_codes;
  for (int block = item % a.items_of_place; block < a.blocks_of_place; block += a.items_of_place)
    rotate_block<Element>(a, place, block * kHadamardBlock, to_codes);
}
unsigned blocks_of(std::size_t items, int of_block) {
  const auto each = static_cast<std::size_t>(of_block);
  return static_cast<unsigned>((items + each - 1) / each);
}

}  // namespace

void gather_codes(Cuda& device, const Moe& op, const MoeLayout& layout) {
  const int places = most_places(op), width = row_stride(op.gate_up.first.inputs);
  const GatherArgs arguments{.x = op.x,
                             .codes = layout.place_codes,
                             .offsets = layout.routing.offsets,
                             .gather = layout.routing.gather,
                             .gate_up = op.gate_up_inputs,
                             .down = op.down_inputs,
                             .gate_up_factors = layout.gate_up_factors,
                             .down_factors = layout.down_factors,
                             .weights = layout.routing.scale,
                             .groups = op.gate_up.count,
                             .places = places,
                             .warps_of_place = (width / kColumns + 31) / 32,
                             .stride = width};
  const troupe::cuda::Shape shape{
      .grid = blocks_of(std::size_t(places) * std::size_t(arguments.warps_of_place), kThreads / 32),
      .block = kThreads};
  if (layout.gate_up.way == LinearWay::unpacked) {
    troupe::cuda::launch(device, gather_kernel<Bf16, true>, shape, arguments);
    return;
  }
  with_element(op.gate_up.first.activations(), [&](auto element) {
    troupe::cuda::launch(device, gather_kernel<decltype(element), false>, shape, arguments);
  });
}

void rotate_activations(Cuda& device, const Moe& op, const MoeLayout& layout) {
  const int width = op.down.first.inputs;
  TROUPE_CHECK(width % kHadamardBlock == 0);
  const int places = most_places(op), blocks = width / kHadamardBlock;
  const int items = places < kManyPlaces ? blocks : (blocks + kBlocksOfWarp - 1) / kBlocksOfWarp;
  const RotateArgs arguments{.sums = layout.gate_up_sums,
                             .codes = layout.activations,
                             .offsets = layout.routing.offsets,
                             .down = op.down_inputs,
                             .weights = layout.routing.scale,
                             .groups = op.down.count,
                             .items = places * items,
                             .items_of_place = items,
                             .blocks_of_place = blocks,
                             .sums_stride = layout.activated ? width : padded(op.gate_up.first.outputs),
                             .stride = width,
                             .activated = layout.activated,
                             .int8 = layout.down.way == LinearWay::unpacked};
  with_element(op.down.first.activations(), [&](auto element) {
    troupe::cuda::launch(device, rotate_kernel<decltype(element)>,
                         {.grid = blocks_of(std::size_t(arguments.items), kThreads / 32), .block = kThreads},
                         arguments);
  });
}

}  // namespace troupe::kernels::cuda
