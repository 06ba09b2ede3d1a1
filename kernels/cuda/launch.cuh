#pragma once
// How a kernel is launched and how it overlaps the one before it.
//
// All kernels of a step run on one stream and are launched with programmatic stream serialisation: a kernel's
// blocks may start while the previous kernel still runs. The contract of every kernel launched here:
//   - wait_for_previous() is called by every thread before it reads or writes anything that another kernel
//     of the step writes or reads (activations, KV memory, scratch). Before it only constants may be
//     touched: weights, tables, own shared memory; and what an op's `settled` promises. It returns when all
//     earlier kernels are complete and their writes visible, so each kernel must call it, or the chain breaks
//     for those after it;
//   - let_next_start() says that the next kernel's blocks may be scheduled; call it early (right after
//     wait_for_previous() at the latest). It orders no memory; but where it stands behind the wait, the next
//     kernel cannot begin before the one before this is complete, which a `settled` may rest on.
// In code for capabilities below 9.0 both are nothing, and launches are plain wherever that code runs.
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "gpu/cuda.h"
#include "gpu/cuda_check.h"

namespace troupe::cuda {

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The same, as a loop that is gone through once: the assembler puts off what it can to where it is needed,
/// but not from before a loop to behind it, where every instruction costs time. `never` is false, and the
/// compiler must not find out.
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
  std::size_t shared_bytes = 0;  ///< dynamic; above 48 KiB allow_shared() first
  int cluster = 1;               ///< blocks of a cluster, along x; Hopper only
};

/// Launches on the device's stream. Nothing runs for an empty grid.
template <class... Parameters, class... Arguments>
void launch(Cuda& device, void (*kernel)(Parameters...), const Shape& shape, Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (device.programmatic()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    if (shape.cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
      attributes[count].val.clusterDim.y = 1;
      attributes[count++].val.clusterDim.z = 1;
    }
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

/// Lets a kernel have so much dynamic shared memory. Cheap after the first call for a kernel: keep the
/// call beside the launch.
template <class... Parameters>
void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  TROUPE_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace troupe::cuda
