#pragma once
// How a kernel is launched and how it overlaps the one before it.
//
// All kernels of a step run on one stream. On Hopper they are launched with programmatic stream
// serialisation: the blocks of a kernel may start while the previous kernel still runs. --no-overlap-kernels
// (CudaOptions::overlap) turns that off; the results are the same to the bit.
//
// Rules for every kernel launched here:
//   - Every thread calls wait_for_previous(). It returns when all earlier kernels are complete and their
//     writes are visible. A kernel that does not call it breaks this promise for the kernels after it.
//   - Before wait_for_previous() a thread writes no global memory but what Groups::known says, and reads
//     only its own shared memory, memory that is constant while the step runs, and settled memory.
//   - let_next_start() allows the blocks of the next kernel to be scheduled. It orders no memory. It is
//     called as early as possible, at the latest right after wait_for_previous().
//
// "Constant while the step runs": no kernel of a step writes it. Weights and tables made at load time are; so
// the following kernels read them before their wait:
//   - add_rms_norm_cuda.cu, draft_rows_cuda.cu, exchange_norm_cuda.cu: the norm's weights
//   - routing_cuda.cu, tensor_route_kernel: the router
//   - linear_bias_cuda.cu, linear_slab_cuda.cu, linear_stream_cuda.cu, linear_strip_cuda.cu,
//     linear_wgmma_cuda.cu: the weights of dense products; and of grouped ones, if their offsets are settled
//   - moe_few_cuda.cu: the experts' weights, once the experts are known
//   - product_chain_cuda.cu, which only the bench runs
//
// "Settled": an earlier kernel W wrote it, and W is complete before the reading kernel R can begin. That
// needs a kernel M launched after W and before R which holds the next one, that is, calls let_next_start()
// only after its wait_for_previous(): the kernel after M cannot begin before M's wait returned, so not before
// W was complete; and no kernel begins before the one launched before it. The order W, …, R alone is not
// enough: R may begin while W still runs. Who relies on it:
//   - Attention::settled, decode attention (attention_decode_cuda.cu, attention_few_cuda.cu): the batch, its
//     block tables, and the keys and values before each sequence's own tokens. W is StepInputs, M is
//     RopeTable.
//   - Groups::settled, the experts' streamed down product: the groups' offsets. W is the last kernel of
//     cuda::route(), M is the grouped gate|up product. Behind M stands QuantiseRows, if weights are fp8.
//   - Groups::known, their streamed gate|up product: x. W is the norm before the router, M its last kernel.
//   - experts of a few rows (moe_few_cuda.cu): gate|up of the shared slices as Groups::known, where W may be
//     the strip that makes half of the norm, and then also its squares; down the experts that rows chose,
//     where W is the router, M the gate|up product.
// Settled memory is read past the L1 cache (__ldcg, the copy engine): an ordinary load may find a line from
// before the kernel started on the multiprocessor. Nothing documents that there are none in overlapped
// kernels. After wait_for_previous() ordinary loads are right; __ldg is not, since what it reads has to be
// constant from the kernel's start on. The groups' offsets are read past L1 by the blocks that may run beside
// the previous kernel, by one warp of each: if every block read them so, the experts' products would be 2 to
// 4 % slower, if every warp did, 3 to 10 %.
//
// Debug builds (without NDEBUG) check both: each launch declares what its kernel does (Overlap), and
// OverlapCheck aborts the process with a sentence if a declaration does not hold.
//
// Code for capabilities below 9.0 has no wait_for_previous() and no let_next_start(); launches are plain
// wherever that code runs.
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "base/check.h"
#include "gpu/cuda.h"
#include "gpu/cuda_check.h"

namespace troupe::cuda {

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The same as a loop with one turn. The assembler moves instructions that stand before a plain wait behind
/// it, to where their results are used; it does not move them into a loop. `never` is false, and the compiler
/// must not be able to tell.
__device__ __forceinline__ void wait_for_previous(bool never) {
  do wait_for_previous();
  while (never);
}

__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct Shape {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  std::size_t shared_bytes = 0;  ///< dynamic; above 48 KiB call allow_shared() first
  int cluster = 1;               ///< blocks of a cluster, along x; Hopper only
  Overlap overlap{};             ///< what the kernel does around its wait; checked in debug builds
};

/// Launches on the device's stream. Does nothing for an empty grid.
template <class... Parameters, class... Arguments>
void launch(Cuda& device, void (*kernel)(Parameters...), const Shape& shape, Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if constexpr (kDebugBuild) {
    if (const std::string wrong = device.overlap_check().launched(shape.overlap); !wrong.empty())
      check_failed(wrong.c_str(), __FILE__, __LINE__);
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (device.programmatic()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = device.stream();
  config.attrs = attributes;
  config.numAttrs = count;
  TROUPE_CUDA(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

/// Allows a kernel this much dynamic shared memory. Cheap after the first call for a kernel: keep the call
/// beside the launch.
template <class... Parameters>
void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  TROUPE_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace troupe::cuda
