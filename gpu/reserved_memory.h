#pragma once
// Device memory whose address is known before its size: a range of addresses, filled from the front.
//
// Graphs hold addresses, and the memory that remains beside the graphs is known only when they exist. So the
// KV blocks get their addresses first and their memory last.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu/cuda.h"

namespace troupe {

/// One owner; the device outlives it. Throws CudaError.
class ReservedMemory {
 public:
  ReservedMemory() = default;
  /// Reserves addresses for `bytes`, rounded up to whole granules; takes no memory.
  ReservedMemory(Cuda& device, std::size_t bytes);
  ReservedMemory(ReservedMemory&& other) noexcept { *this = std::move(other); }
  ReservedMemory& operator=(ReservedMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(reserved_, other.reserved_);
    std::swap(granule_, other.granule_);
    std::swap(mapped_, other.mapped_);
    std::swap(pieces_, other.pieces_);
    return *this;
  }
  ~ReservedMemory();

  /// Maps memory for the first `bytes`, zeroed in stream order. False if the GPU has too little left; memory
  /// mapped before stays as it was.
  bool map(std::size_t bytes);

  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t reserved() const { return reserved_; }
  std::size_t mapped() const { return mapped_; }
  /// Memory is mapped in multiples of this.
  std::size_t granule() const { return granule_; }

 private:
  struct Piece {
    std::uint64_t handle = 0;
    std::size_t at = 0;
    std::size_t bytes = 0;
  };
  Cuda* device_ = nullptr;
  std::uint64_t address_ = 0;
  std::size_t reserved_ = 0;
  std::size_t granule_ = 0;
  std::size_t mapped_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace troupe
