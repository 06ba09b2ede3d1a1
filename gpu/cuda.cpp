#include "gpu/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "base/usable_cores.h"
#include "gpu/architectures.h"
#include "gpu/cuda_check.h"
#include "gpu/gpu_checks.h"
#include "gpu/gpu_like.h"
#include "gpu/thread_pool.h"

namespace troupe {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;
constexpr std::size_t kSliceBytes = std::size_t{1} << 20;
constexpr std::size_t kSmall = 64 << 10;

thread_local unsigned long long current_step = 0;
std::atomic<bool> initialized{false};

/// What both have.
GpuFeatures common(const GpuFeatures& a, const GpuFeatures& b) {
  return {.clusters = a.clusters && b.clusters,
          .wgmma = a.wgmma && b.wgmma,
          .programmatic = a.programmatic && b.programmatic,
          .fp8 = a.fp8 && b.fp8};
}

}  // namespace

namespace cuda {

void check(cudaError_t error, const char* expression, const char* file, int line) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  int ordinal = -1;
  if (cudaGetDevice(&ordinal) != cudaSuccess) ordinal = -1;
  std::string text = std::string(expression) + " at " + file + ":" + std::to_string(line) + " on GPU " +
                     std::to_string(ordinal);
  if (current_step > 0) text += ", step " + std::to_string(current_step);
  throw CudaError(text + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

void set_current_step(unsigned long long step) { current_step = step; }

}  // namespace cuda

Status cuda_usable(int ordinal) {
  // All kernels are loaded to the GPU with its context. Otherwise each is loaded at its first launch, which
  // may take memory and wait for all running work; kernels that the warm-up does not launch would do so in a
  // step.
  [[maybe_unused]] static const int asked = ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int driver = 0, runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (Status s = check_driver(driver, runtime); !s.ok()) return s;
  int count = 0;
  initialized = true;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    cudaGetLastError();
    std::string why = error == cudaSuccess || error == cudaErrorNoDevice
                          ? std::string()
                          : std::string(" (") + cudaGetErrorString(error) + ")";
    return failure(Code::unsupported, "No GPU is visible" + why +
                                          "; CUDA_VISIBLE_DEVICES has to name one that nvidia-smi -L lists.");
  }
  if (ordinal < 0 || ordinal >= count) {
    return failure(Code::unsupported, "GPU " + std::to_string(ordinal) + " is not there; " +
                                          std::to_string(count) + " visible, counted from 0.");
  }
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
  return check_capability(ordinal, major * 10 + minor, TROUPE_CUDA_ARCHITECTURES);
}

int cuda_devices() {
  int count = 0;
  return cuda_usable().ok() && cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool cuda_reaches(int from, int to) {
  if (from == to) return true;
  if (keeps_gpus_apart()) return false;
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess && can == 1;
}

bool cuda_initialized() { return initialized; }

// Two halves of pinned memory: one is copied to the device while the host fills the other. Several threads
// fill it, because one alone reads memory more slowly than the bus transfers it.
struct Cuda::Staging {
  std::byte* half[2] = {};
  cudaEvent_t free[2] = {};
  int next = 0;
  ThreadPool pool{static_cast<int>(std::clamp(usable_cores() / 2, 1u, 8u)), {}, false};

  Staging() {
    for (int i = 0; i < 2; ++i) {
      TROUPE_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&half[i]), kStagingBytes, cudaHostAllocDefault));
      TROUPE_CUDA(cudaEventCreateWithFlags(&free[i], cudaEventDisableTiming));
    }
  }
  ~Staging() {
    for (int i = 0; i < 2; ++i) {
      cudaFreeHost(half[i]);
      cudaEventDestroy(free[i]);
    }
  }

  // Fills the next half by fill(pinned, begin, end), which writes bytes [begin, end) and is called on several
  // threads, and starts its copy to the device.
  template <class Fill>
  void send(void* to, std::size_t bytes, cudaStream_t stream, Fill&& fill) {
    const int i = next;
    next ^= 1;
    TROUPE_CUDA(cudaEventSynchronize(free[i]));
    const auto slices = static_cast<int>((bytes + kSliceBytes - 1) / kSliceBytes);
    pool.for_each(slices, 1, [&](int begin, int end, int) {
      fill(half[i], static_cast<std::size_t>(begin) * kSliceBytes,
           std::min(bytes, static_cast<std::size_t>(end) * kSliceBytes));
    });
    TROUPE_CUDA(cudaMemcpyAsync(to, half[i], bytes, cudaMemcpyHostToDevice, stream));
    TROUPE_CUDA(cudaEventRecord(free[i], stream));
  }
};

