#pragma once
// Which KV memories of prefill instances this worker reads itself, and from which it gets blocks by NCCL, as
// one of a pair with the worker that has them (Executor::attach_pair()). It reads what it can. Where it
// cannot read the memory of one rank of an instance, pairs are made with all of that instance's ranks.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "model/executor.h"

namespace troupe {

/// One thread.
class KvPairs {
 public:
  /// A pair that has failed so often, each time within kTrial, is of no use.
  static constexpr int kMostFailures = 3;
  static constexpr Duration kTrial = std::chrono::minutes(1);  ///< from when it was ready
  /// After the end of a pair, to the next try.
  static constexpr Duration kPairRetry = std::chrono::seconds(2);

  struct Setup {
    bool always = false;  ///< pairs also where the memory can be read
    /// Takes a socket to the worker of that rank of the instance; it is borrowed. False: it cannot.
    std::function<bool(std::uint32_t peer, int rank, int socket)> send;
    /// No blocks come from the instance, for this reason: a clause without an end.
    std::function<void(std::uint32_t peer, const std::string& why)> refused;
    Log log;
  };

  /// The executor outlives it.
  KvPairs(Executor& executor, Setup setup);

  /// That rank of the instance has this memory from now on. Not ok: no blocks come from the instance.
  Status attach(std::uint32_t peer, const PeerKvMemory& memory);
  /// It has ended.
  void detach(std::uint32_t peer, int rank);

  /// Takes what has become of pairs, and tries those again that have ended. At least once a second.
  void tick(TimePoint now);

 private:
  struct Rank {
    PeerKvMemory memory;      // without its descriptor
    std::uint64_t tried = 0;  // number of the last try; 0: there was none
    TimePoint retry_at{};     // {}: there is nothing to try
    TimePoint ready_at{};     // when it was last ready
    int failures = 0;         // one after the other
  };
  struct Peer {
    bool by_pairs = false;
    std::string why;  // it cannot be read
    std::map<int, Rank> ranks;
  };
  struct News {
    std::uint32_t peer = 0;
    int rank = 0;
    std::uint64_t tried = 0;
    PairNews news;
  };
  // Outlives this object in calls of pairs that end later.
  struct Inbox {
    std::mutex mutex;
    std::vector<News> news;
  };

  Status pair(std::uint32_t peer, Rank& rank);
  Status pair_all(std::uint32_t peer, Peer& of);
  void take(const News& news, TimePoint now);
  void refuse(std::uint32_t peer, Peer& of, const std::string& why);

  Executor& executor_;
  const Setup setup_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::map<std::uint32_t, Peer> peers_;
  std::uint64_t tries_ = 0;
};

}  // namespace troupe
