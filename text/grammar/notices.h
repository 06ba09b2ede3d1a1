#pragma once
// What xgrammar warns of: mostly that it ignores a part of what it was given. It logs to nothing else.
#include <string>
#include <vector>

namespace troupe::grammar {

/// Collects the warnings of the calling thread while it lives. Not nested.
class Notices {
 public:
  Notices();
  ~Notices();
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  const std::vector<std::string>& all() const { return all_; }
  void add(std::string notice) { all_.push_back(std::move(notice)); }

 private:
  std::vector<std::string> all_;
};

}  // namespace troupe::grammar
