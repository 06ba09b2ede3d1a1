#pragma once
// Records that submit() has accepted and that have not run yet, in order. Memory of earlier records is
// reused.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace troupe::model {

/// One thread. push() copies the record; `arrival` is its place in the order of all queues. front() is valid
/// until pop().
class WorkQueue {
 public:
  explicit WorkQueue(std::size_t capacity) : records_(capacity) {}

  std::size_t size() const { return count_; }
  bool full() const { return count_ == records_.size(); }
  bool empty() const { return count_ == 0; }

  void push(std::span<const std::byte> record, std::uint64_t arrival) {
    TROUPE_CHECK(!full());
    Entry& entry = records_[(first_ + count_++) % records_.size()];
    entry.bytes.assign(record.begin(), record.end());
    entry.arrival = arrival;
  }
  std::uint64_t arrival() const {
    TROUPE_CHECK(!empty());
    return records_[first_].arrival;
  }
  std::span<const std::byte> front() const {
    TROUPE_CHECK(!empty());
    return records_[first_].bytes;
  }
  void pop() {
    TROUPE_CHECK(!empty());
    first_ = (first_ + 1) % records_.size();
    --count_;
  }
  void clear() { first_ = count_ = 0; }

 private:
  struct Entry {
    std::vector<std::byte> bytes;
    std::uint64_t arrival = 0;
  };
  std::vector<Entry> records_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace troupe::model
