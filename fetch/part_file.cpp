#include "fetch/part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::fetch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxVersionBytes = 512;
constexpr std::uint64_t kMaxPieces = 1 << 20;

/// The head of the counts file; the bytes done of each piece follow it.
struct CountsHead {
  char magic[8] = {'T', 'R', 'P', 'U', 'L', 'L', '1', '\0'};
  std::uint64_t size = 0;
  std::uint64_t piece_bytes = 0;
  std::uint64_t verified = 0;
  char sum[72] = {};
  char version[kMaxVersionBytes] = {};
};

bool write_all(int fd, const void* bytes, std::size_t count, std::uint64_t offset) {
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t n = ::pwrite(fd, at, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    offset += static_cast<std::uint64_t>(n);
    count -= static_cast<std::size_t>(n);
  }
  return true;
}

void copy_text(const std::string& text, char* to, std::size_t room) {
  std::memcpy(to, text.data(), std::min(text.size(), room - 1));
}

CountsHead head_of(const RemoteFile& file, const std::string& version, std::uint64_t piece_bytes) {
  CountsHead head;
  head.size = file.size;
  head.piece_bytes = piece_bytes;
  copy_text(file.sum.hex, head.sum, sizeof head.sum);
  copy_text(version, head.version, sizeof head.version);
  return head;
}

int open_new_or_old(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
}

}  // namespace

Result<PartFile> PartFile::open(const fs::path& folder, const RemoteFile& file, const std::string& version,
                                std::uint64_t piece_bytes) {
  PartFile out(file, version);
  out.data_fd_ = open_new_or_old(folder / file.path);
  if (out.data_fd_ < 0) return out.failed("cannot be created");
  out.counts_fd_ = open_new_or_old(folder / kCountsFolder / file.path);
  if (out.counts_fd_ < 0) return out.failed("cannot be counted");
  if (!out.read_counts()) {
    if (Status s = out.start(piece_bytes); !s.ok()) return s;
  }
  return out;
}

PartFile::PartFile(PartFile&& other) noexcept
    : file_(std::move(other.file_)),
      version_(std::move(other.version_)),
      data_fd_(std::exchange(other.data_fd_, -1)),
      counts_fd_(std::exchange(other.counts_fd_, -1)),
      piece_bytes_(other.piece_bytes_),
      bytes_done_(other.bytes_done_),
      done_(std::move(other.done_)),
      verified_(other.verified_) {}

PartFile::~PartFile() {
  if (data_fd_ >= 0) ::close(data_fd_);
  if (counts_fd_ >= 0) ::close(counts_fd_);
}

Status PartFile::failed(const char* what) const {
  if (errno == ENOSPC || errno == EDQUOT) {
    return failure(Code::unavailable, file_.path + ": the disk is full, or your quota is used up, after " +
                                          std::to_string(bytes_done_) + " of " + std::to_string(file_.size) +
                                          " bytes. Make room; the same command then goes on from there");
  }
  return failure(Code::unavailable, file_.path + " " + what + ": " + std::strerror(errno));
}

/// Sets the counts to those of an earlier process. False if there are none that fit the file.
bool PartFile::read_counts() {
  CountsHead found;
  struct stat data = {};
  if (::pread(counts_fd_, &found, sizeof found, 0) != static_cast<ssize_t>(sizeof found)) return false;
  CountsHead expected = head_of(file_, version_, found.piece_bytes);
  expected.verified = found.verified;
  if (std::memcmp(&found, &expected, sizeof found) != 0 || found.piece_bytes == 0) return false;
  if (::fstat(data_fd_, &data) != 0 || static_cast<std::uint64_t>(data.st_size) != file_.size) return false;
  const std::uint64_t pieces = (file_.size + found.piece_bytes - 1) / found.piece_bytes;
  if (pieces > kMaxPieces) return false;
  piece_bytes_ = found.piece_bytes;
  done_.assign(pieces, 0);
  const std::size_t bytes = done_.size() * sizeof done_[0];
  if (bytes > 0 && ::pread(counts_fd_, done_.data(), bytes, sizeof found) != static_cast<ssize_t>(bytes))
    return false;
  bytes_done_ = 0;
  for (std::size_t i = 0; i < done_.size(); ++i) {
    if (done_[i] > length(i)) return false;
    bytes_done_ += done_[i];
  }
  verified_ = found.verified == 1 && complete();
  return true;
}

Status PartFile::start(std::uint64_t piece_bytes) {
  piece_bytes_ = std::max({piece_bytes, std::uint64_t{1}, file_.size / kMaxPieces + 1});
  done_.assign((file_.size + piece_bytes_ - 1) / piece_bytes_, 0);
  bytes_done_ = 0;
  verified_ = false;
  const CountsHead head = head_of(file_, version_, piece_bytes_);
  // The counts go first: old data with no counts are nothing, new data with old counts would be wrong.
  if (::ftruncate(counts_fd_, 0) != 0 || ::ftruncate(data_fd_, 0) != 0 ||
      ::ftruncate(data_fd_, static_cast<off_t>(file_.size)) != 0 ||
      !write_all(counts_fd_, done_.data(), done_.size() * sizeof(std::uint64_t), sizeof head) ||
      !write_all(counts_fd_, &head, sizeof head, 0)) {
    return failed("cannot be written");
  }
  return {};
}

std::uint64_t PartFile::length(std::size_t i) const {
  return std::min(piece_bytes_, file_.size - i * piece_bytes_);
}

ByteRange PartFile::missing(std::size_t i) const {
  const std::uint64_t begin = i * piece_bytes_;
  return {begin + done_[i], begin + length(i)};
}

Status PartFile::write(std::size_t i, std::string_view bytes) {
  const ByteRange range = missing(i);
  if (bytes.size() > range.end - range.begin) {
    return invalid(file_.path + ": the hub sends more bytes than it announced");
  }
  if (!write_all(data_fd_, bytes.data(), bytes.size(), range.begin)) return failed("cannot be written");
  done_[i] += bytes.size();
  bytes_done_ += bytes.size();
  if (!write_all(counts_fd_, &done_[i], sizeof done_[i], sizeof(CountsHead) + i * sizeof done_[i])) {
    return failed("cannot be counted");
  }
  return {};
}

Status PartFile::forget(std::size_t i) {
  bytes_done_ -= std::exchange(done_[i], 0);
  if (!write_all(counts_fd_, &done_[i], sizeof done_[i], sizeof(CountsHead) + i * sizeof done_[i])) {
    return failed("cannot be counted");
  }
  return {};
}

Status PartFile::restart(bool as_one_piece) { return start(as_one_piece ? file_.size : piece_bytes_); }

Status PartFile::set_verified() {
  if (::fdatasync(data_fd_) != 0) return failed("cannot be written");
  const std::uint64_t yes = 1;
  if (!write_all(counts_fd_, &yes, sizeof yes, offsetof(CountsHead, verified)))
    return failed("cannot be counted");
  verified_ = true;
  return {};
}

}  // namespace troupe::fetch
