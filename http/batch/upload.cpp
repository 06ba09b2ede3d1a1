#include "http/batch/upload.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_writes.h"

namespace troupe::http {
namespace {

constexpr std::uint64_t kFormBytes = 512 << 10;  // of a form's other parts

Status upload_failure() {
  return failure(Code::unavailable, std::string("The file cannot be kept: ") + std::strerror(errno));
}

}  // namespace

Upload::Upload(const std::string& boundary, std::string path, OwnedFd file, std::int64_t most_bytes)
    : path_(std::move(path)),
      file_(std::move(file)),
      most_bytes_(static_cast<std::uint64_t>(most_bytes)),
      form_(boundary, [this](std::string_view bytes) { return append(bytes); }) {}

Upload::~Upload() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<std::unique_ptr<BodySink>> Upload::begin(std::string_view content_type, std::string path,
                                                std::int64_t most_bytes) {
  const std::string boundary = Multipart::boundary_of(content_type);
  if (boundary.empty()) {
    return invalid("Content-Type must be multipart/form-data with a boundary", {}, "unsupported_media_type");
  }
  OwnedFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return upload_failure();
  return std::unique_ptr<BodySink>(new Upload(boundary, std::move(path), std::move(file), most_bytes));
}

std::uint64_t Upload::most_bytes() const { return most_bytes_ + kFormBytes; }

Status Upload::append(std::string_view bytes) {
  if (bytes.size() > most_bytes_ - bytes_) {
    return {Code::too_large,
            "The file has more than " + std::to_string(most_bytes_) + " bytes (--batch-file-bytes)", "file",
            "request_too_large"};
  }
  const std::size_t written = write_all(file_.get(), bytes);
  bytes_ += written;
  return written == bytes.size() ? Status() : upload_failure();
}

Status Upload::close() {
  if (Status status = form_.end(); !status.ok()) return status;
  if (!form_.has_file()) return invalid("The form has no file", "file", "missing_field");
  if (::fsync(file_.get()) != 0) return upload_failure();
  file_.reset();
  return {};
}

}  // namespace troupe::http
