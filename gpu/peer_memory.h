#pragma once
// Device memory that another rank reaches: one on another GPU, in another process of this host, or both.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"
#include "gpu/cuda.h"

namespace troupe {

/// Says where a SharedMemory is. Plain bytes, to be sent to another rank.
struct PeerAddress {
  std::int64_t process = 0;
  std::int64_t made_ns = 0;  ///< by the host's clock: no other memory has the same numbers
  std::int32_t ordinal = 0;
  std::uint64_t address = 0;  ///< in its process
  unsigned char handle[64] = {};

  bool operator==(const PeerAddress&) const = default;
};

/// One owner; the device outlives it. Throws CudaError.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Zeroed.
  SharedMemory(Cuda& device, std::size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  const PeerAddress& address() const { return address_; }

 private:
  Cuda* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  PeerAddress address_;
};

/// Another rank's SharedMemory as this rank's kernels reach it. The other's process may end first: what is
/// written then goes nowhere.
class PeerMemory {
 public:
  PeerMemory() = default;
  /// unavailable: the GPU that has it cannot be reached from `device`.
  static Result<PeerMemory> open(Cuda& device, const PeerAddress& address);
  PeerMemory(PeerMemory&& other) noexcept { *this = std::move(other); }
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~PeerMemory();

  std::byte* data() const { return data_; }
  const PeerAddress& address() const { return address_; }

 private:
  std::byte* data_ = nullptr;
  bool mapped_ = false;
  PeerAddress address_;
};

}  // namespace troupe
