#include "gpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/pause.h"

namespace troupe {
namespace {

constexpr std::uint32_t kOpen = 1u << 31;    // threads may enter the round
constexpr std::uint32_t kParked = 1u << 30;  // the caller sleeps until the last thread has left
// Longer than the serial work between two ops of a step, and too short to matter for other threads.
constexpr std::int64_t kSpinNs = 20'000;
constexpr int kPausesPerClockRead = 8;

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

/// Spins until done() is true; false if that takes longer than kSpinNs.
template <class Done>
bool spin_until(Done&& done) {
  if (done()) return true;
  const std::int64_t give_up = now_ns() + kSpinNs;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      pause_cpu();
      if (done()) return true;
    }
  } while (now_ns() < give_up);
  return false;
}

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  // If it fails (the mask has changed since), only speed is lost.
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

int topology_id(int cpu, const char* file) {
  std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + file);
  int id = -1;
  return in >> id ? id : -1;
}

}  // namespace

std::vector<int> physical_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  std::vector<int> cores;
  std::vector<std::pair<int, int>> seen;  // (package, core)
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::pair<int, int> core{topology_id(cpu, "physical_package_id"), topology_id(cpu, "core_id")};
    if (core.second >= 0 && std::find(seen.begin(), seen.end(), core) != seen.end()) continue;
    seen.push_back(core);
    cores.push_back(cpu);
  }
  return cores;
}

ThreadPool::ThreadPool(int threads, std::vector<int> cores, bool pin_caller)
    : threads_(threads), next_(static_cast<std::size_t>(threads)) {
  TROUPE_CHECK(threads >= 1);
  CPU_ZERO(&callers_cores_);
  if (pin_caller && !cores.empty()) {
    caller_pinned_ = pthread_getaffinity_np(pthread_self(), sizeof callers_cores_, &callers_cores_) == 0;
    pin_to(cores[0]);
  }
  for (int lane = 1; lane < threads; ++lane) {
    const int core = lane < static_cast<int>(cores.size()) ? cores[lane] : -1;
    workers_.emplace_back([this, lane, core] { work(lane, core); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.value.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(round_.value);
  for (std::thread& worker : workers_) worker.join();
  if (caller_pinned_) pthread_setaffinity_np(pthread_self(), sizeof callers_cores_, &callers_cores_);
}

void ThreadPool::run(int count, int chunk, Call call, void* body) {
  if (count <= 0) return;
  if (threads_ == 1 || count <= chunk) {
    call(body, 0, count, 0);
    progressed();
    return;
  }
  call_ = call;
  body_ = body;
  count_ = static_cast<std::uint32_t>(count);
  chunk_ = static_cast<std::uint32_t>(chunk);
  for (int share = 0; share < threads_; ++share) {
    next_[static_cast<std::size_t>(share)].value.store(first_chunk(share), std::memory_order_relaxed);
  }
  state_.value.store(kOpen, std::memory_order_release);
  // Both are seq_cst: either a thread that is about to sleep sees the new round, or this thread sees it
  // asleep.
  round_.value.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.value.load(std::memory_order_seq_cst) != 0) futex_wake_all(round_.value);
  claim(0);
  state_.value.fetch_and(~kOpen, std::memory_order_acq_rel);
  wait_for_others();
  progressed();
}

void ThreadPool::claim(int lane) {
  for (int i = 0; i < threads_; ++i) {
    const int share = (lane + i) % threads_;
    const std::uint32_t last = first_chunk(share + 1);
    auto& next = next_[static_cast<std::size_t>(share)].value;
    while (next.load(std::memory_order_relaxed) < last) {
      const std::uint32_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= last) break;
      const std::uint64_t begin = std::uint64_t{chunk} * chunk_;
      const std::uint64_t end = std::min<std::uint64_t>(begin + chunk_, count_);
      call_(body_, static_cast<int>(begin), static_cast<int>(end), lane);
      if (lane == 0) progressed();
    }
  }
}

void ThreadPool::wait_for_others() {
  auto& state = state_.value;
  if (spin_until([&] { return state.load(std::memory_order_acquire) == 0; })) return;
  state.fetch_or(kParked, std::memory_order_acq_rel);
  for (std::uint32_t now = state.load(std::memory_order_acquire); now != kParked;
       now = state.load(std::memory_order_acquire)) {
    futex_wait(state, now);
  }
}

bool ThreadPool::enter() {
  std::uint32_t now = state_.value.load(std::memory_order_relaxed);
  while ((now & kOpen) != 0) {
    if (state_.value.compare_exchange_weak(now, now + 1, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::leave() {
  if (state_.value.fetch_sub(1, std::memory_order_acq_rel) == (kParked | 1)) futex_wake_all(state_.value);
}

void ThreadPool::work(int lane, int core) {
  if (core >= 0) pin_to(core);
  auto& round = round_.value;
  std::uint32_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!spin_until([&] { return round.load(std::memory_order_acquire) != seen; })) {
      asleep_.value.fetch_add(1, std::memory_order_seq_cst);
      while (round.load(std::memory_order_seq_cst) == seen) futex_wait(round, seen);
      asleep_.value.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = round.load(std::memory_order_acquire);
    if (!enter()) continue;
    claim(lane);
    leave();
  }
}

}  // namespace troupe
