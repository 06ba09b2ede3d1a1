#pragma once
// Files of lines: one that is read, line by line, and one that lines are appended to and that a death leaves
// whole.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "base/status.h"

namespace troupe::http {

/// Reads a file line by line, holding no more than one line of it.
class LineReader {
 public:
  struct Line {
    std::uint64_t number = 0;  ///< from 1; empty lines count
    std::string text;          ///< without newline and carriage return
    bool too_long = false;     ///< it has more bytes than allowed, and `text` is its beginning
  };

  /// not_found or unavailable when the file cannot be opened. `most_bytes`: of a line.
  static Result<LineReader> open(const std::string& path, std::size_t most_bytes);

  /// The next line that is not empty; nothing at the end, and when the file cannot be read on: see status().
  std::optional<Line> next();
  const Status& status() const { return status_; }

 private:
  LineReader(OwnedFd file, std::size_t most_bytes) : file_(std::move(file)), most_bytes_(most_bytes) {}
  bool fill();
  bool read_line(Line& line);

  OwnedFd file_;
  std::size_t most_bytes_;
  std::string buffer_;
  std::size_t used_ = 0;  // bytes of buffer_
  std::uint64_t lines_ = 0;
  Status status_;
};

/// Lines that are appended. What sync() has returned for is there after a crash of the machine; a line that
/// was being written at a death is removed by the next open().
class LineAppender {
 public:
  /// Opens or creates the file, mode 0600. `whole` is asked about each line that is there, without its
  /// newline, and says whether it is one; the file is cut where the first is not, and at a last line without
  /// a newline.
  static Result<LineAppender> open(const std::string& path,
                                   const std::function<bool(std::string_view line)>& whole);

  /// Appends a line, which ends with a newline. Kept in memory until sync().
  void append(std::string_view line) { pending_.append(line); }
  /// Bytes that wait for sync().
  std::size_t pending() const { return pending_.size(); }
  /// Writes what was appended to the disk. Not ok: the disk is full or broken, and the lines still wait.
  Status sync();
  /// Bytes of the file, without what waits.
  std::uint64_t bytes() const { return bytes_; }

 private:
  LineAppender(OwnedFd file, std::uint64_t bytes) : file_(std::move(file)), bytes_(bytes) {}

  OwnedFd file_;
  std::uint64_t bytes_;
  std::string pending_;
};

}  // namespace troupe::http
