#pragma once
// How a process writes its event logs. Lives in base so that every process, with or without the
// option list of config/, can be handed one.
#include <cstdint>
#include <map>
#include <string>

namespace troupe {

enum class LogLevel { debug, info, warning, error, off };

/// Written once at start, then only read.
struct LogOptions {
  /// Directory that holds one directory per actor: DIR/scheduler/scheduler.log. Relative to the
  /// working directory of the server.
  std::string dir = "log";
  /// Actors whose files go elsewhere: actor name to the directory that takes the place of DIR/ACTOR. It is
  /// also that of ACTOR-0, ACTOR-1 … which have none of their own.
  std::map<std::string, std::string> actor_dirs;
  /// Events below this level are not formatted at all. debug adds a line per step and costs throughput.
  LogLevel level = LogLevel::info;
  /// Bytes after which a file is rotated; an actor holds at most (rotate_files + 1) * rotate_bytes.
  std::int64_t rotate_bytes = 64 << 20;
  /// Rotated files kept per actor (scheduler.1.log is the newest).
  int rotate_files = 7;
  /// How much a request leaves behind, in events of level info: 0 its life cycle, 1 adds its stages
  /// (admitted, opened, first_token), 2 its parameters, 3 its prompts and answers as text. These appear at 3
  /// only.
  int request_level = 0;
  /// Bytes of one value; longer ones are cut and marked.
  int max_value_bytes = 2048;
  /// Also one line per event of level info and above on standard error.
  bool console = false;
};

}  // namespace troupe
