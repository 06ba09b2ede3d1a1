#pragma once

namespace troupe::kernels::cuda {

/// Inclusive prefix sum over the lanes of a warp, all of which call it.
template <class T>
__device__ __forceinline__ T inclusive_sum(T value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(~0u, value, unsigned(step));
    if (lane >= step) value += other;
  }
  return value;
}

}  // namespace troupe::kernels::cuda
