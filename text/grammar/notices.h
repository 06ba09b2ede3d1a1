#pragma once
// What xgrammar warns of: mostly that it ignores a part of what it was given. It logs to nothing else.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace troupe::grammar {

/// Collects the first warnings of the calling thread while it lives: a large form can bring one for each of
/// its parts. Not nested.
class Notices {
 public:
  Notices();
  ~Notices();
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  const std::vector<std::string>& all() const { return all_; }
  void add(std::string notice) {
    if (all_.size() < kMost) all_.push_back(std::move(notice));
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::vector<std::string> all_;
};

}  // namespace troupe::grammar
