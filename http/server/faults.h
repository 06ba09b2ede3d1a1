#pragma once
// Exceptions that have ended a piece of work in the HTTP threads, most likely for want of memory: counted,
// and reported to the backend. Nothing here throws, so a handler of an exception may use it.
#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>

#include "base/contain.h"
#include "http/server/backend.h"

namespace troupe::http {

/// Any thread.
class Faults {
 public:
  /// `backend` outlives it.
  explicit Faults(Backend& backend) : backend_(backend) {}

  /// Counts one. It is reported to the backend at once; if that fails, together with the next one.
  void note(FaultPlace place, const std::exception& error) noexcept;

  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

  /// Does `work`. False when it threw, which is noted.
  template <class Work>
  bool contain(FaultPlace place, Work&& work) noexcept {
    return attempt(place, std::forward<Work>(work)).ok();
  }

  /// Does `work`. Not ok when it threw, which is noted: what to tell the client.
  template <class Work>
  Status attempt(FaultPlace place, Work&& work) noexcept {
    try {
      detail::reach(to_string(place));
      work();
      return {};
    } catch (const std::exception& error) {
      note(place, error);
      return status_of(error);
    }
  }

 private:
  static Status status_of(const std::exception& error) noexcept;

  Backend& backend_;
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> unreported_{0};
};

}  // namespace troupe::http
