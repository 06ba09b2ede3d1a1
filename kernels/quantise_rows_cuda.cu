#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantise.cuh"
#include "kernels/quantise_rows.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kOfLane = 16;                         // columns: one store of 16 bytes
constexpr int kLanesOfBlock = kFp8Block / kOfLane;  // that share a scale; neighbours

struct QuantiseRowsArgs {
  std::uint8_t* codes;
  float* scales;
  const void* x;
  unsigned items;  // of kOfLane columns, all rows
  unsigned items_of_row;
  int stride;  // elements of a row of x
};

template <class Element>
__global__ void __launch_bounds__(kThreads) quantise_rows_kernel(const QuantiseRowsArgs a) {
  troupe::cuda::let_next_start();
  // Lanes behind the last item repeat it, so that whole warps compare magnitudes.
  const unsigned here = blockIdx.x * kThreads + threadIdx.x;
  const unsigned item = min(here, a.items - 1);
  const unsigned row = item / a.items_of_row;
  const int column = static_cast<int>(item % a.items_of_row) * kOfLane;
  constexpr int kLoads = kOfLane * static_cast<int>(sizeof(Element)) / 16;
  alignas(16) Element numbers[kOfLane] = {};
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const Element*>(a.x) +
                                                    row * static_cast<std::size_t>(a.stride) + column);
  troupe::cuda::wait_for_previous();
  if (column < a.stride) {  // rows of x end with a whole item
#pragma unroll
    for (int i = 0; i < kLoads; ++i) reinterpret_cast<uint4*>(numbers)[i] = from[i];
  }
  unsigned largest_bits = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i)
    largest_bits = max(largest_bits, cuda::magnitude_bits(cuda::to_float(numbers[i])));
  const float scale = __fdiv_rn(cuda::warp_magnitude<kLanesOfBlock>(largest_bits), kLargestFp8);
  if (here >= a.items) return;
  uint4 codes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Element* four = numbers + 4 * i;
    reinterpret_cast<std::uint32_t*>(&codes)[i] =
        cuda::fp8_codes(cuda::to_float(four[0]), cuda::to_float(four[1]), cuda::to_float(four[2]),
                        cuda::to_float(four[3]), scale);
  }
  reinterpret_cast<uint4*>(a.codes)[item] = codes;
  if (item % kLanesOfBlock == 0) a.scales[item / kLanesOfBlock] = scale;
}

}  // namespace

void run(Cuda& device, const QuantiseRows& op) {
  if (op.rows <= 0) return;
  const std::size_t items_of_row = std::size_t(coded_stride(op.cols)) / kOfLane;
  const std::size_t items = std::size_t(op.rows) * items_of_row;
  TROUPE_CHECK(items < std::size_t{1} << 31);
  const QuantiseRowsArgs arguments{op.codes,       op.scales, op.x, unsigned(items), unsigned(items_of_row),
                                   padded(op.cols)};
  cuda::with_element(op.dtype, [&](auto element) {
    troupe::cuda::launch(device, quantise_rows_kernel<decltype(element)>,
                         {.grid = unsigned((items + kThreads - 1) / kThreads), .block = kThreads}, arguments);
  });
}

}  // namespace troupe::kernels
