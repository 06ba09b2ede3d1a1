#pragma once
// Makes masks on threads of its own, so that a slow mask delays neither GRAMMAR nor other masks. Masks that
// are expected to miss the deadline, judged by what the sequence's last mask cost, are left to a low-priority
// thread.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "actors/grammar/grammars.h"
#include "base/clock.h"

namespace troupe {

/// fill() and take_late() are called by one thread.
class MaskFiller {
 public:
  /// `threads` (at least 1) make masks that are expected to be quick. `made` is called from a thread when
  /// take_late() has something; it must not block.
  MaskFiller(unsigned threads, std::function<void()> made);
  /// Waits for the masks that are being made.
  ~MaskFiller();
  MaskFiller(const MaskFiller&) = delete;
  MaskFiller& operator=(const MaskFiller&) = delete;

  /// Has the masks of the rows with ReadyRow::Mask::make made and waits for them until the deadline: each
  /// such row becomes `made` or `late`. Those that are expected to take longer than that are not waited for.
  void fill(std::span<ReadyRow> rows, TimePoint deadline);

  /// The followers of late rows whose masks have been made since the last call.
  std::vector<std::shared_ptr<Follower>> take_late();

  /// The sequence of a late row has ended: its mask need not be made.
  void drop(const RequestKey& key);

 private:
  using Place = std::pair<std::int64_t, std::uint64_t>;  // expected cost, then the order of arrival

  void work(const std::stop_token& stop, bool slow);
  bool has_work(bool slow) const;
  std::shared_ptr<Follower> next(bool slow);
  void make(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Follower>& follower);
  void push_slow(std::shared_ptr<Follower> follower);

  const std::function<void()> made_;
  const std::int64_t quick_threads_;
  std::mutex mutex_;
  std::condition_variable_any quick_more_, slow_more_, done_;
  std::deque<std::shared_ptr<Follower>> quick_;      // guarded by mutex_, as all below
  std::map<Place, std::shared_ptr<Follower>> slow_;  // of late rows
  std::uint64_t arrivals_ = 0;
  std::size_t missing_ = 0;  // masks that fill() waits for
  std::vector<std::shared_ptr<Follower>> late_;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace troupe
