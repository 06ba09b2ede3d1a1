#pragma once
// Page-locked host memory that the GPU reads and writes in place, and that needs no copy by the driver.
#include <cstddef>
#include <span>
#include <utility>

namespace troupe {

/// One owner; kernels use the same addresses. The host may read what a kernel wrote when the kernel
/// is known to be complete, or after it has seen a word that the kernel wrote behind __threadfence_system().
class PinnedMemory {
 public:
  enum class Contents { zero, unset };

  PinnedMemory() = default;
  /// Throws CudaError. `contents` unset: without the time that it takes to clear many GiB.
  explicit PinnedMemory(std::size_t bytes, Contents contents = Contents::zero);
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Page-locks memory that was mapped otherwise, for example a memory file, while it lives: copies between it
/// and a GPU run beside the host and at the speed of the link. One owner. The memory begins at a page, and
/// stays mapped as long as this object lives.
class PinnedMapping {
 public:
  /// Throws CudaError. All of the memory's pages are taken.
  explicit PinnedMapping(std::span<std::byte> memory);
  PinnedMapping(const PinnedMapping&) = delete;
  PinnedMapping& operator=(const PinnedMapping&) = delete;
  ~PinnedMapping();

 private:
  std::span<std::byte> memory_;
};

}  // namespace troupe
