#include "base/log_writer.h"

#include <pthread.h>

#include <cstdlib>
#include <thread>

#include "base/logfmt.h"

namespace troupe {

LogWriter& LogWriter::instance() {
  // Never destroyed: threads may log while static objects are being destroyed.
  static LogWriter* const writer = [] {
    std::atexit([] { Log::flush(500); });
    return new LogWriter;
  }();
  return *writer;
}

void LogWriter::push(std::shared_ptr<Log::State> log, std::string line) {
  const std::lock_guard lock(mutex_);
  if (!running_) {
    std::thread([this] { run(); }).detach();
    running_ = true;
  }
  bytes_ += line.size();
  queue_.push_back({std::move(log), std::move(line)});
  ++pushed_;
  while (queue_.size() > kMaxLines || (bytes_ > kMaxBytes && queue_.size() > 1)) {
    Line& oldest = queue_.front();
    oldest.log->dropped.fetch_add(1, std::memory_order_relaxed);
    bytes_ -= oldest.text.size();
    queue_.pop_front();
    ++finished_;
  }
  if (queue_.size() == 1) filled_.notify_one();
}

bool LogWriter::flush(int timeout_ms) {
  std::unique_lock lock(mutex_);
  const std::uint64_t goal = pushed_;
  return written_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return finished_ >= goal; });
}

void LogWriter::run() {
  ::pthread_setname_np(::pthread_self(), "log");
  constexpr std::size_t kBatch = 256;
  std::deque<Line> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      finished_ += batch.size();
      batch.clear();
      written_.notify_all();
      filled_.wait(lock, [&] { return !queue_.empty(); });
      while (!queue_.empty() && batch.size() < kBatch) {
        bytes_ -= queue_.front().text.size();
        batch.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    for (const Line& line : batch) write(line);
    LogSink* last = nullptr;
    for (const Line& line : batch) {
      if (line.log->sink.get() != last) line.log->sink->flush();
      last = line.log->sink.get();
    }
  }
}

void LogWriter::write(const Line& line) {
  Log::State& log = *line.log;
  if (!log.sink->write(line.text)) {
    log.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const std::uint64_t dropped = log.dropped.load(std::memory_order_relaxed);
  if (dropped == log.reported) return;
  const LogField fields[] = {kv("lines", dropped - log.reported), kv("total", dropped)};
  const std::string note = format_event(std::chrono::system_clock::now(), LogLevel::warning, log.actor,
                                        "log_lines_dropped", fields, 2, 256);
  if (log.sink->write(note)) log.reported = dropped;
}

}  // namespace troupe
