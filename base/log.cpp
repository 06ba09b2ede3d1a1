#include "base/log.h"

#include <map>
#include <mutex>

#include "base/log_file.h"
#include "base/log_writer.h"
#include "base/logfmt.h"

namespace troupe {

const char* to_string(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
    case LogLevel::off: return "off";
  }
  return "?";
}

std::string log_path(const std::string& actor, const LogOptions& options) {
  auto own = options.actor_dirs.find(actor);
  if (own == options.actor_dirs.end()) {  // one of several: without its number
    const std::size_t last = actor.find_last_not_of("0123456789");
    if (last != std::string::npos && last > 0 && last + 1 < actor.size() && actor[last] == '-')
      own = options.actor_dirs.find(actor.substr(0, last));
  }
  const std::string directory = own == options.actor_dirs.end() ? options.dir + "/" + actor : own->second;
  return directory + "/" + actor + ".log";
}

Result<Log> Log::open(const std::string& actor, const LogOptions& options) {
  static std::mutex mutex;
  static auto* const open_logs = new std::map<std::string, std::weak_ptr<State>>;
  const std::string path = log_path(actor, options);
  const std::lock_guard lock(mutex);
  if (auto state = (*open_logs)[path].lock()) return Log(std::move(state));
  Result<std::shared_ptr<LogSink>> sink = open_log_file(path, options);
  if (!sink.ok()) return sink.status();
  Log log = to_sink(actor, std::move(*sink), options);
  (*open_logs)[path] = log.state_;
  return log;
}

Log Log::to_sink(const std::string& actor, std::shared_ptr<LogSink> sink, const LogOptions& options) {
  auto state = std::make_shared<State>();
  state->actor = actor;
  state->options = options;
  state->sink = std::move(sink);
  return Log(std::move(state));
}

LogLevel Log::level_of(const State& state) { return state.options.level; }

int Log::request_level() const { return state_ ? state_->options.request_level : 0; }

std::int64_t Log::max_value_bytes() const { return state_ ? state_->options.max_value_bytes : 0; }

Log Log::observed_by(std::shared_ptr<LogObserver> observer) const {
  Log log = *this;
  if (state_) log.observer_ = std::move(observer);
  return log;
}

void Log::write(LogLevel level, std::string_view event, const LogField* fields, std::size_t count) const {
  if (observer_ != nullptr) observer_->event(state_->actor, event, {fields, count});
  if (enabled(level)) write_line(level, event, fields, count);
}

void Log::write_line(LogLevel level, std::string_view event, const LogField* fields,
                     std::size_t count) const {
  std::string line = format_event(std::chrono::system_clock::now(), level, state_->actor, event, fields,
                                  count, static_cast<std::size_t>(state_->options.max_value_bytes));
  LogWriter::instance().push(state_, std::move(line));
}

std::uint64_t Log::dropped() const { return state_ ? state_->dropped.load(std::memory_order_relaxed) : 0; }

bool Log::flush(int timeout_ms) { return LogWriter::instance().flush(timeout_ms); }

}  // namespace troupe
