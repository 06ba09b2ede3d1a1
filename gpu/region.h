#pragma once
// Device memory that is taken once and handed out in pieces that come and go while the device works.
#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "gpu/buffer.h"
#include "gpu/device.h"

namespace troupe {

/// One owner and thread; the device outlives it, and it its pieces. As a device it can be given to Buffer. A
/// piece holds what was there before and is not zeroed. alloc() takes the first gap that is large enough;
/// where there is none it asks the device, which may wait for its work.
template <Device D>
class Region {
 public:
  static constexpr const char* name = D::name;
  static bool available() { return D::available(); }

  static Result<Region> make(D& device, std::size_t bytes, const char* what) {
    Result<Buffer<D>> memory = Buffer<D>::make(device, aligned(bytes), what);
    if (!memory) return memory.status();
    return Region(device, std::move(*memory));
  }

  void* alloc(std::size_t bytes) {
    bytes = aligned(bytes);
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [at, size] = *gap;
      if (size < bytes) continue;
      gaps_.erase(gap);
      if (size > bytes) gaps_.emplace(at + bytes, size - bytes);
      taken_.emplace(at, bytes);
      return static_cast<std::byte*>(memory_.data()) + at;
    }
    return device_->alloc(bytes);
  }

  void free(void* memory) {
    const std::ptrdiff_t offset = static_cast<std::byte*>(memory) - static_cast<std::byte*>(memory_.data());
    const auto node =
        offset < 0 ? decltype(taken_.extract(0)){} : taken_.extract(static_cast<std::size_t>(offset));
    if (node.empty()) return device_->free(memory);
    std::size_t at = node.key(), size = node.mapped();
    auto next = gaps_.lower_bound(at);
    if (next != gaps_.end() && at + size == next->first) {
      size += next->second;
      next = gaps_.erase(next);
    }
    if (next != gaps_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        at = before->first;
        size += before->second;
        gaps_.erase(before);
      }
    }
    gaps_.emplace(at, size);
  }

  void upload(void* to, const void* from, std::size_t bytes) { device_->upload(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) { device_->download(to, from, bytes); }
  void sync() { device_->sync(); }
  std::string describe() const { return device_->describe(); }

  std::size_t bytes() const { return memory_.bytes(); }

 private:
  static constexpr std::size_t aligned(std::size_t bytes) {
    return bytes == 0 ? kUnit : (bytes + kUnit - 1) / kUnit * kUnit;
  }
  static constexpr std::size_t kUnit = 256;

  Region(D& device, Buffer<D> memory) : device_(&device), memory_(std::move(memory)) {
    gaps_.emplace(0, memory_.bytes());
  }

  D* device_;
  Buffer<D> memory_;
  std::map<std::size_t, std::size_t> gaps_, taken_;  // size by offset
};

}  // namespace troupe
