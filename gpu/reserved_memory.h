#pragma once
// Device memory whose address is known before its size: a range of addresses, filled from the front. Another
// process may map it.
//
// Graphs hold addresses, and the memory that remains beside the graphs is known only when they exist. So the
// KV blocks get their addresses first and their memory last.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/owned_fd.h"
#include "base/status.h"
#include "gpu/cuda.h"

namespace troupe {

/// One owner; the device outlives it. Throws CudaError.
class ReservedMemory {
 public:
  /// Whether share() can be called.
  enum class Sharing { off, on };

  ReservedMemory() = default;
  /// Reserves addresses for `bytes`, rounded up to whole granules; takes no memory.
  ReservedMemory(Cuda& device, std::size_t bytes, Sharing sharing = Sharing::off);
  ReservedMemory(ReservedMemory&& other) noexcept { *this = std::move(other); }
  ReservedMemory& operator=(ReservedMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(sharing_, other.sharing_);
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
  /// Gives all memory back, behind the device's work. The addresses stay reserved.
  void unmap();
  /// A descriptor with which another process maps the memory (ImportedMemory), all of which one call of map()
  /// has made. The memory exists as long as this object, a descriptor or a mapping of it does.
  OwnedFd share() const;

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
  void drop_pieces();

  Cuda* device_ = nullptr;
  Sharing sharing_ = Sharing::off;
  std::uint64_t address_ = 0;
  std::size_t reserved_ = 0;
  std::size_t granule_ = 0;
  std::size_t mapped_ = 0;
  std::vector<Piece> pieces_;
};

/// The ReservedMemory of another process, mapped for reading. It may be on another GPU, also on one that
/// CUDA_VISIBLE_DEVICES hides from this process. It stays readable when the other process has ended.
class ImportedMemory {
 public:
  /// Maps the first `bytes` of the memory whose share() returned `fd`, which is not kept. unavailable:
  /// `device` cannot read it.
  static Result<ImportedMemory> open(Cuda& device, int fd, std::size_t bytes);
  ImportedMemory(ImportedMemory&& other) noexcept
      : address_(std::exchange(other.address_, 0)),
        bytes_(other.bytes_),
        mapped_(std::exchange(other.mapped_, false)) {}
  ImportedMemory& operator=(ImportedMemory&&) = delete;
  ~ImportedMemory();  ///< no copy out of it may be under way

  const std::byte* data() const { return reinterpret_cast<const std::byte*>(address_); }

 private:
  ImportedMemory() = default;
  void map(Cuda& device, int fd, std::size_t bytes);

  std::uint64_t address_ = 0;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace troupe
