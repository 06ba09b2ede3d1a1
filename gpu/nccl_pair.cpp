#include "gpu/nccl_pair.h"

#include <cstring>

namespace troupe {
namespace {

// Thread blocks that move one pair's bytes: few, as steps run beside them.
constexpr int kMostPairBlocks = 4;

}  // namespace

NcclPair::NcclPair(const NcclFunctions& nccl, const NcclId& id, int rank) : nccl_(nccl), other_(1 - rank) {
  NcclUniqueId same;
  std::memcpy(same.bytes, id.data(), id.size());
  NcclConfig config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = kMostPairBlocks;
  begun(nccl_.ncclCommInitRankConfig(&communicator_, 2, same, rank, &config), "ncclCommInitRankConfig");
}

NcclPair::~NcclPair() {
  if (communicator_ != nullptr) (void)nccl_.ncclCommAbort(communicator_);
}

void NcclPair::begun(int result, const char* call) const {
  if (result != kNcclInProgress) nccl_.check(result, call, communicator_);
}

bool NcclPair::settled() const {
  int state = kNcclSuccess;
  nccl_.check(nccl_.ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError", communicator_);
  if (state == kNcclInProgress) return false;
  nccl_.check(state, "NCCL", communicator_);
  return true;
}

void NcclPair::send(const void* from, std::size_t bytes, CUstream_st* stream) {
  begun(nccl_.ncclSend(from, bytes, kNcclUint8, other_, communicator_, stream), "ncclSend");
}

void NcclPair::receive(void* to, std::size_t bytes, CUstream_st* stream) {
  begun(nccl_.ncclRecv(to, bytes, kNcclUint8, other_, communicator_, stream), "ncclRecv");
}

}  // namespace troupe
