#include "actors/grammar/mask_filler.h"

#include <algorithm>

#include "base/thread_priority.h"

namespace troupe {
namespace {

// A thread for quick masks makes late ones up to this when it has nothing else to do. Most take some ten
// microseconds.
constexpr std::int64_t kQuickNs = 1'000'000;
// Masks behind draft tokens are made as long as a sequence's masks have taken less than this, the last time
// too: draft tokens are not worth a late row.
constexpr std::int64_t kAheadNs = 1'000'000;

}  // namespace

MaskFiller::MaskFiller(unsigned threads, std::function<void()> made)
    : made_(std::move(made)), quick_threads_(std::max(threads, 1u)) {
  for (std::int64_t i = 0; i < quick_threads_; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop, false); });
  }
  threads_.emplace_back([this](const std::stop_token& stop) {
    lower_thread_priority();
    work(stop, true);
  });
}

MaskFiller::~MaskFiller() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void MaskFiller::push_slow(std::shared_ptr<Follower> follower) {
  follower->late = true;
  const Place place{follower->cost_ns, ++arrivals_};
  slow_.emplace(place, std::move(follower));
}

void MaskFiller::fill(std::span<ReadyRow> rows, TimePoint deadline) {
  using Mask = ReadyRow::Mask;
  std::vector<ReadyRow*> waited;
  {
    const std::lock_guard lock(mutex_);
    for (ReadyRow& row : rows) {
      if (row.mask != Mask::make) continue;
      row.follower->state = Follower::State::waiting;
      row.follower->late = false;
      waited.push_back(&row);
    }
    // The cheap ones first, so that a few costly ones make only themselves late.
    std::stable_sort(waited.begin(), waited.end(), [](const ReadyRow* a, const ReadyRow* b) {
      return a->follower->cost_ns < b->follower->cost_ns;
    });
    std::int64_t left = std::chrono::nanoseconds(deadline - Clock::now()).count() * quick_threads_;
    const auto fits = [&](const ReadyRow* row) { return (left -= row->follower->cost_ns) >= 0; };
    const auto end = std::find_if_not(waited.begin(), waited.end(), fits);
    for (auto row = end; row != waited.end(); ++row) {
      (*row)->mask = Mask::late;
      push_slow((*row)->follower);
    }
    waited.erase(end, waited.end());
    for (const ReadyRow* row : waited) quick_.push_back(row->follower);
    missing_ = waited.size();
  }
  slow_more_.notify_one();
  if (waited.empty()) return;
  quick_more_.notify_all();
  std::unique_lock lock(mutex_);
  done_.wait_until(lock, deadline, [this] { return missing_ == 0; });
  missing_ = 0;
  for (ReadyRow* row : waited) {
    row->mask = row->follower->state == Follower::State::idle ? Mask::made : Mask::late;
    if (row->mask == Mask::late) row->follower->late = true;
  }
  for (auto& follower : quick_) push_slow(std::move(follower));
  quick_.clear();
  lock.unlock();
  slow_more_.notify_one();
  quick_more_.notify_one();
}

std::vector<std::shared_ptr<Follower>> MaskFiller::take_late() {
  const std::lock_guard lock(mutex_);
  return std::exchange(late_, {});
}

void MaskFiller::drop(const RequestKey& key) {
  const std::lock_guard lock(mutex_);
  std::erase_if(slow_, [&](const auto& entry) { return entry.second->key == key; });
}

void MaskFiller::work(const std::stop_token& stop, bool slow) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return has_work(slow); };
  while ((slow ? slow_more_ : quick_more_).wait(lock, stop, ready) && !stop.stop_requested())
    make(lock, next(slow));
}

bool MaskFiller::has_work(bool slow) const {
  if (slow) return !slow_.empty();
  return !quick_.empty() || (!slow_.empty() && slow_.begin()->first.first < kQuickNs);
}

std::shared_ptr<Follower> MaskFiller::next(bool slow) {
  std::shared_ptr<Follower> follower;
  if (slow || quick_.empty()) {
    follower = std::move(slow_.begin()->second);
    slow_.erase(slow_.begin());
  } else {
    follower = std::move(quick_.front());
    quick_.pop_front();
  }
  return follower;
}

void MaskFiller::make(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Follower>& follower) {
  follower->state = Follower::State::running;
  lock.unlock();
  const std::int64_t begin = thread_cpu_ns();
  for (const TokenId token : follower->tokens) follower->constraint.accept(token);
  follower->tokens.clear();
  follower->constraint.mask(follower->mask);
  const std::int64_t end = thread_cpu_ns();
  follower->ahead.clear();
  if (follower->cost_ns < kAheadNs)
    follower->constraint.look_ahead(follower->drafts, follower->most_forced, follower->mask, begin + kAheadNs,
                                    follower->ahead);
  const std::int64_t cost = thread_cpu_ns() - begin;
  lock.lock();
  follower->mask_ns = end - begin;
  follower->cost_ns = cost;
  follower->state = Follower::State::idle;
  if (!follower->late) {
    if (missing_ > 0 && --missing_ == 0) done_.notify_one();
    return;
  }
  late_.push_back(follower);
  lock.unlock();
  made_();
  lock.lock();
}

}  // namespace troupe
