#pragma once
// Copies of whole KV blocks: forks of a partly filled block.
#include "gpu/device.h"
#include "kernels/batch.h"

namespace troupe::kernels {

struct BlockPair {
  BlockId from = 0;
  BlockId to = 0;
};

/// Block `to` becomes a copy of block `from`, all layers. No `to` is named twice or is also a `from`.
struct CopyBlocks {
  KvCache kv{};
  const BlockPair* pairs = nullptr;  ///< (count), host memory
  int count = 0;
};

void run(Cpu& device, const CopyBlocks& op);
void run(Cuda& device, const CopyBlocks& op);

}  // namespace troupe::kernels
