#pragma once
#include <memory>
#include <vector>

#include "gpu/cuda.h"
#include "model/cuda/nccl_mover.h"
#include "model/swap/kv_pair.h"

namespace troupe::model {

/// The senders of a GPU's KV blocks (Executor::give_pair()). One thread. The device and the KV blocks at `kv`
/// outlive it.
class CudaPairGivers {
 public:
  CudaPairGivers(Cuda& device, std::byte* kv, std::size_t blocks, std::size_t block_bytes)
      : device_(device), kv_(kv), blocks_(blocks), block_bytes_(block_bytes) {}
  ~CudaPairGivers();

  void give(OwnedFd socket, std::uint64_t life);

 private:
  Cuda& device_;
  std::byte* const kv_;
  const std::size_t blocks_, block_bytes_;
  const OpenMovers open_ = std::make_shared<std::atomic<int>>(0);
  std::vector<std::unique_ptr<KvPairSender>> senders_;
};

}  // namespace troupe::model
