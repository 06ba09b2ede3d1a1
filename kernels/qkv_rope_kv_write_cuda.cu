#include "kernels/qkv_rope_kv_write.h"

#include <cuda_fp8.h>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/quantise.cuh"
#include "kernels/quantize_kv.h"

namespace troupe::kernels {
namespace cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPairsPerLane = kMostHeadDim / 2 / 32;

struct QuantiseKvArgs {
  KvCache from{};  // KvCache::unquantised()
  KvCache to{};
  std::size_t block_bytes = 0, first = 0;  // of `to`; first: offset of the layer's first head in a block
  const KvSlot* slots = nullptr;
  int items = 0;   // rows * (2 * kv_heads, and with static scales the query heads)
  int of_row = 0;  // items of a row: keys, values, queries
  StaticKv channels{};
  void* q = nullptr;  // QkvRopeKvWrite::q
  int heads = 0;
};

__device__ __forceinline__ std::uint8_t code_of(KvFormat format, float number, float scale) {
  if (format == KvFormat::int8) return std::uint8_t(integer_code(number, scale, kLargestInt8));
  if (!(scale > 0)) return 0;
  return __nv_cvt_float_to_fp8(__fdiv_rn(number, scale), __NV_SATFINITE, __NV_E4M3);
}

/// static_kv_code() of a channel whose largest magnitude is `largest`.
__device__ __forceinline__ std::uint8_t static_channel_code(float number, float largest) {
  const float scaled = number * __fdiv_rn(kLargestInt8, largest);
  return std::uint8_t(static_cast<int>(roundf(fminf(fmaxf(scaled, -kLargestInt8), kLargestInt8))));
}

/// Multiplies one head's query by the static scales of its KV head's keys, and rounds it. The Cpu multiplies
/// before the query is rounded for the first time; here it is rounded twice.
template <class Element>
__device__ __forceinline__ void scale_query(const QuantiseKvArgs& a, int row, int head) {
  const int head_dim = a.to.head_dim, lane = int(threadIdx.x % 32);
  const float* channels = a.channels.keys + head / (a.heads / a.to.kv_heads) * head_dim;
  auto* const query = static_cast<Element*>(a.q) +
                      std::size_t(row) * std::size_t(padded(a.heads * head_dim)) + head * head_dim;
#pragma unroll
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int d = 2 * (lane + 32 * i);
    if (d >= head_dim) continue;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      query[d + j] = from_float<Element>(to_float(query[d + j]) * (channels[d + j] * (1 / kLargestInt8)));
  }
}

/// A warp makes the codes and the scale of one row's K or V of one KV head; with static scales also warps for
/// queries.
template <class Element>
__global__ void __launch_bounds__(32 * kWarps) quantise_kv_kernel(const QuantiseKvArgs a) {
  troupe::cuda::let_next_start();
  const int lane = int(threadIdx.x % 32), item = int(blockIdx.x) * kWarps + int(threadIdx.x / 32);
  const int row = item / a.of_row, head = item % a.of_row, head_dim = a.to.head_dim;
  const auto* from =
      static_cast<const std::byte*>(a.from.data) + a.from.key_offset(row / kBlockTokens, 0, head);
  const bool swizzle = swizzled(a.from.dtype, head_dim);
  troupe::cuda::wait_for_previous();
  if (item >= a.items) return;
  if (head >= 2 * a.to.kv_heads) return scale_query<Element>(a, row, head - 2 * a.to.kv_heads);
  const KvSlot slot = a.slots[row];
  if (slot.block == kPaddingBlock) return;
  float numbers[kPairsPerLane][2];
  unsigned largest_bits = 0;
#pragma unroll
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int d = 2 * (lane + 32 * i);
    numbers[i][0] = numbers[i][1] = 0;
    if (d >= head_dim) continue;
    const auto* pair =
        reinterpret_cast<const Element*>(from) + kv_index(swizzle, head_dim, row % kBlockTokens, d);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      numbers[i][j] = to_float(pair[j]);
      largest_bits = max(largest_bits, magnitude_bits(numbers[i][j]));
    }
  }
  const float largest = warp_magnitude(largest_bits);
  // As on the Cpu, a number that is not finite makes the scale a NaN with static scales, too.
  const float* channels = nullptr;
  if (a.channels.given() && !isnan(largest))
    channels = (head < a.to.kv_heads ? a.channels.keys : a.channels.values) + head % a.to.kv_heads * head_dim;
  const float scale = channels != nullptr ? 1.0f : __fdiv_rn(largest, largest_code(a.to.format));
  std::byte* to = static_cast<std::byte*>(a.to.data) + std::size_t(slot.block) * a.block_bytes + a.first +
                  std::size_t(head) * a.to.piece_bytes();
  if (lane == 0) reinterpret_cast<float*>(to + a.to.code_bytes())[slot.offset] = scale;
#pragma unroll
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int d = 2 * (lane + 32 * i);
    if (d >= head_dim) continue;
    unsigned low, high;
    if (channels != nullptr) {
      low = static_channel_code(numbers[i][0], channels[d]);
      high = static_channel_code(numbers[i][1], channels[d + 1]);
    } else {
      low = code_of(a.to.format, numbers[i][0], scale);
      high = code_of(a.to.format, numbers[i][1], scale);
    }
    *reinterpret_cast<std::uint16_t*>(to + kv_code_index(head_dim, slot.offset, d)) =
        std::uint16_t(low | high << 8);
  }
}

}  // namespace

void quantise_kv(Cuda& device, const QkvRopeKvWrite& op) {
  if (!op.kv.quantised()) return;
  TROUPE_CHECK(op.kv.head_dim <= kMostHeadDim);
  const int of_row = 2 * op.kv.kv_heads + (op.static_kv.given() ? op.heads : 0);
  const QuantiseKvArgs arguments{.from = op.kv.unquantised(op.unquantised),
                                 .to = op.kv,
                                 .block_bytes = op.kv.block_bytes(),
                                 .first = op.kv.key_offset(0, op.layer, 0),
                                 .slots = op.batch.slots,
                                 .items = op.batch.rows * of_row,
                                 .of_row = of_row,
                                 .channels = op.static_kv,
                                 .q = op.q,
                                 .heads = op.heads};
  with_element(op.kv.dtype, [&](auto element) {
    troupe::cuda::launch(device, quantise_kv_kernel<decltype(element)>,
                         {.grid = unsigned((arguments.items + kWarps - 1) / kWarps), .block = 32 * kWarps},
                         arguments);
  });
}

}  // namespace cuda

void run(Cuda& device, const QkvRopeKvWrite& op) {
  cuda::run(device, cuda::linear_of(op));
  cuda::quantise_kv(device, op);
}

}  // namespace troupe::kernels
