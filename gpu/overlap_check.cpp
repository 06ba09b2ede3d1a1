#include "gpu/overlap_check.h"

namespace troupe {

void OverlapCheck::set_step_memory(const void* begin, std::size_t bytes) {
  const auto* address = static_cast<const std::byte*>(begin);
  if (bytes == 0) {
    step_memory_.erase(address);
  } else {
    step_memory_[address] = bytes;
  }
}

bool OverlapCheck::in_step_memory(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  auto range = step_memory_.upper_bound(at);
  if (range == step_memory_.begin()) return false;
  --range;
  return static_cast<std::size_t>(at - range->first) < range->second;
}

std::string OverlapCheck::launched(const Overlap& overlap) {
  ++count_;
  if (overlap.reads_constant != nullptr && in_step_memory(overlap.reads_constant)) {
    return "a kernel reads memory before its wait that is declared constant while the step runs, and lies in "
           "memory that steps write";
  }
  if (overlap.reads_settled != nullptr) {
    const auto writer = writers_.find(overlap.reads_settled);
    if (writer == writers_.end() && in_step_memory(overlap.reads_settled)) {
      return "a kernel reads memory before its wait that is declared settled, and the kernel that writes it "
             "does not declare that";
    }
    if (writer != writers_.end() && last_holder_ <= writer->second) {
      return "a kernel reads memory before its wait that is declared settled, and no kernel between it and "
             "the writer lets the next one start only after its wait";
    }
  }
  if (overlap.writes_settled != nullptr) writers_[overlap.writes_settled] = count_;
  if (overlap.holds_next) last_holder_ = count_;
  return {};
}

}  // namespace troupe
