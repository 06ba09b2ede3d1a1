#include "kernels/copy_blocks.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda.h"
#include "gpu/cuda_check.h"

namespace troupe::kernels {

// A KV block is contiguous and has some MiB: one asynchronous copy per block.
void run(Cuda& device, const CopyBlocks& op) {
  auto* data = static_cast<std::byte*>(op.kv.data);
  const std::size_t bytes = op.kv.block_bytes();
  for (int i = 0; i < op.count; ++i) {
    TROUPE_CUDA(cudaMemcpyAsync(data + static_cast<std::size_t>(op.pairs[i].to) * bytes,
                                data + static_cast<std::size_t>(op.pairs[i].from) * bytes, bytes,
                                cudaMemcpyDeviceToDevice, device.stream()));
  }
}

}  // namespace troupe::kernels
