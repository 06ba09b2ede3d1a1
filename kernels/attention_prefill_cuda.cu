// Prefill attention: launches of the wgmma kernel (cuda/attention/flash.cuh), or of the one with mma.sync.
#include <algorithm>
#include <numbers>
#include <type_traits>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/expand.h"
#include "kernels/cuda/attention/flash.cuh"
#include "kernels/cuda/attention/working_memory.h"
#include "kernels/cuda/product/layout.h"

namespace troupe::kernels::cuda {
namespace {

/// Calls function(FlashShape) with the shape for an op over a plain cache.
template <class Function>
void with_flash_shape(const Attention& op, Function&& function) {
  const auto with_first = [&](auto element, auto skips) {
    using T = decltype(element);
    if (op.kv.head_dim == 128) {
      function(FlashShape<T, 128, 2, 2, 2, skips>{});
    } else {
      function(FlashShape<T, 64, 2, 2, 4, skips>{});
    }
  };
  const auto with_type = [&](auto element) {
    op.first > 0 ? with_first(element, std::true_type{}) : with_first(element, std::false_type{});
  };
  op.kv.dtype == DType::bf16 ? with_type(__nv_bfloat16{}) : with_type(__half{});
}

/// Over a plain cache; `partials` has flash_partial_bytes().
void run_flash(Cuda& device, const Attention& op, void* partials) {
  if (!device.features().wgmma) return run_flash_mma(device, op);
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
      .partials = static_cast<float*>(partials),
  };
  for (int first = 0; first < op.batch.count; first += kFlashSequences) {
    arguments.sequences = op.batch.sequences + first;
    arguments.count = std::min(kFlashSequences, op.batch.count - first);
    with_flash_shape(op, [&](auto shape) {
      using S = decltype(shape);
      static_assert(S::kWarpgroups == kFlashWarpgroups &&
                    S::kPartialFloats == flash_partial_floats(S::kHeadDim));
      launch_flash<S>(device, arguments);
    });
  }
}

void run_expanded(Cuda& device, const Attention& op, std::byte* memory) {
  const Expanded expanded = lay_out_expanded(op, memory);
  expand(device, op, expanded);
  Attention part = op;
  part.kv = expanded.kv;
  part.layer = 0;
  part.batch.sequences = expanded.fitting;
  run_flash(device, part, memory + expanded.bytes);
  part = op;
  part.batch.sequences = expanded.remaining;
  if (op.heads / op.kv.kv_heads <= kDecodeGroup) {
    // No row's past is cut, so there are no partial results that would overwrite `remaining`.
    run_decode_attention(device, part, DecodeRows::all, memory, expanded.remaining_count);
  } else {
    run_generic_attention(device, part);
  }
}

}  // namespace

void run_prefill_attention(Cuda& device, const Attention& op, void* working_memory) {
  if (op.kv.quantised()) return run_expanded(device, op, static_cast<std::byte*>(working_memory));
  run_flash(device, op, working_memory);
}

}  // namespace troupe::kernels::cuda
