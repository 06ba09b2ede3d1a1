#pragma once
// Causal attention of prefill chunks on Hopper's tensor cores.
//
// A unit of work is a tile of 64 kWarpgroups query rows against all keys that any of them sees. The q heads
// of a KV head share keys, so a row is (token, head of the group), packed token-major: 8 tokens with 8 heads
// fill 64 rows. A block has four producer warps (one takes units of work, one copies pages of K and V into a
// ring of stages, two copy queries) and kWarpgroups consumer warpgroups of 64 rows each, which compute
//   S = Q · K^T (wgmma), p = exp2(scale * S - m), O = O + p · V (wgmma, p from registers).
// kernels/README.md ("Prefill attention") explains how these overlap.
//
// m follows the row's maximum only when that has grown by more than 8 (as a power of two): p stays below 256,
// nothing overflows, and O is rarely rescaled. The result is divided by the sum of p, so the choice of m only
// changes rounding; it depends on the row alone.
//
// Blocks are persistent. Each makes the same plan (flash_plan.cuh) from the sequence lengths in device
// memory, since the host knows only the number of rows.
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
      ptx::mbarrier_init(&shared.keys_full[i], 1);
      ptx::mbarrier_init(&shared.values_full[i], 1);
      ptx::mbarrier_init(&shared.keys_empty[i], 4 * S::kWarpgroups);
      ptx::mbarrier_init(&shared.values_empty[i], 4 * S::kWarpgroups);
    }
    for (int i = 0; i < kFlashUnitSlots; ++i) {
      ptx::mbarrier_init(&shared.unit_ready[i], 32);
      ptx::mbarrier_init(&shared.unit_free[i], S::kUnitReaders);
    }
    ptx::mbarrier_init(&shared.unit_requested, 1);
    for (int i = 0; i < kFlashQuerySlots; ++i) {
      ptx::mbarrier_init(&shared.queries_full[i], S::kLoaders);
      ptx::mbarrier_init(&shared.queries_empty[i], S::kConsumers);
    }
    ptx::fence_mbarrier_init();
    reset_flash_plan(shared);
  }
  __syncthreads();
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  make_flash_plan(a, shared);
  if (threadIdx.x < 128) {
    ptx::lower_registers<S::kProducerRegisters>();
    if (threadIdx.x < 32) {
      FlashPageCopier<S>(a, shared).run();
    } else if (threadIdx.x < 64) {
      take_units(a, shared);
    } else {
      load_queries(a, shared, int(threadIdx.x) - 64);
    }
  } else {
    ptx::raise_registers<S::kConsumerRegisters>();
    FlashConsumer<S>(a, shared).run();
  }
}

/// Runs the kernel on the sequences of `a` with more than one token. Sets the counters of `a`.
template <class S>
void launch_flash(Cuda& device, FlashArguments a) {
  constexpr std::size_t kBytes = sizeof(FlashShared<S>);
  static_assert(kBytes <= 227 * 1024);
  static_assert(1 + kFlashCutTiles * S::kWarpgroups <= Cuda::kCounters);
  const int blocks = device.multiprocessors();
  a.group_inverse = flash_inverse(a.group);
  a.counters = device.counters();
  troupe::cuda::allow_shared(flash_attention<S>, kBytes);
  troupe::cuda::launch(device, flash_attention<S>,
                       {.grid = dim3(unsigned(blocks)), .block = dim3(S::kThreads), .shared_bytes = kBytes},
                       a);
}

}  // namespace troupe::kernels::cuda
