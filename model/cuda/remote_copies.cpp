#include "model/cuda/remote_copies.h"

#include <memory>
#include <utility>

#include "model/cuda/pinned_copies.h"

namespace troupe::model {

CudaRemoteCopies::CudaRemoteCopies(Cuda& device, const KvPart& kv, const RemotePeers& remotes)
    : device_(device), kv_(static_cast<std::byte*>(kv.shape.data)), copier_(nullptr, remotes) {
  copier_.set_memory(kv);
}

void CudaRemoteCopies::attach(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) {
  auto copies = std::make_shared<PinnedCopies>(device_, memory);
  const auto put = [copies, kv = kv_](BlockId to, std::span<const std::byte> block) {
    return copies->copy(kv + static_cast<std::size_t>(to) * block.size(), block.data(), block.size());
  };
  (void)copier_.set_remote_peer(peer, std::move(fetch), put);
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
