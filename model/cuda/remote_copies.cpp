#include "model/cuda/remote_copies.h"

#include <memory>
#include <utility>

#include "gpu/cuda_copy_stream.h"
#include "gpu/pinned.h"

namespace troupe::model {
namespace {

/// Copies blocks that lie in page-locked memory into KV memory.
class BlockUpload {
 public:
  BlockUpload(Cuda& device, std::byte* kv, std::span<std::byte> memory)
      : device_(device), kv_(kv), memory_(memory), stream_(device) {}

  /// Returns when the block has been copied. The device may fail, which its own thread reports.
  bool put(BlockId to, std::span<const std::byte> block) {
    try {
      device_.use_on_this_thread();
      stream_.copy(kv_ + static_cast<std::size_t>(to) * block.size(), block.data(), block.size());
      stream_.sync();
      return true;
    } catch (const CudaError&) {
      return false;
    }
  }

 private:
  Cuda& device_;
  std::byte* const kv_;
  PinnedMapping memory_;
  CudaCopyStream stream_;
};

}  // namespace

CudaRemoteCopies::CudaRemoteCopies(Cuda& device, const KvPart& kv, const RemotePeers& remotes)
    : device_(device),
      kv_(static_cast<std::byte*>(kv.shape.data)),
      bytes_(kv.shape.block_bytes()),
      copier_(nullptr, remotes) {
  copier_.set_memory(kv);
}

void CudaRemoteCopies::attach(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) {
  auto upload = std::make_shared<BlockUpload>(device_, kv_, memory);
  (void)copier_.set_remote_peer(
      peer, std::move(fetch),
      [upload](BlockId to, std::span<const std::byte> block) { return upload->put(to, block); });
}

void CudaRemoteCopies::submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies) {
  open_ids_.push_back(command.id);
  copier_.submit(command, copies);
}

bool CudaRemoteCopies::take_ended(EndedCommand& out) {
  if (!copier_.take_ended(out)) return false;
  std::erase(open_ids_, out.id);
  return true;
}

void CudaRemoteCopies::reset() {
  copier_.reset();
  open_ids_.clear();
}

}  // namespace troupe::model
