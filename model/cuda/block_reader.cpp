#include "model/cuda/block_reader.h"

#include <memory>

#include "gpu/cuda_copy_stream.h"
#include "gpu/pinned.h"

namespace troupe::model {
namespace {

class BlockDownload {
 public:
  BlockDownload(Cuda& device, const void* kv, std::size_t blocks, std::size_t block_bytes,
                std::span<std::byte> memory)
      : device_(device),
        kv_(static_cast<const std::byte*>(kv)),
        blocks_(blocks),
        bytes_(block_bytes),
        memory_(memory),
        stream_(device) {}

  bool read(BlockId block, std::span<std::byte> into) {
    if (block < 0 || static_cast<std::size_t>(block) >= blocks_ || into.size() != bytes_) return false;
    try {
      device_.use_on_this_thread();
      stream_.copy(into.data(), kv_ + static_cast<std::size_t>(block) * bytes_, bytes_);
      stream_.sync();
      return true;
    } catch (const CudaError&) {
      return false;  // the device's own thread reports it
    }
  }

 private:
  Cuda& device_;
  const std::byte* const kv_;
  const std::size_t blocks_;
  const std::size_t bytes_;
  PinnedMapping memory_;
  CudaCopyStream stream_;
};

}  // namespace

ReadBlock read_blocks_of(Cuda& device, const void* kv, std::size_t blocks, std::size_t block_bytes,
                         std::span<std::byte> memory) {
  auto download = std::make_shared<BlockDownload>(device, kv, blocks, block_bytes, memory);
  return [download](BlockId block, std::span<std::byte> into) { return download->read(block, into); };
}

}  // namespace troupe::model
