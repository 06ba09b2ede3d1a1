#pragma once
#include <cstddef>
#include <span>

#include "gpu/cuda.h"
#include "model/executor.h"

namespace troupe::model {

/// As Executor::block_reader(): reads the `blocks` KV blocks of block_bytes each at `kv` on a stream of its
/// own. Throws CudaError.
ReadBlock read_blocks_of(Cuda& device, const void* kv, std::size_t blocks, std::size_t block_bytes,
                         std::span<std::byte> memory);

}  // namespace troupe::model
