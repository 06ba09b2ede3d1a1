#include "kernels/copy_blocks.h"

#include <cstring>

#include "gpu/cpu.h"

namespace troupe::kernels {

void run(Cpu& device, const CopyBlocks& op) {
  auto* kv = static_cast<std::byte*>(op.kv.data);
  const std::size_t bytes = op.kv.block_bytes();
  device.pool().for_each(op.count, 1, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      std::memcpy(kv + static_cast<std::size_t>(op.pairs[i].to) * bytes,
                  kv + static_cast<std::size_t>(op.pairs[i].from) * bytes, bytes);
    }
  });
}

}  // namespace troupe::kernels
