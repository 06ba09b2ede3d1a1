#pragma once
// The text of one event, in logfmt: key=value pairs, values quoted where they need it.
#include <chrono>
#include <string>
#include <string_view>

#include "base/log.h"

namespace troupe {

/// Appends `value`, cut to `max_bytes` at a character boundary and marked by "…" when cut. Quoted if it is
/// empty or holds a space, a quote, an equals sign, a backslash or a control character.
void append_logfmt_value(std::string& line, std::string_view value, std::size_t max_bytes);

/// Appends "2026-11-21T13:51:20.123456Z". Times in this form compare as text.
void append_time(std::string& line, std::chrono::system_clock::time_point when);

/// "2026-11-21T13:51:20.123456Z level=info actor=scheduler event=admitted req=… tokens=12"; no newline.
std::string format_event(std::chrono::system_clock::time_point when, LogLevel level, std::string_view actor,
                         std::string_view event, const LogField* fields, std::size_t count,
                         std::size_t max_value_bytes);

}  // namespace troupe
