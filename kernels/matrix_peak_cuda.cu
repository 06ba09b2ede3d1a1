#include <algorithm>

#include "gpu/cuda_event.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/matrix_peak.h"
#include "kernels/philox.h"

namespace troupe::kernels {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kThreads = kWarpgroups * 128;
constexpr int kRows = 64, kColumns = 256, kDepth = 64;  // of a warpgroup's product; the warpgroups share B
constexpr int kIterations = 4096;
constexpr int kMmaIterations = 16384;
constexpr std::size_t kShared = 2 * (kWarpgroups * kRows + kColumns) * kDepth + 1024;

// Fills shared memory with values distributed about as N(0, 1): they draw as much power as real operands.
__device__ void fill(__nv_bfloat16* shared, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const Philox bits = philox4x32({static_cast<std::uint32_t>(i), blockIdx.x, 0, 0}, {1, 2});
    const float sum = static_cast<float>(bits[0] >> 8) + static_cast<float>(bits[1] >> 8) +
                      static_cast<float>(bits[2] >> 8);
    shared[i] = __float2bfloat16_rn((sum * 0x1p-24f - 1.5f) * 2.0f);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, 1) wgmma_kernel(float* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::uint8_t raw[];
  auto* shared =
      reinterpret_cast<__nv_bfloat16*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) / 1024 * 1024);
  fill(shared, (kWarpgroups * kRows + kColumns) * kDepth);
  ptx::fence_proxy_async();
  const auto base = ptx::shared_address(shared);
  const std::uint64_t b = ptx::swizzled_operand(base);
  const std::uint64_t a = ptx::swizzled_operand(base + 2 * (kColumns + threadIdx.x / 128 * kRows) * kDepth);
  float sums[kColumns / 2] = {};
  for (int turn = 0; turn < kIterations; ++turn) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      ptx::wgmma<__nv_bfloat16, kColumns>(sums, ptx::advanced(a, 32 * k), ptx::advanced(b, 32 * k), true);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  float sum = 0;
  for (const float s : sums) sum += s;
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
#endif
}

// mma.sync with operands in registers and eight independent sums per warp.
__global__ void __launch_bounds__(kThreads) mma_kernel(float* out) {
  constexpr int kSums = 8;
  float sums[kSums][4] = {};
  std::uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = 0x3f003f80u + (threadIdx.x * 7 + i) % 97;
  for (int i = 0; i < 2; ++i) b[i] = 0xbf003e80u + (threadIdx.x * 5 + i) % 89;
  for (int turn = 0; turn < kMmaIterations; ++turn) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      ptx::mma<__nv_bfloat16>(sums[s], a[0], a[1], a[2], a[3], b[0], b[1]);
    }
  }
  float sum = 0;
  for (int s = 0; s < kSums; ++s) sum += sums[s][0] + sums[s][1] + sums[s][2] + sums[s][3];
  out[blockIdx.x * kThreads + threadIdx.x] = sum;
}

}  // namespace

double matrix_peak(Cuda& device) {
  constexpr int kRuns = 4;
  const int blocks = device.multiprocessors() * (device.features().wgmma ? 1 : 2);
  auto* out = static_cast<float*>(device.scratch(sizeof(float) * std::size_t(blocks) * kThreads));
  const double each = device.features().wgmma ? 2.0 * kWarpgroups * kRows * kColumns * kDepth * kIterations
                                              : 2.0 * (kThreads / 32) * 8 * 16 * 8 * 16 * kMmaIterations;
  if (device.features().wgmma) troupe::cuda::allow_shared(wgmma_kernel, kShared);
  CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    begin.record(device);
    if (device.features().wgmma) {
      troupe::cuda::launch(device, wgmma_kernel,
                           {.grid = unsigned(blocks), .block = kThreads, .shared_bytes = kShared}, out);
    } else {
      troupe::cuda::launch(device, mma_kernel, {.grid = unsigned(blocks), .block = kThreads}, out);
    }
    end.record(device);
    end.wait();
    best = std::max(best, each * blocks / (end.milliseconds_since(begin) * 1e-3));
  }
  return best;
}

}  // namespace troupe::kernels
