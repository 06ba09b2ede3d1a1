#pragma once
// A sign of life: one part gives it, another counts it.
#include <atomic>
#include <cstdint>

namespace troupe {

class Pulse {
 public:
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> beats_{0};
};

}  // namespace troupe
