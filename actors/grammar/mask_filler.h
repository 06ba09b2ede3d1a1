#pragma once
// Makes the masks of several rows at once: each takes some ten microseconds and needs nothing of the others.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "actors/grammar/grammars.h"
#include "text/grammar/constraint.h"

namespace troupe {

class MaskFiller {
 public:
  /// Uses the calling thread and `helpers` more.
  explicit MaskFiller(unsigned helpers);
  ~MaskFiller();
  MaskFiller(const MaskFiller&) = delete;
  MaskFiller& operator=(const MaskFiller&) = delete;

  /// The masks of the rows, in their order. Valid until the next call.
  std::span<const grammar::TokenMask> fill(std::span<const ReadyRow> rows);

 private:
  void help(const std::stop_token& stop);
  void work(std::span<const ReadyRow> rows);

  std::vector<grammar::TokenMask> masks_;  // never shrinks: its words are used again
  std::mutex mutex_;
  std::condition_variable_any begin_, end_;
  std::span<const ReadyRow> rows_;  // guarded by mutex_
  std::uint64_t round_ = 0;         // guarded by mutex_
  unsigned busy_ = 0;               // helpers in the round; guarded by mutex_
  std::atomic<std::size_t> next_{0};
  std::vector<std::jthread> helpers_;  // last: they end before what they use
};

}  // namespace troupe