Cuda::Cuda(const CudaOptions& options)
    : ordinal_(options.ordinal), batch_invariant_(options.batch_invariant), avoided_(options.avoided) {
  if (Status usable = cuda_usable(options.ordinal); !usable.ok()) throw CudaError(usable.message);
  TROUPE_CUDA(cudaSetDevice(ordinal_));
  cudaDeviceProp properties{};
  TROUPE_CUDA(cudaGetDeviceProperties(&properties, ordinal_));
  capability_ = properties.major * 10 + properties.minor;
  features_ = features_of(code_for(TROUPE_CUDA_ARCHITECTURES, capability_), capability_);
  multiprocessors_ = properties.multiProcessorCount;
  block_shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  if (const std::optional<Card> like = gpu_like()) {
    features_ = common(features_, features_of({like->capability, like->capability == 90}, like->capability));
    if (like->multiprocessors > 0) multiprocessors_ = std::min(multiprocessors_, like->multiprocessors);
    block_shared_bytes_ = std::min(block_shared_bytes_, like->block_shared_kib << 10);
  }
  programmatic_ = options.overlap && features_.programmatic;
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    TROUPE_CUDA(cudaDeviceGetAttribute(&value, which, ordinal_));
    return static_cast<double>(value);
  };
  // Clocks are in kHz; memory moves two words of its bus a clock.
  memory_bytes_per_s_ =
      attribute(cudaDevAttrMemoryClockRate) * 1e3 * 2 * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  clock_hz_ = attribute(cudaDevAttrClockRate) * 1e3;
  model_ = properties.name;
  total_bytes_ = properties.totalGlobalMem;
  TROUPE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  counters_ = static_cast<std::uint32_t*>(alloc(kCounters * sizeof(std::uint32_t)));
  if (counters_ == nullptr) throw CudaError("GPU " + std::to_string(ordinal_) + " has no free memory at all");
}

Cuda::~Cuda() {
  cudaStreamSynchronize(stream_);
  cudaFree(scratch_);
  cudaFree(counters_);
  staging_.reset();
  cudaStreamDestroy(stream_);
}

void* Cuda::alloc(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  cuda::check(error, "cudaMalloc", __FILE__, __LINE__);
  TROUPE_CUDA(cudaMemsetAsync(memory, 0, std::max<std::size_t>(bytes, 1), stream_));
  return memory;
}

void Cuda::free(void* memory) {
  if (memory == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaFree(memory);
}

void Cuda::upload(void* to, const void* from, std::size_t bytes) {
  // The driver copies small pageable sources aside before it returns.
  if (bytes <= kSmall) {
    TROUPE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    return;
  }
  upload_lines(to, MemoryBytes(from), 0, 1, bytes, bytes);
}

void Cuda::upload_lines(void* to, const ByteSource& from, std::uint64_t offset, std::size_t lines,
                        std::size_t line_bytes, std::size_t stride) {
  if (!staging_) staging_ = std::make_unique<Staging>();
  const std::size_t all = lines * line_bytes;
  if (stride == line_bytes) stride = line_bytes = all;  // one long line
  for (std::size_t at = 0; at < all; at += kStagingBytes) {
    staging_->send(static_cast<std::byte*>(to) + at, std::min(kStagingBytes, all - at), stream_,
                   [&](std::byte* pinned, std::size_t begin, std::size_t end) {
                     while (begin < end) {  // to the end of a line at a time
                       const std::size_t line = (at + begin) / line_bytes, column = (at + begin) % line_bytes;
                       const std::size_t count = std::min(line_bytes - column, end - begin);
                       from.read(offset + line * stride + column, pinned + begin, count);
                       begin += count;
                     }
                   });
  }
}

void Cuda::release_staging() {
  if (!staging_) return;
  sync();
  staging_.reset();
}

std::size_t Cuda::staging_bytes() const { return staging_ ? 2 * kStagingBytes : 0; }

void Cuda::copy(void* to, const void* from, std::size_t bytes) {
  TROUPE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

void Cuda::copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                     std::size_t row_bytes, std::size_t rows) {
  TROUPE_CUDA(cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, rows, cudaMemcpyDeviceToDevice,
                                stream_));
}

void Cuda::zero(void* memory, std::size_t bytes) { TROUPE_CUDA(cudaMemsetAsync(memory, 0, bytes, stream_)); }

void Cuda::download(void* to, const void* from, std::size_t bytes) {
  TROUPE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
}

void Cuda::set_step(std::uint64_t step) {
  step_ = step;
  cuda::set_current_step(step);
}

void Cuda::sync() { TROUPE_CUDA(cudaStreamSynchronize(stream_)); }

void Cuda::use_on_this_thread() const { TROUPE_CUDA(cudaSetDevice(ordinal_)); }

std::string Cuda::describe() const {
  char text[160];
  std::snprintf(text, sizeof text, "cuda: %s, %d multiprocessors, compute capability %d.%d, %.1f GiB",
                model_.c_str(), multiprocessors_, capability_ / 10, capability_ % 10,
                static_cast<double>(total_bytes_) / static_cast<double>(1 << 30));
  return text;
}

CudaMemory Cuda::memory() const {
  CudaMemory memory;
  TROUPE_CUDA(cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

void* Cuda::scratch(std::size_t bytes) {
  scratch_demand_ = std::max(scratch_demand_, bytes);
  if (bytes <= scratch_bytes_) return scratch_;
  if (scratch_frozen_) {
    throw CudaError("an op asked for " + std::to_string(bytes) +
                    " bytes of working memory after the graphs were made; " + std::to_string(scratch_bytes_) +
                    " are there");
  }
  set_step_memory(scratch_, 0);
  free(scratch_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  scratch_ = alloc(bytes);
  if (scratch_ == nullptr)
    throw CudaError("no memory for " + std::to_string(bytes) + " bytes of working memory");
  scratch_bytes_ = bytes;
  set_step_memory(scratch_, bytes);
  return scratch_;
}

}  // namespace troupe
