#pragma once
#include <atomic>
#include <cstdint>

namespace troupe {

/// A sign of life of a thread that takes one job after another: a count that rises with every job that ends,
/// and is 0 while the thread has none.
class WorkPulse {
 public:
  void begin() { working_ = true; }
  void end() {
    ++ended_;
    working_ = false;
  }
  std::uint64_t beats() const { return working_ ? ended_ + 1 : 0; }

 private:
  std::atomic<bool> working_{false};
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace troupe
