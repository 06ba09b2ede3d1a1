#include "gpu/nccl.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "gpu/cuda_check.h"

namespace troupe {

Result<std::string> nccl_version(const char* name) {
  const Result<NcclFunctions> opened = open_nccl(name);
  if (!opened.ok()) return opened.status();
  return nccl_version_text(opened->version);
}

void set_nccl_defaults(const std::string& host) {
  const auto set = [](const char* name, const char* value) { ::setenv(name, value, 0); };
  set("NCCL_SOCKET_IFNAME", "lo");
  set("NCCL_RUNTIME_CONNECT", "0");  // nothing is left to be agreed on while a graph is captured
  set("NCCL_GRAPH_REGISTER", "0");
  if (!host.empty()) set("NCCL_HOSTID", host.c_str());
}

NcclId NcclGroup::make_id() { return make_nccl_id(nccl_functions()); }

struct NcclGroup::Meeting {
  std::atomic<bool> over{false};
  std::string failure;  // of looking for the others; empty: none
  NcclCommunicator communicator = nullptr;
};

NcclGroup::NcclGroup(Cuda& device, const NcclId& id, int rank, int ranks)
    : device_(device), meeting_(std::make_shared<Meeting>()) {
  const NcclFunctions& nccl = nccl_functions();
  NcclUniqueId same;
  std::memcpy(same.bytes, id.data(), id.size());
  // The call returns when all ranks have come, or never. So it has a thread that may outlive this object.
  std::thread([&nccl, same, rank, ranks, ordinal = device.ordinal(), meeting = meeting_] {
    int result = 0;
    if (const cudaError_t error = cudaSetDevice(ordinal); error != cudaSuccess) {
      meeting->failure = std::string("cudaSetDevice: ") + cudaGetErrorString(error);
    } else if (result = nccl.ncclCommInitRank(&meeting->communicator, ranks, same, rank); result != 0) {
      meeting->failure = nccl.sentence("ncclCommInitRank", result, nullptr);
    }
    meeting->over.store(true, std::memory_order_release);
  }).detach();
}

NcclGroup::~NcclGroup() {
  if (settled() && meeting_->communicator != nullptr)
    (void)nccl_functions().ncclCommAbort(meeting_->communicator);
}

bool NcclGroup::settled() const { return meeting_->over.load(std::memory_order_acquire); }

bool NcclGroup::ready() const {
  if (!settled()) return false;
  if (!meeting_->failure.empty()) throw CudaError(meeting_->failure);
  return true;
}

void NcclGroup::sum(const float* in, float* out, std::size_t count) {
  const NcclCommunicator group = meeting_->communicator;
  const NcclFunctions& nccl = nccl_functions();
  nccl.check(nccl.ncclAllReduce(in, out, count, kNcclFloat32, kNcclSum, group, device_.stream()),
             "ncclAllReduce", group);
}

void NcclGroup::gather(const float* in, float* out, std::size_t count) {
  const NcclCommunicator group = meeting_->communicator;
  const NcclFunctions& nccl = nccl_functions();
  nccl.check(nccl.ncclAllGather(in, out, count, kNcclFloat32, group, device_.stream()), "ncclAllGather",
             group);
}

}  // namespace troupe
