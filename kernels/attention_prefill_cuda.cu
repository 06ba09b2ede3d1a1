// Prefill attention: launches of the wgmma kernel (cuda/attention/flash.cuh).
#include <algorithm>
#include <numbers>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/flash.cuh"
#include "kernels/cuda/product/layout.h"

namespace troupe::kernels::cuda {
namespace {

template <class T>
void launch_for(Cuda& device, const FlashArguments& arguments, int head_dim) {
  if (head_dim == 128) {
    launch_flash<FlashShape<T, 128, 2, 2, 2>>(device, arguments);
  } else {
    launch_flash<FlashShape<T, 64, 2, 2, 4>>(device, arguments);
  }
}

}  // namespace

void run_prefill_attention(Cuda& device, const Attention& op) {
  FlashArguments arguments{
      .q = op.q,
      .out = op.out,
      .kv = static_cast<const std::byte*>(op.kv.data),
      .block_bytes = op.kv.block_bytes(),
      .key_offset = op.kv.key_offset(0, op.layer, 0),
      .value_offset = op.kv.value_offset(0, op.layer, 0),
      .row_stride = row_stride(op.heads * op.kv.head_dim),
      .group = op.heads / op.kv.kv_heads,
      .kv_heads = op.kv.kv_heads,
      .scale_log2 = op.scale * std::numbers::log2e_v<float>,
  };
  for (int first = 0; first < op.batch.count; first += kFlashSequences) {
    arguments.sequences = op.batch.sequences + first;
    arguments.count = std::min(kFlashSequences, op.batch.count - first);
    if (op.kv.dtype == DType::bf16) {
      launch_for<__nv_bfloat16>(device, arguments, op.kv.head_dim);
    } else {
      launch_for<__half>(device, arguments, op.kv.head_dim);
    }
  }
}

}  // namespace troupe::kernels::cuda
