#include "model/cuda/pair_givers.h"

#include <utility>

#include "model/ranks/shard.h"

namespace troupe::model {

CudaPairGivers::~CudaPairGivers() {
  senders_.clear();
  await_end(open_);
}

void CudaPairGivers::give(OwnedFd socket, std::uint64_t life) {
  std::erase_if(senders_, [](const auto& sender) { return sender->has_ended(); });
  if (senders_.size() >= kMostRanks) return;  // a decode instance has no more; the socket says that it ended
  const auto make = [this](const PairTerms& terms) {
    return make_nccl_mover(device_, kv_, block_bytes_, terms, PairSide::sender, open_);
  };
  senders_.push_back(std::make_unique<KvPairSender>(std::move(socket),
                                                    KvPairSender::Memory{life, blocks_, block_bytes_}, make));
}

}  // namespace troupe::model
