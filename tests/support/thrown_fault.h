#pragma once
// Makes contained work (base/contain.h) throw at a place.
#include <atomic>
#include <stdexcept>
#include <string_view>

#include "base/contain.h"

namespace troupe::testing {

/// While it lives, the first `times` pieces of work at `place` throw, on any thread. One at a time. `place`
/// is a literal: threads may still compare it after the fault has gone.
class ThrownFault {
 public:
  explicit ThrownFault(const char* place, int times = 1) {
    place_ = place;
    left_ = times;
    thrown_ = 0;
    set_fault_hook([](std::string_view here) {
      if (here != place_.load() || left_.fetch_sub(1) <= 0) return;
      ++thrown_;
      throw std::runtime_error("thrown by the test");
    });
  }
  ~ThrownFault() { set_fault_hook(nullptr); }
  ThrownFault(const ThrownFault&) = delete;
  ThrownFault& operator=(const ThrownFault&) = delete;

  int thrown() const { return thrown_; }

 private:
  static inline std::atomic<const char*> place_{""};
  static inline std::atomic<int> left_{0};
  static inline std::atomic<int> thrown_{0};
};

}  // namespace troupe::testing
