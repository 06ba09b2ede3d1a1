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
  int items = 0;  // rows * 2 * kv_heads
};

__device__ __forceinline__ std::uint8_t code_of(KvFormat format, float number, float scale) {
  if (format == KvFormat::int8) return std::uint8_t(integer_code(number, scale, kLargestInt8));
  if (!(scale > 0)) return 0;
  return __nv_cvt_float_to_fp8(__fdiv_rn(number, scale), __NV_SATFINITE, __NV_E4M3);
}

/// A warp makes the codes and the scale of one row's K or V of one KV head.
template <class Element>
__global__ void __launch_bounds__(32 * kWarps) quantise_kv_kernel(const QuantiseKvArgs a) {
  troupe::cuda::let_next_start();
  const int lane = int(threadIdx.x % 32), item = int(blockIdx.x) * kWarps + int(threadIdx.x / 32);
  const int heads = 2 * a.to.kv_heads, row = item / heads, head = item % heads, head_dim = a.to.head_dim;
  const auto* from =
      static_cast<const std::byte*>(a.from.data) + a.from.key_offset(row / kBlockTokens, 0, head);
  const bool swizzle = swizzled(a.from.dtype, head_dim);
  troupe::cuda::wait_for_previous();
  if (item >= a.items) return;
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
  const float scale = __fdiv_rn(warp_magnitude(largest_bits), largest_code(a.to.format));
  std::byte* to = static_cast<std::byte*>(a.to.data) + std::size_t(slot.block) * a.block_bytes + a.first +
                  std::size_t(head) * a.to.piece_bytes();
  if (lane == 0) reinterpret_cast<float*>(to + a.to.code_bytes())[slot.offset] = scale;
#pragma unroll
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int d = 2 * (lane + 32 * i);
    if (d >= head_dim) continue;
    const unsigned low = code_of(a.to.format, numbers[i][0], scale),
                   high = code_of(a.to.format, numbers[i][1], scale);
    *reinterpret_cast<std::uint16_t*>(to + kv_code_index(head_dim, slot.offset, d)) =
        std::uint16_t(low | high << 8);
  }
}

}  // namespace

void quantise_kv(Cuda& device, const QkvRopeKvWrite& op) {
  if (!op.kv.quantised()) return;
  TROUPE_CHECK(op.kv.head_dim <= kMostHeadDim);
  const QuantiseKvArgs arguments{.from = op.kv.unquantised(op.unquantised),
                                 .to = op.kv,
                                 .block_bytes = op.kv.block_bytes(),
                                 .first = op.kv.key_offset(0, op.layer, 0),
                                 .slots = op.batch.slots,
                                 .items = op.batch.rows * 2 * op.kv.kv_heads};
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
