#pragma once
// One line on standard error that is written over itself; where that is no terminal, a line of its own every
// ten seconds.
#include <string>

namespace troupe::cli {

class ProgressLine {
 public:
  ProgressLine();
  /// Ends the line if there is one.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text);

 private:
  bool terminal_;
  std::size_t width_ = 0;  ///< of what stands on the line
  double shown_s_;
};

}  // namespace troupe::cli
