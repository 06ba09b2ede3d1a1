// Decode attention: launches of its kernel for items of one token.
#include <numbers>

#include "base/check.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode_kernel.cuh"
#include "kernels/cuda/attention/working_memory.h"

namespace troupe::kernels::cuda {

using namespace decode;

static_assert(kMaxGroup == kDecodeGroup && kClusterBlocks == kDecodeCluster &&
              DecodeLayout<64, KvFormat::plain>::kBlocksPerMultiprocessor == kDecodeBlocksPerMultiprocessor &&
              partial_floats(64, kMaxGroup) == decode_partial_floats(64, kDecodeGroup) &&
              partial_floats(128, kMaxGroup) == decode_partial_floats(128, kDecodeGroup));

void run_decode_attention(Cuda& device, const Attention& op, DecodeRows rows, void* working_memory,
                          const int* sequences_left) {
  const KvCache& kv = op.kv;
  const DecodeGrid grid = decode_grid(rows, op, traits_of(device));
  const DecodeArgs parameters{.out = op.out,
                              .q = op.q,
                              .kv = static_cast<const std::byte*>(kv.data),
                              .block_bytes = kv.block_bytes(),
                              .key_offset = kv.key_offset(0, op.layer, 0),
                              .value_offset = kv.value_offset(0, op.layer, 0),
                              .sequences = op.batch.sequences,
                              .partials = static_cast<float*>(working_memory),
                              .counters = device.counters(),
                              .count = op.batch.count,
                              .rows = op.batch.rows,
                              .kv_heads = kv.kv_heads,
                              .group = op.heads / kv.kv_heads,
                              .row_elements = padded(op.heads * kv.head_dim),
                              .scale_log2 = op.scale * std::numbers::log2e_v<float>,
                              .mode = rows,
                              .sequences_left = sequences_left,
                              .clusters = grid.clusters,
                              .settled = rows != DecodeRows::all && op.settled,
                              .most_tokens = rows == DecodeRows::few ? op.batch.most_tokens : 1,
                              .pass_tokens = grid.pass_tokens,
                              .first = op.first};
  if (grid.few_kernel >= 0) return launch_few(device, kv, parameters, grid);
  if (device.block_shared_bytes() < kLargeDecodeBytes) return launch_small(device, kv, parameters, grid);
  with_decode_types(kv, [&]<class Element, class Page>(Element, Page) {
    launch_decode<Element, DecodeLayout<Page::kHeadDim, Page::kFormat>>(device, parameters, grid.blocks);
  });
}

}  // namespace troupe::kernels::cuda
