#include "base/log_file.h"

#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A pipe that polls writable takes PIPE_BUF bytes without blocking.
void write_to_console(std::string_view line) {
  constexpr std::size_t kAtOnce = 4096;
  pollfd console{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&console, 1, 0) != 1 || (console.revents & POLLOUT) == 0) return;
  std::string text(line.substr(0, kAtOnce - 1));
  text += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

class RotatingFile : public LogSink {
 public:
  RotatingFile(const std::string& path, const LogOptions& options)
      : console_(options.console),
        sink_(path, static_cast<std::size_t>(options.rotate_bytes),
              static_cast<std::size_t>(std::max(options.rotate_files, 0))) {
    sink_.set_formatter(
        std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::utc, "\n"));
  }

  bool write(std::string_view line) override {
    if (console_) write_to_console(line);
    // The sink reports a full disk by throwing.
    try {
      sink_.log(spdlog::details::log_msg({}, spdlog::level::info, {line.data(), line.size()}));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  void flush() override {
    try {
      sink_.flush();
    } catch (const std::exception&) {  // what is buffered is tried again with the next line
    }
  }

 private:
  const bool console_;
  spdlog::sinks::rotating_file_sink_st sink_;
};

}  // namespace

Result<std::shared_ptr<LogSink>> open_log_file(const std::string& path, const LogOptions& options) {
  std::error_code error;
  const fs::path directory = fs::path(path).parent_path();
  const bool fresh = fs::create_directories(directory, error);
  if (error)
    return failure(Code::invalid_argument,
                   "cannot make the log directory " + directory.string() + ": " + error.message());
  if (fresh) ::chmod(directory.c_str(), 0750);
  try {
    return std::shared_ptr<LogSink>(std::make_shared<RotatingFile>(path, options));
  } catch (const std::exception& failed) {
    return failure(Code::invalid_argument, "cannot write the log file " + path + ": " + failed.what());
  }
}

}  // namespace troupe
