#pragma once
// Event logs: one line per event, in logfmt, one file per actor.
//
//   2026-11-21T13:51:20.123456Z level=info actor=scheduler event=admitted req=chatcmpl-7 tokens=12
//
// A caller formats its line and puts it into a bounded queue; one thread of the process writes the
// files. When the disk is full or slow the oldest queued lines are dropped and counted, the caller never
// waits, and the count is written when writing works again. No event carries text of a prompt or an
// answer unless request_level is 3.
//
// A file belongs to one process at a time; different processes write different actors' files.
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log_options.h"
#include "base/status.h"

namespace troupe {

const char* to_string(LogLevel level);

/// One key=value of an event. Borrows its strings for the duration of the call.
struct LogField {
  enum class Kind { text, integer, number, flag };
  std::string_view key;
  Kind kind = Kind::text;
  std::string_view text;
  std::int64_t integer = 0;
  double number = 0;
};

inline LogField kv(std::string_view key, std::string_view value) {
  return {key, LogField::Kind::text, value};
}
inline LogField kv(std::string_view key, const char* value) { return kv(key, std::string_view(value)); }
inline LogField kv(std::string_view key, const std::string& value) {
  return kv(key, std::string_view(value));
}
inline LogField kv(std::string_view key, bool value) {
  return {key, LogField::Kind::flag, {}, value ? 1 : 0};
}
template <class T>
requires std::is_integral_v<T> LogField kv(std::string_view key, T value) {
  return {key, LogField::Kind::integer, {}, static_cast<std::int64_t>(value)};
}
template <class T>
requires std::is_floating_point_v<T> LogField kv(std::string_view key, T value) {
  return {key, LogField::Kind::number, {}, 0, static_cast<double>(value)};
}

/// Where finished lines go: a file, or a test's memory. Called from the log thread only.
class LogSink {
 public:
  virtual ~LogSink() = default;
  /// `line` ends without a newline. False: nothing was written (the line is counted as dropped).
  virtual bool write(std::string_view line) = 0;
  virtual void flush() = 0;
};

/// Sees events as they happen, whatever their level. Called on the thread of the event: it must be quick, and
/// thread safe.
class LogObserver {
 public:
  virtual ~LogObserver() = default;
  virtual void event(std::string_view actor, std::string_view event, std::span<const LogField> fields) = 0;
};

/// One actor's log. Copies share the file. Thread safe; a default-constructed one writes nowhere.
class Log {
 public:
  Log() = default;

  /// Opens DIR/ACTOR/ACTOR.log (directories are made, 0750) or the actor's own directory of
  /// `options.actor_dirs`. Opening the same actor twice in one process gives the same file.
  static Result<Log> open(const std::string& actor, const LogOptions& options);

  /// A log over a given sink, for tests and other kinds of sinks.
  static Log to_sink(const std::string& actor, std::shared_ptr<LogSink> sink, const LogOptions& options);

  /// The same log, whose events `observer` sees as well.
  Log observed_by(std::shared_ptr<LogObserver> observer) const;

  bool enabled(LogLevel level) const { return state_ && level >= level_of(*state_); }
  /// True if what belongs to this LogOptions::request_level is written; its fields need not be made
  /// otherwise.
  bool details(int request_level) const {
    return this->request_level() >= request_level && enabled(LogLevel::info);
  }
  /// Bytes after which a value is cut.
  std::int64_t max_value_bytes() const;

  void debug(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    if (heard(LogLevel::debug)) write(LogLevel::debug, event, fields.begin(), fields.size());
  }
  void info(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    if (heard(LogLevel::info)) write(LogLevel::info, event, fields.begin(), fields.size());
  }
  void warning(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    if (heard(LogLevel::warning)) write(LogLevel::warning, event, fields.begin(), fields.size());
  }
  void error(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    if (heard(LogLevel::error)) write(LogLevel::error, event, fields.begin(), fields.size());
  }
  /// A stage of a request: info where stages are asked for, else debug.
  void stage(std::string_view event, std::initializer_list<LogField> fields) const {
    request_level() >= 1 ? info(event, fields) : debug(event, fields);
  }
  /// What details() allows of a request: its parameters or texts. No observer sees them.
  void detail(std::string_view event, std::initializer_list<LogField> fields) const {
    if (enabled(LogLevel::info)) write_line(LogLevel::info, event, fields.begin(), fields.size());
  }
  /// The same with the fields as arguments: log.info("admitted", kv("req", id), kv("tokens", n)).
  template <class... Fields>
  void info(std::string_view event, const LogField& first, const Fields&... rest) const {
    info(event, {first, rest...});
  }
  template <class... Fields>
  void debug(std::string_view event, const LogField& first, const Fields&... rest) const {
    debug(event, {first, rest...});
  }
  template <class... Fields>
  void warning(std::string_view event, const LogField& first, const Fields&... rest) const {
    warning(event, {first, rest...});
  }
  template <class... Fields>
  void error(std::string_view event, const LogField& first, const Fields&... rest) const {
    error(event, {first, rest...});
  }

  /// Lines of this actor that never reached its file.
  std::uint64_t dropped() const;

  /// Waits until everything queued so far was written, at most `timeout_ms`. False: it was not.
  /// Call it before _exit; a process that ends normally has the rest written by itself.
  static bool flush(int timeout_ms);

  struct State;

 private:
  explicit Log(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static LogLevel level_of(const State& state);
  int request_level() const;
  void write(LogLevel level, std::string_view event, const LogField* fields, std::size_t count) const;
  void write_line(LogLevel level, std::string_view event, const LogField* fields, std::size_t count) const;

  bool heard(LogLevel level) const { return observer_ != nullptr || enabled(level); }

  std::shared_ptr<State> state_;
  std::shared_ptr<LogObserver> observer_;  // only with a state
};

/// The file of an actor under `options`; what `troupe logs` reads.
std::string log_path(const std::string& actor, const LogOptions& options);

}  // namespace troupe
