#pragma once
// The file of --swap-path: made, allocated and locked at start, removed at a clean end.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace troupe::model {

/// One owner. The file is the process's alone while it is open (flock), and readable by its user alone: it
/// holds what users have written. It is read and written, not mapped: someone who truncates a mapped file
/// kills the process with SIGBUS, and an error of read() is an error of one block.
class SwapFile {
 public:
  /// Creates the file, or takes over one that an earlier server left, and allocates `bytes` behind its
  /// header. invalid_argument, one sentence that names the flag, when the path cannot be written, is in use,
  /// holds other data, or its disk is too small.
  static Result<SwapFile> open(const std::string& path, std::uint64_t bytes);

  /// Removes a file that a killed process left here. Nothing when it is in use, or was never a swap file.
  static void remove_left(const std::string& path);

  SwapFile(SwapFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  SwapFile& operator=(SwapFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(path_, other.path_);
    return *this;
  }
  ~SwapFile();

  /// Offsets count from the end of the header. False when not all bytes could be read or written.
  bool read(std::uint64_t offset, std::byte* to, std::size_t bytes) const;
  bool write(std::uint64_t offset, const std::byte* from, std::size_t bytes) const;

 private:
  SwapFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_ = -1;
  std::string path_;
};

}  // namespace troupe::model
