#pragma once
// Memory without a name that another process can map, for what a worker shares.
#include <cstddef>
#include <utility>

#include "base/owned_fd.h"
#include "base/status.h"

namespace troupe::model {

/// A memory file of zeros, sealed against shrinking, growing and further seals.
Result<OwnedFd> make_sealed_memory(const char* name, std::size_t bytes);

/// Such a file, mapped; one of this process or, to read, of another. Its pages take memory when they are
/// touched.
class SealedMemory {
 public:
  SealedMemory() = default;  ///< none
  static Result<SealedMemory> make(const char* name, std::size_t bytes);
  /// The first `bytes` of another process's file, to read: a write faults. `fd` is not kept.
  /// invalid_argument: the file is not sealed, or shorter.
  static Result<SealedMemory> open(int fd, std::size_t bytes);

  SealedMemory(SealedMemory&& other) noexcept { swap(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept {
    SealedMemory moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~SealedMemory();

  void* data() const { return data_; }    ///< null: there is none
  int fd() const { return file_.get(); }  ///< -1 likewise, and for open()

 private:
  void swap(SealedMemory& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  OwnedFd file_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace troupe::model
