#pragma once
// A front as SCHEDULER sees it, which keeps what it is given.
#include <mutex>
#include <utility>
#include <vector>

#include "actors/link/front_port.h"

namespace troupe::testing {

/// Thread safe.
class HeardFront final : public FrontPort {
 public:
  void tokens(std::uint32_t host, const StepTokens& tokens) override {
    const std::lock_guard lock(mutex_);
    hosts_.push_back(host);
    tokens_.push_back(tokens);
  }
  void refused(std::uint32_t, const Refused& refused) override {
    const std::lock_guard lock(mutex_);
    refused_.push_back(refused);
  }
  void stats(const StepStats& stats) override {
    const std::lock_guard lock(mutex_);
    stats_.push_back(stats);
  }
  bool behind() const override { return is_behind; }

  /// Each returns what came since the last call.
  std::vector<StepTokens> take_tokens() { return take(tokens_); }
  std::vector<std::uint32_t> take_hosts() { return take(hosts_); }
  std::vector<Refused> take_refused() { return take(refused_); }
  std::vector<StepStats> take_stats() { return take(stats_); }

  bool is_behind = false;  ///< before the actors run

 private:
  template <class T>
  std::vector<T> take(std::vector<T>& from) {
    const std::lock_guard lock(mutex_);
    return std::exchange(from, {});
  }
  std::mutex mutex_;
  std::vector<StepTokens> tokens_;
  std::vector<std::uint32_t> hosts_;
  std::vector<Refused> refused_;
  std::vector<StepStats> stats_;
};

}  // namespace troupe::testing
