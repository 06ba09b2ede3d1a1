#pragma once
// One file of a checkpoint, read by offset.
//
// Files are read and not mapped: a mapped file that another process truncates, or that has an I/O error, ends
// this process with SIGBUS. Here both are a sentence.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "gpu/byte_source.h"

namespace troupe::model {

/// Owns the file descriptor. All const functions may be called on any number of threads.
class ShardFile final : public ByteSource {
 public:
  /// not_found if there is no such file, invalid_argument if it is no regular file or empty.
  static Result<std::unique_ptr<ShardFile>> open(const std::filesystem::path& path);
  ~ShardFile() override;
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// When the file was opened.
  std::uint64_t bytes() const { return bytes_; }

  /// On a failure status() says why from then on.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const noexcept override;

  /// The first failure of a read: names the file, the bytes that were wanted, and what was found.
  Status status() const;

  /// Asks the operating system to read these bytes into its page cache soon. May block while many requests
  /// are under way.
  void will_need(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  ShardFile(std::filesystem::path path, int fd, std::uint64_t bytes);
  void fail(Status why) const;

  const std::filesystem::path path_;
  const int fd_;
  const std::uint64_t bytes_;
  mutable std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  mutable Status status_;
};

}  // namespace troupe::model
