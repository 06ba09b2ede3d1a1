#include "gpu/nccl.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "gpu/cuda_check.h"

namespace troupe {
namespace {

// NCCL's C interface, as far as it is used.
using Communicator = void*;
struct UniqueId {
  char bytes[sizeof(NcclId)];
};
constexpr int kFloat32 = 7;  // ncclFloat32
constexpr int kAdd = 0;      // ncclSum

struct Library {
  int (*ncclGetVersion)(int*) = nullptr;
  int (*ncclGetUniqueId)(UniqueId*) = nullptr;
  int (*ncclCommInitRank)(Communicator*, int, UniqueId, int) = nullptr;
  int (*ncclCommAbort)(Communicator) = nullptr;
  int (*ncclAllReduce)(const void*, void*, std::size_t, int, int, Communicator, cudaStream_t) = nullptr;
  int (*ncclAllGather)(const void*, void*, std::size_t, int, Communicator, cudaStream_t) = nullptr;
  const char* (*ncclGetErrorString)(int) = nullptr;
  const char* (*ncclGetLastError)(Communicator) = nullptr;
  int version = 0;
};

std::string text_of(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status no_library(const std::string& why) { return failure(Code::unavailable, why); }

// The library stays open: it has threads and memory of its own.
Result<Library> open_library(const char* name) {
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return no_library(std::string(name) + " cannot be opened (" + (why == nullptr ? "" : why) + ")");
  }
  Library library;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
  find(library.ncclGetVersion, "ncclGetVersion");
  find(library.ncclGetUniqueId, "ncclGetUniqueId");
  find(library.ncclCommInitRank, "ncclCommInitRank");
  find(library.ncclCommAbort, "ncclCommAbort");
  find(library.ncclAllReduce, "ncclAllReduce");
  find(library.ncclAllGather, "ncclAllGather");
  find(library.ncclGetErrorString, "ncclGetErrorString");
  find(library.ncclGetLastError, "ncclGetLastError");
  if (missing != nullptr) return no_library(std::string(name) + " has no function " + missing);
  if (library.ncclGetVersion(&library.version) != 0 || library.version < kLeastNccl) {
    return no_library(std::string(name) + " is of version " + text_of(library.version) + ", and " +
                      text_of(kLeastNccl) + " or newer is needed");
  }
  return library;
}

const Library& library() {
  static const Result<Library> opened = open_library(kNcclLibrary);
  if (!opened.ok()) throw CudaError(opened.status().message);
  return *opened;
}

std::string sentence(const char* call, int result, Communicator communicator) {
  const Library& nccl = library();
  const char* const more = nccl.ncclGetLastError(communicator);
  std::string text = std::string(call) + ": " + nccl.ncclGetErrorString(result);
  if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
  return text;
}

void check(int result, const char* call, Communicator communicator = nullptr) {
  if (result != 0) throw CudaError(sentence(call, result, communicator));
}

}  // namespace

Result<std::string> nccl_version(const char* name) {
  const Result<Library> opened = open_library(name);
  if (!opened.ok()) return opened.status();
  return text_of(opened->version);
}

void set_nccl_defaults(const std::string& host) {
  const auto set = [](const char* name, const char* value) { ::setenv(name, value, 0); };
  set("NCCL_SOCKET_IFNAME", "lo");
  set("NCCL_RUNTIME_CONNECT", "0");  // nothing is left to be agreed on while a graph is captured
  set("NCCL_GRAPH_REGISTER", "0");
  if (!host.empty()) set("NCCL_HOSTID", host.c_str());
}

NcclId NcclGroup::make_id() {
  UniqueId made;
  check(library().ncclGetUniqueId(&made), "ncclGetUniqueId");
  NcclId id;
  std::memcpy(id.data(), made.bytes, id.size());
  return id;
}

struct NcclGroup::Meeting {
  std::atomic<bool> over{false};
  std::string failure;  // of looking for the others; empty: none
  Communicator communicator = nullptr;
};

NcclGroup::NcclGroup(Cuda& device, const NcclId& id, int rank, int ranks)
    : device_(device), meeting_(std::make_shared<Meeting>()) {
  const Library& nccl = library();
  UniqueId same;
  std::memcpy(same.bytes, id.data(), id.size());
  // The call returns when all ranks have come, or never. So it has a thread that may outlive this object.
  std::thread([&nccl, same, rank, ranks, ordinal = device.ordinal(), meeting = meeting_] {
    int result = 0;
    if (const cudaError_t error = cudaSetDevice(ordinal); error != cudaSuccess) {
      meeting->failure = std::string("cudaSetDevice: ") + cudaGetErrorString(error);
    } else if (result = nccl.ncclCommInitRank(&meeting->communicator, ranks, same, rank); result != 0) {
      meeting->failure = sentence("ncclCommInitRank", result, nullptr);
    }
    meeting->over.store(true, std::memory_order_release);
  }).detach();
}

NcclGroup::~NcclGroup() {
  if (settled() && meeting_->communicator != nullptr) (void)library().ncclCommAbort(meeting_->communicator);
}

bool NcclGroup::settled() const { return meeting_->over.load(std::memory_order_acquire); }

bool NcclGroup::ready() const {
  if (!settled()) return false;
  if (!meeting_->failure.empty()) throw CudaError(meeting_->failure);
  return true;
}

void NcclGroup::sum(const float* in, float* out, std::size_t count) {
  const Communicator group = meeting_->communicator;
  check(library().ncclAllReduce(in, out, count, kFloat32, kAdd, group, device_.stream()), "ncclAllReduce",
        group);
}

void NcclGroup::gather(const float* in, float* out, std::size_t count) {
  const Communicator group = meeting_->communicator;
  check(library().ncclAllGather(in, out, count, kFloat32, group, device_.stream()), "ncclAllGather", group);
}

}  // namespace troupe
