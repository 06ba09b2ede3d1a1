#pragma once
// Causal attention of pieces of prompts on Hopper's tensor cores.
//
// The unit of work is a tile of 64 kWarpgroups query rows against all keys up to the last one any of them
// sees. The q heads that share a KV head look at the same keys, so a row is (token, head of the group),
// packed token-major: a chunk of 8 tokens and 8 heads fills 64 rows instead of 8, and what is fetched of K
// and V serves all heads. A block is four warps that fetch (one takes units of work, one copies
// pages of K and V into a ring of stages, two copy the next unit's queries) and kWarpgroups warpgroups of 64
// rows each that compute
//   S = Q · K^T (wgmma), p = exp2(scale * S - m), O = O + p · V (wgmma, p from registers),
// S of the next stage running on the tensor cores while O's product of this one does and while the
// exponentials of the other warpgroups are computed; the warpgroups take turns in issuing, so that one's
// exponentials lie under another's products.
//
// m follows the row's maximum only when that has grown by more than 8 (as a power of two): p then stays below
// 256, nothing overflows, and O is hardly ever rescaled. The result is divided by the sum of p, so the
// choice of m changes roundings alone; it depends on the row alone.
//
// What decides the speed: a warpgroup's way from its scores to its next products has to be shorter than the
// other's products. So no row's maximum is waited for across threads unless m moves, operands are described
// in uniform registers, and a unit's first scores run beside the last product of the unit before.
//
// Blocks are persistent; each makes the same plan (flash_plan.cuh) from the sequences' lengths in device
// memory, since the host knows only the rows.
#include <algorithm>

#include "kernels/cuda/attention/flash_compute.cuh"
#include "kernels/cuda/attention/flash_copy.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda {

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) flash_attention(const __grid_constant__ FlashArguments a) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<FlashShared<S>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      troupe::cuda::barrier_init(&shared.keys_full[i], 1);
      troupe::cuda::barrier_init(&shared.values_full[i], 1);
      troupe::cuda::barrier_init(&shared.keys_empty[i], 4 * S::kWarpgroups);
      troupe::cuda::barrier_init(&shared.values_empty[i], 4 * S::kWarpgroups);
    }
    for (int i = 0; i < kFlashUnits; ++i) {
      troupe::cuda::barrier_init(&shared.unit_known[i], 32);
      troupe::cuda::barrier_init(&shared.unit_done[i], S::kUnitReaders);
    }
    troupe::cuda::barrier_init(&shared.unit_wanted, 1);
    for (int i = 0; i < kFlashQueries; ++i) {
      troupe::cuda::barrier_init(&shared.queries_full[i], S::kLoaders);
      troupe::cuda::barrier_init(&shared.queries_empty[i], S::kConsumers);
    }
    troupe::cuda::fence_barrier_init();
    begin_flash_plan(shared);
  }
  __syncthreads();
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  make_flash_plan(a, shared);
  if (threadIdx.x < 128) {
    troupe::cuda::lower_registers<S::kProducerRegisters>();
    if (threadIdx.x < 32) {
      FlashPages<S>(a, shared).run();
    } else if (threadIdx.x < 64) {
      take_units(a, shared);
    } else {
      load_queries(a, shared, int(threadIdx.x) - 64);
    }
  } else {
    troupe::cuda::raise_registers<S::kConsumerRegisters>();
    FlashConsumer<S>(a, shared).run();
  }
}

/// Runs the kernel on the sequences of `a` with more than one token. Sets the arguments' working memory.
template <class S>
void launch_flash(Cuda& device, FlashArguments a) {
  constexpr std::size_t kBytes = sizeof(FlashShared<S>);
  static_assert(kBytes <= 227 * 1024);
  static_assert(1 + kFlashCutTiles * S::kWarpgroups <= Cuda::kCounters);
  const int blocks = device.multiprocessors();
  a.group_inverse = flash_inverse(a.group);
  a.partials = static_cast<float*>(device.scratch(std::size_t(flash_most_pieces(blocks)) * S::kWarpgroups *
                                                  S::kPartialFloats * sizeof(float)));
  a.counters = device.counters();
  troupe::cuda::allow_shared(flash_attention<S>, kBytes);
  troupe::cuda::launch(device, flash_attention<S>,
                       {.grid = dim3(unsigned(blocks)), .block = dim3(S::kThreads), .shared_bytes = kBytes},
                       a);
}

}  // namespace troupe::kernels::cuda
