#pragma once
// A fork-join pool for loops of microseconds.
//
// The threads share their cores with the server's other threads, so both sides of a join spin for a few
// microseconds and then sleep on a futex: a step's ops follow each other closely enough to find the threads
// awake, and between steps the cores are free. Each thread has a share of neighbouring chunks and claims them
// one by one from the front, so that it reads memory in one direction and may prefetch. When its share is
// done it claims from the others'. So a delayed thread costs a chunk and not a share, and nobody waits for a
// thread that wakes up late. Any thread may run any index: an op computes the same for an index on every
// thread.
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace troupe {

/// One CPU of each physical core in the calling thread's affinity mask, in rising order.
std::vector<int> physical_cores();

class ThreadPool {
 public:
  /// Thread 0 is the caller of run(); threads 1 … n-1 are started here and pinned to cores[i] when
  /// `cores` names as many. With `pin_caller` the calling thread is pinned to cores[0] until the pool
  /// goes (threads it starts meanwhile inherit that: start others first).
  ThreadPool(int threads, std::vector<int> cores, bool pin_caller);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// From now on the caller's thread raises `word` after every chunk that it runs, and after every loop: a
  /// sign for others that a long loop goes on. Nobody else may write the word meanwhile. Null: no more.
  void count_progress(std::atomic<std::int64_t>* word) { progress_ = word; }

  /// Raises that word, for a caller that waits for something outside of the pool.
  void progressed() {
    if (progress_ == nullptr) return;
    progress_->store(progress_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  /// Calls body(begin, end, lane) for disjoint chunks of `chunk` indices that cover [0, count), on
  /// all threads, and returns when all are done; lane is the thread's number. One chunk or one
  /// thread: the caller does it alone. The body must not throw and must not call into the pool.
  template <class Body>
  void for_each(int count, int chunk, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, chunk,
        [](void* b, int begin, int end, int lane) { (*static_cast<Plain*>(b))(begin, end, lane); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* body, int begin, int end, int lane);

  void run(int count, int chunk, Call call, void* body);
  void work(int lane, int core);
  bool enter();
  void leave();
  void claim(int lane);
  /// The first chunk of a share; the first of share threads_ is the number of chunks.
  std::uint32_t first_chunk(int share) const {
    const std::uint32_t chunks = (count_ + chunk_ - 1) / chunk_;
    return static_cast<std::uint32_t>(std::uint64_t{chunks} * static_cast<std::uint32_t>(share) /
                                      static_cast<std::uint32_t>(threads_));
  }
  void wait_for_others();

  struct alignas(64) Word {
    std::atomic<std::uint32_t> value{0};
  };

  const int threads_;
  // The job: written by the caller while no round is open, read by threads that entered one.
  Call call_ = nullptr;
  void* body_ = nullptr;
  std::uint32_t count_ = 0;
  std::uint32_t chunk_ = 1;
  std::vector<Word> next_;  ///< by share: the next chunk to claim
  Word round_;              ///< rises with every job; idle threads wait for a change
  Word state_;   ///< the threads inside the round, and whether it is open (kOpen) and awaited (kParked)
  Word asleep_;  ///< threads that sleep on the futex of round_; if 0, no wake-up call is needed
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t>* progress_ = nullptr;
  cpu_set_t callers_cores_;  ///< the caller's affinity before it was pinned, restored at the end
  bool caller_pinned_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace troupe
