#pragma once
// What the process that checks a GPU tells the one that started it: a line of words with tabs between them
// for each event, on standard output. A kernel's fault ends the process, so a line that is missing says
// something too.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::model {

enum class CheckEvent {
  begins,    ///< index, op, what, needs, way, name of the avoidable way or nothing
  right,     ///< index, milliseconds
  wrong,     ///< index, milliseconds, reason
  unusable,  ///< number of the Code, sentence: the GPU cannot be used at all
  ends,      ///< number of checks in the table
};

struct CheckLine {
  CheckEvent event = CheckEvent::ends;
  std::vector<std::string> words;
};

/// With a newline. Tabs and newlines within words become blanks.
std::string to_text(const CheckLine& line);

/// Absent for a line that is none of these, or has too few words. Without the newline.
std::optional<CheckLine> read_check_line(std::string_view text);

}  // namespace troupe::model
