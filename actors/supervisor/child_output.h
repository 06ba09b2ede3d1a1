#pragma once
// What a child that decodes clients' files writes to its standard output and error. A file may have taken the
// process over, so nothing of it reaches the terminal, and the log gets lines of bounded length at a bounded
// rate; the others are counted.
#include <cstdint>
#include <string>
#include <string_view>

#include "actors/supervisor/log_event.h"
#include "base/clock.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

/// Bytes to lines of a log: each is an event `output`, and what is left out an event `output_dropped`.
class OutputLines {
 public:
  /// Bytes of a line; the rest of a longer one is left out.
  static constexpr std::size_t kLongest = 1024;
  /// Lines that may come at once, and how many more each second.
  static constexpr double kBurst = 50, kPerSecond = 10;

  explicit OutputLines(LogEvent log) : log_(std::move(log)) {}

  void take(std::string_view bytes, TimePoint now);
  /// Tells of lines that were left out, when there is room for it.
  void tick(TimePoint now);
  /// Nothing more comes: a line without its end is one, too.
  void end(TimePoint now);

 private:
  void refill(TimePoint now);
  void end_line(TimePoint now);
  void tell_dropped();

  LogEvent log_;
  std::string line_;
  bool cut_ = false;
  double room_ = kBurst;
  TimePoint refilled_{};
  std::int64_t dropped_ = 0;
};

/// The pipe that carries them, of one child after another.
class ChildOutput {
 public:
  /// Bytes read in a second. The child waits while the pipe is full.
  static constexpr std::size_t kBytesPerSecond = 256 * 1024;

  /// Without a log the child has the standard error of this process.
  ChildOutput() = default;
  explicit ChildOutput(LogEvent log) : lines_(std::move(log)), kept_(true) {}

  bool kept() const { return kept_; }

  /// A new pipe, for a new process. Returns the end that is the child's.
  Result<ipc::Fd> open();

  /// To be polled; -1: not now.
  int fd(TimePoint now) const;
  /// Takes what has come. Never waits.
  void read(TimePoint now);
  void tick(TimePoint now) { lines_.tick(now); }
  /// Takes what the process that has ended has left.
  void close(TimePoint now);

 private:
  /// False when nothing more comes now.
  bool read_some(std::size_t most, TimePoint now);

  OutputLines lines_{{}};
  bool kept_ = false;
  ipc::Fd pipe_;
  TimePoint second_{};     // in which so many bytes
  std::size_t taken_ = 0;  // were read
};

}  // namespace troupe::supervisor
