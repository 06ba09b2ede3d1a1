#pragma once
// A prefill instance's side of the decode instance for which it computes prompts: one at a time. The messages
// are in prefill_peers.h.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/control.h"
#include "actors/supervisor/kv_memory.h"
#include "actors/supervisor/log_event.h"
#include "actors/supervisor/peer_facts.h"
#include "actors/supervisor/prefill_peers.h"
#include "actors/supervisor/status_page.h"
#include "base/clock.h"
#include "ipc/link.h"

namespace troupe::supervisor {

class DecodePeer {
 public:
  static constexpr std::size_t kMostWaiting = 8;  ///< offers that have not come whole; more are closed
  static constexpr Duration kPatience = std::chrono::seconds(5);  ///< for an offer to come whole

  struct Setup {
    PeerFacts facts;
    std::string cannot;  ///< why this instance takes no offer; empty: it does
    int ranks = 1;
    LogEvent log;
    std::function<void(const std::string&)> tell;  ///< a line for people: what goes well
    std::function<void(const std::string&)> warn;  ///< what does not
  };

  /// What an accepted decode instance has brought.
  struct Offer {
    ipc::LinkFds link;
    ipc::Fd block_names;
    ipc::LinkMonitor monitor;  ///< of the link
    ipc::Fd patches;           ///< its ipc::PatchRegion; invalid: it has none
  };

  /// What the owner does with it.
  struct Events {
    std::function<void(Offer)> accepted;  ///< the engine has to be started again with it
    std::function<void()> lost;           ///< the next engine needs the link no more
    std::function<void()> left;           ///< likewise, and the engine has to be started again without it
    std::function<void()> front_ended;    ///< the front behind the link: nobody else will tell of it
    /// A worker there has sent a socket for that of this rank.
    std::function<void(std::int64_t rank, ipc::Fd socket)> pair;
  };

  DecodePeer(Setup setup, Events events)
      : setup_(std::move(setup)), events_(std::move(events)), memories_(setup_.ranks) {}

  /// A decode instance has sent `join` with this end of a control channel.
  void join(ipc::Fd control, TimePoint now);

  /// Refuses offers from now on, with this reason.
  void refuse_all(std::string why) { setup_.cannot = std::move(why); }

  /// To be polled.
  std::vector<int> descriptors() const;
  /// Takes what has come on one of them. Never waits.
  void on_readable(int fd, TimePoint now);
  /// Gives up on offers that do not come whole.
  void tick(TimePoint now);

  /// An engine that was started with the offer runs: `pidfd` is of process `pid`. Told once for each.
  void tell_engine(int pid, int pidfd);

  /// A worker process has memory for KV blocks.
  void set_memory(int rank, int pid, KvMemory memory);
  /// Process `pid` is that of the rank's worker now, 0: none is. What another had is gone, which is told.
  void keep_memory_of(int rank, int pid);

  std::vector<PeerRow> rows() const;

 private:
  struct Waiting {
    Control control;
    int pid = 0;
    TimePoint until;
    PeerFacts facts;
    ipc::LinkFds link;
    ipc::Fd patches;
  };
  /// True when it waits no more.
  bool read(Waiting& waiting, TimePoint now);
  void consider(Waiting& waiting, ipc::Fd block_names);
  void refuse(const Waiting& waiting, const std::string& why);
  void read_accepted();
  void on_lost();
  void on_left(const std::string& why);
  void close();
  void end_of_front();
  void tell_memories();

  Setup setup_;
  Events events_;
  std::vector<Waiting> waiting_;
  std::string last_refusal_;  // as it was logged
  Control control_;           // of the accepted one
  int pid_ = 0;
  int told_engine_ = 0;
  ipc::Fd front_;  // pidfd of its front; after its loss, as long as that has not ended
  RankMemories memories_;
  std::uint64_t told_life_ = 0;
};

}  // namespace troupe::supervisor
