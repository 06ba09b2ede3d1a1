#pragma once
// Host memory that the GPU reads and writes in place, and from which copies do not pass through the driver.
#include <cstddef>
#include <utility>

namespace troupe {

/// Page-locked, zeroed, one owner; its addresses mean the same in kernels. What a kernel writes may be read
/// after the kernel is known to be over, or behind a word that it wrote after __threadfence_system().
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Throws CudaError.
  explicit PinnedMemory(std::size_t bytes);
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

}  // namespace troupe
