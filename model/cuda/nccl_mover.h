#pragma once
#include <memory>

#include "gpu/cuda.h"
#include "model/swap/kv_pair.h"

namespace troupe::model {

/// How many movers there are. They end on threads of their own.
using OpenMovers = std::shared_ptr<std::atomic<int>>;
/// Waits for a second at most until none is there: before the process ends.
void await_end(const OpenMovers& movers);

/// Which end of a pair a mover is.
enum class PairSide { sender, receiver };

/// Moves the blocks at `kv`, of block_bytes each, by NCCL, through memory of its own on the GPU and on a
/// stream of its own. Makes that on the calling thread. `device` and `kv` outlive it, but for its destructor.
/// Throws CudaError where NCCL cannot be opened, or no GPU memory is left.
std::unique_ptr<PairMover> make_nccl_mover(Cuda& device, std::byte* kv, std::size_t block_bytes,
                                           const PairTerms& terms, PairSide side, OpenMovers open);

}  // namespace troupe::model
