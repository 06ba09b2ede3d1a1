#pragma once
// The decode attention kernel and its launch. decode_block.cuh describes the algorithm.
#include "kernels/cuda/attention/decode_block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda::decode {

template <class Element, class L>
__global__ void __launch_bounds__(L::kThreads, L::kBlocksPerMultiprocessor)
    decode_attention_kernel(const DecodeArgs p) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(memory);
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], kFullArrivals);
      ptx::mbarrier_init(&shared.empty[i], L::kConsumerThreads);
    }
    if constexpr (L::kFew) {
      for (int i = 0; i < L::kQuerySlots; ++i)
        ptx::mbarrier_init(&shared.queries_empty[i], L::kConsumerThreads);
    }
    ptx::mbarrier_init(&shared.gathered, 1);
    ptx::fence_mbarrier_init();
  }
  // Columns past the item's are computed and dropped; q is zero there, or that of an earlier item.
  for (int i = thread; i < int(sizeof shared.q / 16); i += L::kThreads) {
    reinterpret_cast<uint4*>(shared.q)[i] = uint4{};
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (p.clusters) ptx::warp_cluster_arrive_relaxed();
  // Not earlier: the next kernel's blocks are placed once all blocks of this one are resident. Blocks without
  // work end at once, and where they ran there would be room for two blocks of the next kernel.
  troupe::cuda::let_next_start();
  if (p.clusters) ptx::warp_cluster_wait();  // peer blocks have started: their shared memory may be written
  if (thread >= L::kConsumerThreads) {
    if constexpr (L::kGivesRegisters) {
      ptx::lower_registers<L::kProducerRegisters>();
      if (thread >= L::kConsumerThreads + 32) return troupe::cuda::wait_for_previous();
    }
    const int lane = thread % 32;
    Producer<L> produce(shared, p, lane);
    const auto decoding = [&] {
      if constexpr (L::kFew)
        return FewTokens{p.most_tokens, p.pass_tokens};
      else
        return OneToken{};
    }();
    ClusterItem item;
    if (p.clusters && visit_cluster_part(decoding, p.sequences, p.count, p.kv_heads, blockIdx.x, gridDim.x,
                                         lane, item, produce)) {
      produce.expect_cluster_parts(item, int(blockIdx.x % kClusterBlocks));
    } else if (L::kFew ? p.mode != DecodeRows::all : p.mode == DecodeRows::single) {
      visit_share(decoding, p.sequences, p.count, p.kv_heads, blockIdx.x, gridDim.x, lane, produce);
    } else if (p.sequences_left == nullptr || __ldcg(p.sequences_left) != 0) {
      visit_whole_items(p.sequences, p.count, p.rows, p.kv_heads, blockIdx.x, gridDim.x, lane, produce);
    }
    produce.finish(item);
  } else {
    if constexpr (L::kGivesRegisters) ptx::raise_registers<L::kConsumerRegisters>();
    troupe::cuda::wait_for_previous();
    Consumer<Element, L>(shared, p, thread).consume();
  }
}

template <class Element, class L>
void launch_decode(Cuda& device, const DecodeArgs& parameters, int blocks) {
  constexpr std::size_t kBytes = sizeof(typename L::Shared);
  static_assert(L::kBlocksPerMultiprocessor * (kBytes + 1024) <= 228 * 1024);
  const auto kernel = decode_attention_kernel<Element, L>;
  troupe::cuda::allow_shared(kernel, kBytes);
  troupe::cuda::launch(device, kernel,
                       {.grid = unsigned(blocks),
                        .block = L::kThreads,
                        .shared_bytes = kBytes,
                        .cluster = parameters.clusters ? kClusterBlocks : 1,
                        .overlap = {.reads_settled = parameters.settled ? parameters.sequences : nullptr}},
                       parameters);
}

/// Calls function(element, PageLayout) with the types for op's cache.
template <class Function>
void with_decode_types(const KvCache& kv, Function&& function) {
  const bool bf16 = kv.dtype == DType::bf16;
  const auto with_head_dim = [&]<int kHeadDim>(std::integral_constant<int, kHeadDim>) {
    if (kv.quantised()) {
      TROUPE_CHECK(bf16);
      kv.format == KvFormat::int8 ? function(Bf16{}, PageLayout<kHeadDim, KvFormat::int8>{})
                                  : function(Bf16{}, PageLayout<kHeadDim, KvFormat::fp8>{});
    } else {
      bf16 ? function(Bf16{}, PageLayout<kHeadDim, KvFormat::plain>{})
           : function(F16{}, PageLayout<kHeadDim, KvFormat::plain>{});
    }
  };
  kv.head_dim == 128 ? with_head_dim(std::integral_constant<int, 128>{})
                     : with_head_dim(std::integral_constant<int, 64>{});
}

}  // namespace troupe::kernels::cuda::decode
