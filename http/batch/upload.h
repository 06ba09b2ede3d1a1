#pragma once
// The body of POST /v1/files on its way to the disk.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "base/status.h"
#include "http/batch/multipart.h"
#include "http/server/body_sink.h"

namespace troupe::http {

/// A form with a file. The file is written to a path of its own, which is removed with this object unless
/// release() was called.
class Upload final : public BodySink {
 public:
  /// Not ok when `content_type` is no form's, or the path cannot be written. `most_bytes`: of the file.
  static Result<std::unique_ptr<BodySink>> begin(std::string_view content_type, std::string path,
                                                 std::int64_t most_bytes);
  ~Upload() override;

  Status write(std::string_view bytes) override { return form_.take(bytes); }
  std::uint64_t most_bytes() const override;

  /// The body is complete: checks the form and writes the file to the disk.
  Status close();
  /// The file is somebody else's.
  void release() { path_.clear(); }

  const Multipart& form() const { return form_; }
  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Upload(const std::string& boundary, std::string path, OwnedFd file, std::int64_t most_bytes);
  Status append(std::string_view bytes);

  std::string path_;
  OwnedFd file_;
  const std::uint64_t most_bytes_;
  std::uint64_t bytes_ = 0;
  Multipart form_;
};

}  // namespace troupe::http
