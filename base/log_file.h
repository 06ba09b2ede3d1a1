#pragma once
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"

namespace troupe {

/// A file that is rotated by size; its directory is made. With options.console each line also goes to
/// standard error, unless that cannot take it at once.
Result<std::shared_ptr<LogSink>> open_log_file(const std::string& path, const LogOptions& options);

/// One server's right to a directory of logs. Another process gets it when this one ends.
class LogDirectory {
 public:
  /// Of `dir`, which is made; while another server has it, of its folder port-N. Errors as open_log_file().
  static Result<LogDirectory> claim(const std::string& dir, int port);
  /// What claim() would choose now, without making anything.
  static std::string look(const std::string& dir, int port);

  LogDirectory(LogDirectory&& other) noexcept
      : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}
  LogDirectory& operator=(LogDirectory&&) = delete;
  ~LogDirectory();

  const std::string& path() const { return path_; }

 private:
  LogDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_ = -1;
};

}  // namespace troupe
