#pragma once
// A file while it is being fetched, in pieces that may arrive in any order. How far each piece is stands in a
// second file, so that a later process goes on where this one ended, however it ended. Data are written
// before the count that vouches for them; what a power failure makes of that, the checksum finds.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fetch/http_get.h"
#include "fetch/remote_file.h"

namespace troupe::fetch {

class PartFile {
 public:
  /// Opens or creates `folder`/PATH and its counts in `folder`/.troupe/PATH. Counts of another size, checksum
  /// or `version` are forgotten. `piece_bytes` > 0 is for new counts; old ones keep theirs.
  static Result<PartFile> open(const std::filesystem::path& folder, const RemoteFile& file,
                               const std::string& version, std::uint64_t piece_bytes);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();

  const RemoteFile& file() const { return file_; }
  int descriptor() const { return data_fd_; }

  std::size_t pieces() const { return done_.size(); }
  /// The bytes of piece i that are missing; empty if none.
  ByteRange missing(std::size_t i) const;
  std::uint64_t bytes_done() const { return bytes_done_; }
  bool complete() const { return bytes_done_ == file_.size; }

  /// Appends to piece i. Errors: more bytes than are missing; what the system says of a full disk.
  Status write(std::size_t i, std::string_view bytes);

  /// Forgets piece i, or everything. `as_one_piece`: for a server that sends files as a whole only.
  Status forget(std::size_t i);
  Status restart(bool as_one_piece);

  bool verified() const { return verified_; }
  /// The checksum was right: a later process need not read the file again. Writes the data through to the
  /// disk.
  Status set_verified();

 private:
  PartFile(RemoteFile file, std::string version) : file_(std::move(file)), version_(std::move(version)) {}
  Status start(std::uint64_t piece_bytes);
  bool read_counts();
  std::uint64_t length(std::size_t i) const;
  Status failed(const char* what) const;

  RemoteFile file_;
  std::string version_;
  int data_fd_ = -1;
  int counts_fd_ = -1;
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t bytes_done_ = 0;
  std::vector<std::uint64_t> done_;  ///< bytes of each piece
  bool verified_ = false;
};

/// The folder of the counts in a folder that is being fetched into.
inline constexpr std::string_view kCountsFolder = ".troupe";

}  // namespace troupe::fetch
