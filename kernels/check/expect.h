#pragma once
// The first of several expectations that fails.
#include <string>

#include "base/status.h"

namespace troupe::kernels::check {

class Expect {
 public:
  template <class T>
  void equal(const T& got, const T& expected, const char* what) {
    ++count_;
    if (got == expected || !failed_.ok()) return;
    std::string text = std::string(what) + " (expectation " + std::to_string(count_) + ")";
    if constexpr (std::is_arithmetic_v<T>)
      text += " is " + std::to_string(got) + " instead of " + std::to_string(expected);
    failed_ = failure(Code::internal, text);
  }
  const Status& status() const { return failed_; }

 private:
  Status failed_;
  int count_ = 0;
};

}  // namespace troupe::kernels::check
