#pragma once
// An NVIDIA GPU as a device: one stream on which all ops run in the order of the calls, and pinned staging
// memory for uploads from pageable memory and files.
//
// This header is plain C++; only gpu/ and kernels/*_cuda.cu include CUDA's own headers. Any failing CUDA call
// throws CudaError, and so may any op. The device is of no further use then: the Executor turns the error
// into a Status, which ends the worker process.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/debug_build.h"
#include "base/status.h"
#include "gpu/architectures.h"
#include "gpu/byte_source.h"
#include "gpu/device.h"
#include "gpu/kernel_ways.h"
#include "gpu/overlap_check.h"

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
  /// A kernel may start while the one before it still runs, where the GPU can do that. Off: plain launches,
  /// in graphs too. The results are the same to the bit.
  bool overlap = true;
  /// Kernels that do not run here, because the card was found to compute them wrongly (troupe check-gpu).
  KernelWays avoided{};
};

/// ok if the GPU can be used; otherwise one sentence that names the reason (no driver, driver too old, no
/// device, CUDA_VISIBLE_DEVICES names none, compute capability below 8.0). Takes no memory on the GPU.
Status cuda_usable(int ordinal = 0);

/// GPUs that CUDA_VISIBLE_DEVICES leaves; 0 where cuda_usable() fails.
int cuda_devices();

/// True if kernels on GPU `from` can read and write the memory of GPU `to`.
bool cuda_reaches(int from, int to);

/// True if this process has asked the driver for a GPU: its forks cannot use CUDA any more.
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

  /// `from` may be changed after the call. The copy to the device is done in stream order.
  void upload(void* to, const void* from, std::size_t bytes);
  /// Uploads `lines` lines of line_bytes, the first at `offset` of `from` and each `stride` bytes after the
  /// one before it. They lie dense in `to`. The source is read on several threads, into pinned memory, and no
  /// more after the call.
  void upload_lines(void* to, const ByteSource& from, std::uint64_t offset, std::size_t lines,
                    std::size_t line_bytes, std::size_t stride);
  /// Frees the pinned memory and the threads that uploads of more than 64 KiB use, after the uploads under
  /// way. For the end of loading; a later upload takes them again.
  void release_staging();
  /// Pinned memory held for uploads.
  std::size_t staging_bytes() const;
  /// Copies within device memory.
  void copy(void* to, const void* from, std::size_t bytes);
  /// The same for `rows` pieces of row_bytes, to_stride and from_stride bytes after one another.
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t row_bytes, std::size_t rows);
  /// In stream order.
  void zero(void* memory, std::size_t bytes);
  /// `to` is complete after the next sync().
  void download(void* to, const void* from, std::size_t bytes);
  void sync();

  /// "cuda: NVIDIA H200, 132 multiprocessors, compute capability 9.0, 139.8 GiB".
  std::string describe() const;

  /// Calls of this thread are about this GPU from now on, as those of the thread that has made the device
  /// are. Throws CudaError.
  void use_on_this_thread() const;

  CUstream_st* stream() const { return stream_; }
  int ordinal() const { return ordinal_; }
  /// 90 for compute capability 9.0.
  int capability() const { return capability_; }
  /// What kernels may use here. Choosers read it as a part of kernels/cuda/gpu_traits.h.
  const GpuFeatures& features() const { return features_; }
  /// True if kernels are launched so that each may start while the one before it still runs (programmatic
  /// dependent launch; kernels/cuda/launch.cuh). It takes CudaOptions::overlap and features().programmatic:
  /// code for lower capabilities does not wait for the previous kernel.
  bool programmatic() const { return programmatic_; }
  /// Debug builds check what overlapping relies on. `memory` is written by the kernels of a step; 0 bytes
  /// take that back.
  void set_step_memory(const void* memory, std::size_t bytes) {
    if constexpr (kDebugBuild) overlap_check_.set_step_memory(memory, bytes);
  }
  OverlapCheck& overlap_check() { return overlap_check_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Shared memory that one block may have, in bytes.
  int block_shared_bytes() const { return block_shared_bytes_; }
  /// What the memory can move: its clock × its bus. A copy reaches 85 to 90 % of it. 0: the driver does not
  /// say.
  double memory_bytes_per_s() const { return memory_bytes_per_s_; }
  /// Highest clock of a multiprocessor. 0: the driver does not say.
  double clock_hz() const { return clock_hz_; }
  bool batch_invariant() const { return batch_invariant_; }
  /// CudaOptions::avoided.
  const KernelWays& avoided() const { return avoided_; }
  CudaMemory memory() const;

  /// Working memory of one op, 256-byte aligned. The next op may overwrite it, so an op's kernels touch it
  /// only after cuda::wait_for_previous(). It grows to the largest demand so far, and moves when it grows.
  /// After freeze_scratch() a larger demand throws, because graphs hold the address.
  void* scratch(std::size_t bytes);
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  /// The largest demand since the last call.
  std::size_t take_scratch_demand() { return std::exchange(scratch_demand_, 0); }
  void freeze_scratch() { scratch_frozen_ = true; }

  /// kCounters words of device memory that are zero between ops. Kernels whose last block finishes the work
  /// count their blocks here; the last block resets its counter.
  std::uint32_t* counters() const { return counters_; }
  static constexpr std::size_t kCounters = 16384;

  /// The step that error messages name.
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
  GpuFeatures features_;
  bool programmatic_ = false;
  bool batch_invariant_ = false;
  std::string model_;
  std::size_t total_bytes_ = 0;
  CUstream_st* stream_ = nullptr;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::size_t scratch_demand_ = 0;
  bool scratch_frozen_ = false;
  std::uint32_t* counters_ = nullptr;
  std::uint64_t step_ = 0;
  std::unique_ptr<Staging> staging_;
  OverlapCheck overlap_check_;  // used by debug builds only
  KernelWays avoided_;
};
static_assert(Device<Cuda>);

}  // namespace troupe
