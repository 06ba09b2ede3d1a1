// Prefill attention on GPUs without wgmma: launches of cuda/attention/flash_mma.cuh.
#include <algorithm>
#include <numbers>

#include "base/check.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/flash_mma.cuh"

namespace troupe::kernels::cuda {
namespace {

template <class Shape>
void launch_flash_mma(Cuda& device, const Attention& op, const FlashMmaArgs& arguments) {
  const auto kernel = flash_mma_kernel<Shape>;
  // Each sequence may have one tile that is not full, and one token has no tile.
  const int tokens = flash_mma_tokens(arguments.group);
  const int tiles = op.batch.rows / tokens + std::min(op.batch.count, op.batch.rows);
  troupe::cuda::allow_shared(kernel, Shape::kSharedBytes);
  troupe::cuda::launch(device, kernel,
                       {.grid = dim3(unsigned(tiles), unsigned(op.kv.kv_heads)),
                        .block = kFlashMmaThreads,
                        .shared_bytes = Shape::kSharedBytes,
                        .overlap = {.holds_next = true}},
                       arguments);
}

}  // namespace

void run_flash_mma(Cuda& device, const Attention& op) {
  const KvCache& kv = op.kv;
  TROUPE_CHECK(!kv.quantised() && (kv.head_dim == 64 || kv.head_dim == 128));
  const FlashMmaArgs arguments{
      .q = static_cast<const std::byte*>(op.q),
      .out = static_cast<std::byte*>(op.out),
      .kv = static_cast<const std::byte*>(kv.data),
      .block_bytes = kv.block_bytes(),
      .key_offset = kv.key_offset(0, op.layer, 0),
      .value_offset = kv.value_offset(0, op.layer, 0),
      .row_bytes = std::size_t(padded(op.heads * kv.head_dim)) * 2,
      .sequences = op.batch.sequences,
      .count = op.batch.count,
      .group = op.heads / kv.kv_heads,
      .first = op.first,
      .scale_log2 = op.scale * std::numbers::log2e_v<float>,
  };
  const auto with_type = [&](auto element) {
    using T = decltype(element);
    kv.head_dim == 128 ? launch_flash_mma<FlashMmaShape<T, 128>>(device, op, arguments)
                       : launch_flash_mma<FlashMmaShape<T, 64>>(device, op, arguments);
  };
  kv.dtype == DType::bf16 ? with_type(Bf16{}) : with_type(F16{});
}

}  // namespace troupe::kernels::cuda
