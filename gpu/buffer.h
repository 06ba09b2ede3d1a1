#pragma once
// Owned device memory, and a bump allocator over it for memory that lives one step.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "gpu/device.h"

namespace troupe {

/// Every piece that an Arena hands out starts at a multiple of this.
inline constexpr std::size_t kDeviceAlignment = 64;

constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

/// Device memory borrowed from its Buffer.
struct View {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Device memory with one owner. The device outlives it.
template <Device D>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(view_, other.view_);
    return *this;
  }
  ~Buffer() {
    if (device_ != nullptr) device_->free(view_.data);
  }

  /// Zeroed memory; `what` names it in the error ("KV memory").
  static Result<Buffer> make(D& device, std::size_t bytes, const char* what) {
    Buffer made;
    made.view_ = {device.alloc(bytes), bytes};
    if (made.view_.data == nullptr) {
      return failure(Code::unavailable, std::string("no memory for ") + what + ": " +
                                            std::to_string(bytes >> 20) + " MiB were asked of the " +
                                            D::name);
    }
    made.device_ = &device;
    return made;
  }

  View view() const { return view_; }
  void* data() const { return view_.data; }
  std::size_t bytes() const { return view_.bytes; }

 private:
  D* device_ = nullptr;
  View view_;
};

/// Hands out pieces of its memory from front to back; reset() takes all of them back. Without memory it only
/// counts: the same sequence of take() shows how much is needed.
class Arena {
 public:
  Arena() = default;
  explicit Arena(View memory) : memory_(memory) {}

  /// `count` elements, aligned; null while counting. The memory must be large enough.
  template <class T>
  T* take(std::size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  void* take_bytes(std::size_t bytes) {
    const std::size_t at = used_;
    used_ += aligned_bytes(bytes);
    if (memory_.data == nullptr) return nullptr;
    TROUPE_CHECK(used_ <= memory_.bytes);
    return static_cast<std::byte*>(memory_.data) + at;
  }
  void reset() { used_ = 0; }
  std::size_t used() const { return used_; }

 private:
  View memory_;
  std::size_t used_ = 0;
};

}  // namespace troupe
