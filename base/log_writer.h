#pragma once
// The one thread of a process that writes log lines, and the bounded queue before it. push() never waits
// for a file: it holds a lock for the length of a queue operation only. When the queue is full the oldest
// line goes, and is counted to the actor it belonged to.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"

namespace troupe {

struct Log::State {
  std::string actor;
  LogOptions options;
  std::shared_ptr<LogSink> sink;  ///< used by the writer's thread only
  std::atomic<std::uint64_t> dropped{0};
  std::uint64_t reported =
      0;  ///< how many of `dropped` the file names already; used by the writer's thread only
};

class LogWriter {
 public:
  /// Queued lines, and bytes of them, at most.
  static constexpr std::size_t kMaxLines = 16'384;
  static constexpr std::size_t kMaxBytes = 16 << 20;

  /// The process's writer. Its thread starts with the first line (so that a process may fork before) and
  /// lives as long as the process; what is queued at a normal exit is written for up to half a second.
  static LogWriter& instance();

  void push(std::shared_ptr<Log::State> log, std::string line);

  /// See Log::flush.
  bool flush(int timeout_ms);

 private:
  struct Line {
    std::shared_ptr<Log::State> log;
    std::string text;
  };

  void run();
  void write(const Line& line);

  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable written_;
  std::deque<Line> queue_;
  std::size_t bytes_ = 0;
  std::uint64_t pushed_ = 0;    ///< lines given to push()
  std::uint64_t finished_ = 0;  ///< of these, written or dropped
  bool running_ = false;
};

}  // namespace troupe
