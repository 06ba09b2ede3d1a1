#include "bench/product_chain.h"

#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 1024;    ///< of weights, fetched at a time
constexpr int kWeightsAt = 64;  ///< in shared memory, behind the barrier

struct ChainArgs {
  const char* weights = nullptr;
  int pieces = 0;  ///< of weights, that a block fetches
  const uint4* x = nullptr;
  int readers = 0;  ///< threads that read x, kLoads times 16 bytes each
  unsigned* out = nullptr;
};

template <int kLoads>
__global__ void __launch_bounds__(kThreads) chain_kernel(const ChainArgs a) {
  extern __shared__ __align__(128) char shared[];
  __shared__ unsigned of_warps[kThreads / 32];
  troupe::cuda::let_next_start();
  const ptx::SharedAddress barrier = ptx::shared_address(shared);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(barrier, a.pieces * kPiece);
    const char* from =
        a.weights + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(a.pieces * kPiece);
    for (int i = 0; i < a.pieces; ++i)
      ptx::bulk_copy_if(barrier + kWeightsAt + i * kPiece, from + i * kPiece, kPiece, barrier, true);
  }
  const uint4* const from = a.x + threadIdx.x;
  unsigned* const to = a.out + blockIdx.x * (kThreads / 32) + threadIdx.x;
  const bool reads = static_cast<int>(threadIdx.x) < a.readers;
  ptx::mbarrier_wait(barrier, 0);
  troupe::cuda::wait_for_previous();
  uint4 x[kLoads] = {};
  if (reads) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) x[i] = from[i * a.readers];
  }
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sum += x[i].x + x[i].y + x[i].z + x[i].w;
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < kThreads / 32) *to = of_warps[threadIdx.x];
}

template <int kLoads>
void start(Cuda& device, const ProductChain& op) {
  const int blocks = device.multiprocessors(), x_words = op.x_bytes / 16;
  const std::size_t read = static_cast<std::size_t>(blocks) * static_cast<std::size_t>(op.fetched);
  TROUPE_CHECK(device.features().clusters && op.fetched % kPiece == 0 && op.weights_bytes >= read &&
               op.x_bytes % (16 * kLoads) == 0);
  const troupe::cuda::Shape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                                  .block = dim3(kThreads),
                                  .shared_bytes = static_cast<std::size_t>(kWeightsAt + op.fetched)};
  troupe::cuda::allow_shared(chain_kernel<kLoads>, shape.shared_bytes);
  uint4* const x[2] = {static_cast<uint4*>(op.x), static_cast<uint4*>(op.x) + x_words + 2 * blocks};
  const std::size_t turns = op.weights_bytes / read;
  for (int i = 0; i < op.kernels; ++i) {
    troupe::cuda::launch(device, chain_kernel<kLoads>, shape,
                         ChainArgs{.weights = static_cast<const char*>(op.weights) +
                                              static_cast<std::size_t>(i) % turns * read,
                                   .pieces = op.fetched / kPiece,
                                   .x = x[i % 2],
                                   .readers = x_words / kLoads,
                                   .out = reinterpret_cast<unsigned*>(x[(i + 1) % 2])});
  }
}

}  // namespace

void run(Cuda& device, const ProductChain& op) {
  constexpr int kAtOnce = kThreads * 16;
  if (op.x_bytes <= kAtOnce) return start<1>(device, op);
  if (op.x_bytes <= 2 * kAtOnce) return start<2>(device, op);
  if (op.x_bytes <= 4 * kAtOnce) return start<4>(device, op);
  TROUPE_CHECK(op.x_bytes <= 8 * kAtOnce);
  start<8>(device, op);
}

}  // namespace troupe::kernels
