#pragma once
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/log.h"

namespace troupe::supervisor {

/// Writes one line of a log: the supervisor's where nothing else is said.
using LogEvent = std::function<void(LogLevel, std::string_view event, std::initializer_list<LogField>)>;

/// The log of another actor whose lines the supervisor writes.
using OpenLog = std::function<LogEvent(const std::string& actor)>;

}  // namespace troupe::supervisor
