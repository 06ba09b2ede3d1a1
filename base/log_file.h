#pragma once
#include <memory>
#include <string>

#include "base/log.h"

namespace troupe {

/// A file that is rotated by size; its directory is made. With options.console each line also goes to
/// standard error, unless that cannot take it at once.
Result<std::shared_ptr<LogSink>> open_log_file(const std::string& path, const LogOptions& options);

/// Opens the actor's file as Log::open() does, and removes what that made; the error is the one of
/// Log::open().
Status try_log_file(const std::string& actor, const LogOptions& options);

}  // namespace troupe
