#pragma once
// Where bytes for a device come from: host memory, or a file that is read piece by piece. Loading reads
// through this, straight into the memory that is uploaded or packed.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace troupe {

/// Any number of threads may read at once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Copies bytes [offset, offset + bytes) to `to`. Bytes that cannot be read become zeros; the
  /// implementation keeps the reason for the owner to ask after the work, since readers run on threads that
  /// must not throw.
  virtual void read(std::uint64_t offset, void* to, std::size_t bytes) const noexcept = 0;
};

/// Bytes in host memory. Borrows it.
class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(const void* data) : data_(static_cast<const std::byte*>(data)) {}

  void read(std::uint64_t offset, void* to, std::size_t bytes) const noexcept override {
    std::memcpy(to, data_ + offset, bytes);
  }

 private:
  const std::byte* const data_;
};

}  // namespace troupe
