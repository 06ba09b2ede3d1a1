#pragma once
// An NVIDIA GPU as a device: one stream on which all ops run in the order of the calls, memory taken
// once, pinned staging for what comes from pageable memory.
//
// This header is plain C++; CUDA's own headers are included by gpu/ and kernels/*_cuda.cu alone. Any failing
// CUDA call throws CudaError, and so may any op: the device is then of no further use. The Executor turns it
// into a Status, which ends the worker process; nothing tries to go on.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/status.h"
#include "gpu/device.h"

struct CUstream_st;  // cudaStream_t

namespace troupe {

/// "cudaMalloc(...) at gpu/cuda.cpp:40 on GPU 0 (NVIDIA H200), step 17: out of memory".
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct CudaOptions {
  int ordinal = 0;  ///< among the devices that CUDA_VISIBLE_DEVICES leaves
  /// A row's arithmetic depends on that row alone: one order of summation whatever the batch. Slower.
  bool batch_invariant = false;
};

/// What a machine without a usable GPU says: one sentence that names the reason (no driver, driver too old,
/// no device, CUDA_VISIBLE_DEVICES names none, compute capability below 8.0). Takes no memory on the GPU.
Status cuda_usable(int ordinal = 0);

/// Whether this process has asked the driver for a GPU: its forks cannot use CUDA any more.
bool cuda_initialized();

struct CudaMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};

class Cuda {
 public:
  static constexpr const char* name = "cuda";
  static bool available() { return cuda_usable().ok(); }

  /// Throws CudaError where cuda_usable() fails.
  explicit Cuda(const CudaOptions& options = {});
  ~Cuda();
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// Zeroed, aligned to 256 bytes. Null when there is not enough.
  void* alloc(std::size_t bytes);
  void free(void* memory);

  /// `from` may be changed after the call. The copy itself is done in stream order.
  void upload(void* to, const void* from, std::size_t bytes);
  /// The same for `lines` pieces of line_bytes, `stride` bytes from one to the next; they lie dense in `to`.
  void upload_lines(void* to, const void* from, std::size_t lines, std::size_t line_bytes,
                    std::size_t stride);
  /// Within device memory.
  void copy(void* to, const void* from, std::size_t bytes);
  /// `to` is complete after the next sync().
  void download(void* to, const void* from, std::size_t bytes);
  void sync();

  /// "cuda: NVIDIA H200, 132 multiprocessors, compute capability 9.0, 139.8 GiB".
  std::string describe() const;

  CUstream_st* stream() const { return stream_; }
  int ordinal() const { return ordinal_; }
  /// 90 for compute capability 9.0.
  int capability() const { return capability_; }
  /// Whether the kernels for sm_90a (wgmma, bulk copies) run here: on such a GPU, and the build has their
  /// code.
  bool hopper() const { return hopper_; }
  /// Whether a kernel may start while the one before it still runs: the code that runs here knows how to wait
  /// for it (kernels/cuda/launch.cuh). Code for capabilities below 9.0 does not, on whatever GPU.
  bool programmatic() const { return programmatic_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Shared memory that one block may have, in bytes.
  int block_shared_bytes() const { return block_shared_bytes_; }
  /// What the memory can move: its clock × its bus. A copy reaches 85 to 90 % of it. 0: the driver does not say.
  double memory_bytes_per_s() const { return memory_bytes_per_s_; }
  /// Highest clock of a multiprocessor. 0: the driver does not say.
  double clock_hz() const { return clock_hz_; }
  bool batch_invariant() const { return batch_invariant_; }
  CudaMemory memory() const;

  /// Working memory of the op that runs now, 256-byte aligned. The next op may overwrite it: an op's kernels
  /// touch it only after cuda::wait_for_previous(). Grows to the largest demand so far and stays, which
  /// moves it: after freeze_scratch() a larger demand throws, because graphs hold the address.
  void* scratch(std::size_t bytes);
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  void freeze_scratch() { scratch_frozen_ = true; }

  /// A word of device memory per slot that is zero between ops: counters of kernels whose last block
  /// finishes the work and resets them. At least 64 KiB.
  std::uint32_t* counters() const { return counters_; }
  static constexpr std::size_t kCounters = 16384;

  /// The step that errors name.
  void set_step(std::uint64_t step);
  std::uint64_t step() const { return step_; }

 private:
  struct Staging;
  int ordinal_ = 0;
  int capability_ = 0;
  int multiprocessors_ = 0;
  int block_shared_bytes_ = 0;
  double memory_bytes_per_s_ = 0;
  double clock_hz_ = 0;
  bool hopper_ = false;
  bool programmatic_ = false;
  bool batch_invariant_ = false;
  std::string model_;
  std::size_t total_bytes_ = 0;
  CUstream_st* stream_ = nullptr;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  bool scratch_frozen_ = false;
  std::uint32_t* counters_ = nullptr;
  std::uint64_t step_ = 0;
  std::unique_ptr<Staging> staging_;
};
static_assert(Device<Cuda>);

}  // namespace troupe
