#pragma once
#include <functional>
#include <initializer_list>
#include <string_view>

#include "base/log.h"

namespace troupe::supervisor {

/// Writes one line of the supervisor's log.
using LogEvent = std::function<void(LogLevel, std::string_view event, std::initializer_list<LogField>)>;

}  // namespace troupe::supervisor
