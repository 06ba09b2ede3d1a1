#pragma once
// Reads event logs: which actors have one, their lines in time order, and the lines of one request.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log_options.h"
#include "base/status.h"

namespace troupe::cli {

/// The value of `key` in a logfmt line, unquoted; nothing when the line has no such key.
std::optional<std::string> logfmt_value(std::string_view line, std::string_view key);

/// True when the line is about `request`: its req is that id, or a part of it ("ID-1", "ID/1", "ID:1").
/// `request` may also be an answer's id, which contains it: "chatcmpl-ID", "cmpl-ID", "cmpl-USER-ID".
bool is_about_request(std::string_view line, std::string_view request);

/// Actors with a log under options.dir or in options.actor_dirs, sorted.
std::vector<std::string> list_actors(const LogOptions& options);

/// The actor's files that exist, oldest first: scheduler.2.log, scheduler.1.log, scheduler.log.
std::vector<std::string> log_files(const std::string& actor, const LogOptions& options);

/// Where the reading of an actor's newest file ended.
struct LogPosition {
  std::uint64_t inode = 0;  ///< 0: there was no file
  std::int64_t offset = 0;  ///< behind the last complete line
};

/// Calls `each` for every line of all the actors' files in the order of their times; equal times keep the
/// order of the actors. Reads as it goes: memory holds one line per actor. Lines that are written meanwhile
/// are among them or behind the positions, which are those of `actors` in their order; a line without its end
/// is behind them.
std::vector<LogPosition> merge_logs(const std::vector<std::string>& actors, const LogOptions& options,
                                    const std::function<void(const std::string& line)>& each);

}  // namespace troupe::cli
