#include "model/cuda/block_reader.h"

#include <memory>

#include "model/cuda/pinned_copies.h"

namespace troupe::model {

ReadBlock read_blocks_of(Cuda& device, const void* kv, std::size_t blocks, std::size_t block_bytes,
                         std::span<std::byte> memory) {
  auto copies = std::make_shared<PinnedCopies>(device, memory);
  return [copies, kv = static_cast<const std::byte*>(kv), blocks, block_bytes](BlockId block,
                                                                               std::span<std::byte> into) {
    return block >= 0 && static_cast<std::size_t>(block) < blocks && into.size() == block_bytes &&
           copies->copy(into.data(), kv + static_cast<std::size_t>(block) * block_bytes, block_bytes);
  };
}

}  // namespace troupe::model
