#pragma once
// The functions of NCCL's C interface that are used here, as far as a thread of this process has opened the
// library. Plain C++: a test may fill the table with functions of its own.
#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "base/status.h"

struct CUstream_st;  // cudaStream_t

namespace troupe {

inline constexpr const char* kNcclLibrary = "libnccl.so.2";
/// The least version that is tried; its functions and types have been the same since.
inline constexpr int kLeastNccl = 21800;

/// What makes communicators meet; plain bytes, to be sent to the other ranks.
using NcclId = std::array<std::byte, 128>;

// Values of NCCL's types.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclFloat32 = 7;
inline constexpr int kNcclSum = 0;

using NcclCommunicator = void*;

/// ncclUniqueId, which is passed by value.
struct NcclUniqueId {
  char bytes[sizeof(NcclId)];
};

/// ncclConfig_t as of kLeastNccl. Newer libraries read as many bytes as `size` says, and take their own
/// defaults for what comes behind.
struct NcclConfig {
  static constexpr int kUnset = INT_MIN;

  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kLeastNccl;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};

struct NcclFunctions {
  int (*ncclGetVersion)(int*) = nullptr;
  int (*ncclGetUniqueId)(NcclUniqueId*) = nullptr;
  int (*ncclCommInitRank)(NcclCommunicator*, int, NcclUniqueId, int) = nullptr;
  int (*ncclCommInitRankConfig)(NcclCommunicator*, int, NcclUniqueId, int, NcclConfig*) = nullptr;
  int (*ncclCommGetAsyncError)(NcclCommunicator, int*) = nullptr;
  int (*ncclCommAbort)(NcclCommunicator) = nullptr;
  int (*ncclAllReduce)(const void*, void*, std::size_t, int, int, NcclCommunicator, CUstream_st*) = nullptr;
  int (*ncclAllGather)(const void*, void*, std::size_t, int, NcclCommunicator, CUstream_st*) = nullptr;
  int (*ncclSend)(const void*, std::size_t, int, int, NcclCommunicator, CUstream_st*) = nullptr;
  int (*ncclRecv)(void*, std::size_t, int, int, NcclCommunicator, CUstream_st*) = nullptr;
  const char* (*ncclGetErrorString)(int) = nullptr;
  const char* (*ncclGetLastError)(NcclCommunicator) = nullptr;
  int version = 0;  ///< 22809 for 2.28.9

  /// What a call that has failed says, in a sentence.
  std::string sentence(const char* call, int result, NcclCommunicator communicator) const;
  /// Throws CudaError with that sentence unless `result` is kNcclSuccess.
  void check(int result, const char* call, NcclCommunicator communicator = nullptr) const;
};

/// The library stays open for good. unavailable if it cannot be opened or is too old; the message is a clause
/// without an end.
Result<NcclFunctions> open_nccl(const char* library);

/// Those of kNcclLibrary, opened once. Throws CudaError where that fails.
const NcclFunctions& nccl_functions();

/// An id for one communicator. Throws CudaError.
NcclId make_nccl_id(const NcclFunctions& nccl);

/// "2.28.9".
std::string nccl_version_text(int version);

}  // namespace troupe
