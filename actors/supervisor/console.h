#pragma once
// What `troupe serve` shows to people: lines that stay, and on a terminal one line below them that is written
// over. Nothing here waits: what a stopped terminal or a full pipe does not take is dropped.
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace troupe::supervisor {

struct ConsoleStyle {
  bool live = false;           ///< standard output is a terminal that can write over a line
  bool output_colour = false;  ///< of standard output
  bool error_colour = false;   ///< of standard error
  bool quiet = false;          ///< only what warn() and fail() print
};

class Console {
 public:
  explicit Console(const ConsoleStyle& style) : style_(style) {}

  /// Lines on standard output, each ended by a newline; nothing when quiet.
  void tell(const std::string& lines);

  /// A line on standard error, without its newline; wrapped to the columns of a terminal.
  void warn(const std::string& line);
  void fail(const std::string& line);

  /// The line at the bottom, as many of its parts as fit the terminal's columns. Where there is no live line:
  /// a line of its own if it is due, that is ten seconds after the last one. Nothing when quiet.
  void show(const std::vector<std::string>& parts, TimePoint now);

  /// True if show() would print something that stays.
  bool due(TimePoint now) const;
  bool live() const { return style_.live && !style_.quiet; }

  /// Removes the line at the bottom.
  void clear();

 private:
  void complain(const std::string& line, const char* colour);
  void put(int fd, const std::string& text);

  const ConsoleStyle style_;
  std::string shown_;  ///< the line at the bottom, empty if there is none
  std::optional<TimePoint> printed_;
};

/// The parts, two spaces apart, as many as fit `columns`. The first is cut if it alone does not fit. ASCII.
std::string fitting(const std::vector<std::string>& parts, std::size_t columns);

}  // namespace troupe::supervisor
