// Decode attention: the kernel and its launch. cuda/attention/decode_block.cuh describes the algorithm.
#include <algorithm>
#include <numbers>

#include "base/check.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode_block.cuh"
#include "kernels/cuda/attention/working_memory.h"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace decode;

static_assert(kMaxGroup == kDecodeGroup && kClusterBlocks == kDecodeCluster &&
              kBlocksPerMultiprocessor == kDecodeBlocksPerMultiprocessor &&
              partial_floats(64) == decode_partial_floats(64) &&
              partial_floats(128) == decode_partial_floats(128));

template <class Element, int kHeadDim, KvFormat kFormat>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    decode_attention_kernel(const DecodeArgs p) {
  using L = DecodeLayout<kHeadDim, kFormat>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(memory);
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], 1);
      ptx::mbarrier_init(&shared.empty[i], kConsumerThreads);
    }
    ptx::mbarrier_init(&shared.gathered, 1);
    ptx::fence_mbarrier_init();
  }
  // Columns past the group are computed and dropped; q is zero there.
  for (int i = thread; i < int(sizeof shared.q / 16); i += kThreads) {
    reinterpret_cast<uint4*>(shared.q)[i] = uint4{};
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (p.clusters) ptx::warp_cluster_arrive_relaxed();
  // Not earlier: the next kernel's blocks are placed once all blocks of this one are resident. Blocks without
  // work end at once, and where they ran there would be room for two blocks of the next kernel.
  troupe::cuda::let_next_start();
  if (p.clusters) ptx::warp_cluster_wait();  // peer blocks have started: their shared memory may be written
  if (thread >= kConsumerThreads) {
    const int lane = thread % 32;
    Producer<kHeadDim, kFormat> produce(shared, p, lane);
    ClusterItem item;
    if (p.clusters &&
        visit_cluster_part(p.sequences, p.count, p.kv_heads, blockIdx.x, gridDim.x, lane, item, produce)) {
      produce.expect_cluster_parts(item, int(blockIdx.x % kClusterBlocks));
    } else if (p.mode == DecodeRows::single) {
      visit_share(p.sequences, p.count, p.kv_heads, blockIdx.x, gridDim.x, lane, produce);
    } else if (p.sequences_left == nullptr || __ldcg(p.sequences_left) != 0) {
      visit_whole_items(p.sequences, p.count, p.rows, p.kv_heads, blockIdx.x, gridDim.x, lane,
                        p.sequences_left != nullptr, produce);
    }
    produce.finish(item);
  } else {
    troupe::cuda::wait_for_previous();
    Consumer<Element, kHeadDim, kFormat>(shared, p, thread).consume();
  }
}

template <class Element, int kHeadDim, KvFormat kFormat = KvFormat::plain>
void launch_decode(Cuda& device, const DecodeArgs& parameters, int blocks) {
  constexpr std::size_t kBytes = sizeof(typename DecodeLayout<kHeadDim, kFormat>::Shared);
  static_assert(kBlocksPerMultiprocessor * (kBytes + 1024) <= 228 * 1024);
  const auto kernel = decode_attention_kernel<Element, kHeadDim, kFormat>;
  troupe::cuda::allow_shared(kernel, kBytes);
  troupe::cuda::launch(device, kernel,
                       {.grid = unsigned(blocks),
                        .block = kThreads,
                        .shared_bytes = kBytes,
                        .cluster = parameters.clusters ? kClusterBlocks : 1,
                        .overlap = {.reads_settled = parameters.settled ? parameters.sequences : nullptr}},
                       parameters);
}

}  // namespace

void run_decode_attention(Cuda& device, const Attention& op, DecodeRows rows, void* working_memory,
                          const int* sequences_left) {
  const KvCache& kv = op.kv;
  const DecodeGrid grid = decode_grid(rows, op.batch.count, traits_of(device));
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
                              .settled = rows == DecodeRows::single && op.settled};
  const bool bf16 = kv.dtype == DType::bf16;
  if (kv.quantised()) {
    TROUPE_CHECK(bf16);
    const bool int8 = kv.format == KvFormat::int8;
    const auto launch_codes =
        kv.head_dim == 128
            ? (int8 ? launch_decode<Bf16, 128, KvFormat::int8> : launch_decode<Bf16, 128, KvFormat::fp8>)
            : (int8 ? launch_decode<Bf16, 64, KvFormat::int8> : launch_decode<Bf16, 64, KvFormat::fp8>);
    launch_codes(device, parameters, grid.blocks);
  } else if (kv.head_dim == 128) {
    bf16 ? launch_decode<Bf16, 128>(device, parameters, grid.blocks)
         : launch_decode<F16, 128>(device, parameters, grid.blocks);
  } else {
    bf16 ? launch_decode<Bf16, 64>(device, parameters, grid.blocks)
         : launch_decode<F16, 64>(device, parameters, grid.blocks);
  }
}

}  // namespace troupe::kernels::cuda
