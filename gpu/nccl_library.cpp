#include "gpu/nccl_library.h"

#include <dlfcn.h>

#include <cstring>
#include <type_traits>

#include "gpu/cuda.h"

namespace troupe {
namespace {

Status no_library(const std::string& why) { return failure(Code::unavailable, why); }

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Result<NcclFunctions> open_nccl(const char* name) {
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return no_library(std::string(name) + " cannot be opened (" + (why == nullptr ? "" : why) + ")");
  }
  NcclFunctions nccl;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
  find(nccl.ncclGetVersion, "ncclGetVersion");
  find(nccl.ncclGetUniqueId, "ncclGetUniqueId");
  find(nccl.ncclCommInitRank, "ncclCommInitRank");
  find(nccl.ncclCommInitRankConfig, "ncclCommInitRankConfig");
  find(nccl.ncclCommGetAsyncError, "ncclCommGetAsyncError");
  find(nccl.ncclCommAbort, "ncclCommAbort");
  find(nccl.ncclAllReduce, "ncclAllReduce");
  find(nccl.ncclAllGather, "ncclAllGather");
  find(nccl.ncclSend, "ncclSend");
  find(nccl.ncclRecv, "ncclRecv");
  find(nccl.ncclGetErrorString, "ncclGetErrorString");
  find(nccl.ncclGetLastError, "ncclGetLastError");
  if (missing != nullptr) return no_library(std::string(name) + " has no function " + missing);
  if (nccl.ncclGetVersion(&nccl.version) != kNcclSuccess || nccl.version < kLeastNccl) {
    return no_library(std::string(name) + " is of version " + nccl_version_text(nccl.version) + ", and " +
                      nccl_version_text(kLeastNccl) + " or newer is needed");
  }
  return nccl;
}

const NcclFunctions& nccl_functions() {
  static const Result<NcclFunctions> opened = open_nccl(kNcclLibrary);
  if (!opened.ok()) throw CudaError(opened.status().message);
  return *opened;
}

NcclId make_nccl_id(const NcclFunctions& nccl) {
  NcclUniqueId made;
  nccl.check(nccl.ncclGetUniqueId(&made), "ncclGetUniqueId");
  NcclId id;
  std::memcpy(id.data(), made.bytes, id.size());
  return id;
}

std::string NcclFunctions::sentence(const char* call, int result, NcclCommunicator communicator) const {
  const char* const more = ncclGetLastError(communicator);
  std::string text = std::string(call) + ": " + ncclGetErrorString(result);
  if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
  return text;
}

void NcclFunctions::check(int result, const char* call, NcclCommunicator communicator) const {
  if (result != kNcclSuccess) throw CudaError(sentence(call, result, communicator));
}

}  // namespace troupe
