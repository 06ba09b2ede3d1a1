#pragma once
// Which cache commands have ended. They may end in any order; plans and commands wait for all up to an id.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe::model {

class EndedCommands {
 public:
  void end(std::uint64_t id) {
    later_.push_back(id);
    for (auto next = later_.end();
         (next = std::find(later_.begin(), later_.end(), through_ + 1)) != later_.end();) {
      *next = later_.back();
      later_.pop_back();
      ++through_;
    }
  }
  /// True when all commands up to `id` have ended.
  bool through(std::uint64_t id) const { return id <= through_; }
  void clear() {
    through_ = 0;
    later_.clear();
  }

 private:
  std::uint64_t through_ = 0;
  std::vector<std::uint64_t> later_;  ///< ended before one with a lower id
};

}  // namespace troupe::model
