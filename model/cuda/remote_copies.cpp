#include "model/cuda/remote_copies.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "model/cuda/pinned_copies.h"

namespace troupe::model {

CudaRemoteCopies::CudaRemoteCopies(Cuda& device, const KvPart& kv, const RemotePeers& remotes)
    : device_(device),
      kv_(static_cast<std::byte*>(kv.shape.data)),
      block_bytes_(kv.shape.block_bytes()),
      remotes_(remotes),
      pairs_(kv),
      copier_(nullptr, {0, remotes.first + remotes.count}) {
  copier_.set_memory(kv);
  for (std::uint32_t peer = 0; peer < remotes.first; ++peer) {
    (void)copier_.set_remote_copies(peer, [this, peer](std::uint64_t life, auto copies, const auto& stop) {
      return copy_by_pairs(peer, life, copies, stop);
    });
  }
}

CudaRemoteCopies::~CudaRemoteCopies() {
  reset();
  {
    const std::lock_guard lock(mutex_);
    pairs_.clear();
  }
  await_end(open_movers_);
}

bool CudaRemoteCopies::has(std::uint32_t peer) const {
  if (peer >= remotes_.first) return peer - remotes_.first < remotes_.count;
  const std::lock_guard lock(mutex_);
  return pairs_.has(peer);
}

void CudaRemoteCopies::attach(std::uint32_t peer, FetchBlocks fetch, std::span<std::byte> memory) {
  auto copies = std::make_shared<PinnedCopies>(device_, memory);
  const auto put = [copies, kv = kv_](BlockId to, std::span<const std::byte> block) {
    return copies->copy(kv + static_cast<std::size_t>(to) * block.size(), block.data(), block.size());
  };
  (void)copier_.set_remote_peer(peer, std::move(fetch), put);
}

Result<bool> CudaRemoteCopies::attach_pair(std::uint32_t peer, const PeerKvMemory& memory, OwnedFd socket,
                                           TellPair tell) {
  if (peer >= remotes_.first) return invalid("a pair with an instance of another machine");
  detach_pair(peer, memory.rank);
  PairTerms terms;
  {
    const std::lock_guard lock(mutex_);
    const Result<bool> needed = pairs_.needs(memory);
    if (!needed || !*needed) return needed;
    terms.slices = pairs_.slices_of(memory.rank, memory.ranks);
  }
  terms.batch = pair_batch(terms.bytes());
  const auto make = [this](const PairTerms& agreed) {
    return make_nccl_mover(device_, kv_, block_bytes_, agreed, PairSide::receiver, open_movers_);
  };
  auto pair =
      std::make_shared<KvPairReceiver>(std::move(socket), memory, std::move(terms), make, std::move(tell));
  const std::lock_guard lock(mutex_);
  pairs_.set(peer, memory, std::move(pair));
  return true;
}

void CudaRemoteCopies::detach_pair(std::uint32_t peer, int rank) {
  std::shared_ptr<KvPairReceiver> ended;  // ends without the lock, which a copy may wait for
  const std::lock_guard lock(mutex_);
  ended = pairs_.forget(peer, rank);
  if (ended) ended->end();
}

bool CudaRemoteCopies::copy_by_pairs(std::uint32_t peer, std::uint64_t life,
                                     std::span<const wire::BlockCopy> copies, const std::atomic<bool>& stop) {
  std::vector<std::shared_ptr<KvPairReceiver>> pairs;  // a pair copies all slices of its rank
  {
    const std::lock_guard lock(mutex_);
    for (auto& source : pairs_.of(peer, life, copies)) {
      if (std::ranges::find(pairs, source.memory) == pairs.end()) pairs.push_back(source.memory);
    }
  }
  return !pairs.empty() &&
         std::ranges::all_of(pairs, [&](const auto& pair) { return pair->copy(copies, stop); });
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
