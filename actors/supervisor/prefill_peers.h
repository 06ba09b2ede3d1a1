#pragma once
// A decode instance's side of its prefill instances: finds them by their engine-worker-queue ports, offers
// each a link to the front and a table of block names, and learns of their engines and their KV memory.
//
// On the control channel (control.h), which this side makes and sends with `join` (local_requests.h):
// from here
//   {"do":"offer","facts":{…}}                 with the link's step segment; peer_facts.h
//   {"do":"link_cache"}                        with its cache segment
//   {"do":"patches"}                           with the ipc::PatchRegion, of a model that sees
//   {"do":"names"}                             with the table of block names; the offer is whole
//   {"do":"front"}                             with a pidfd of the front, whenever that has been started
//   {"do":"kv_pair","rank":r}                  with a socket from a worker here to that of this rank
//   {"do":"leave","why":…}                     its KV blocks do not come here: it ends the link, and this
//                                              side closes the channel
// from the prefill instance
//   {"event":"refused","why":…}                one sentence; it closes the channel
//   {"event":"accepted"}                       its engine is started again with the link and the table
//   {"event":"engine"}                         with a pidfd of its engine, whenever that has been started
//   {"event":"memory","rank":r,"ranks":n,"life":"<decimal>","blocks":n,"block_bytes":n}
//                                              with the memory file of the KV blocks of one of n workers: of
//                                              all of them, whenever one has come anew. The life is that of
//                                              all together. Both instances may differ in n
//   {"event":"memory_gone","rank":r}           a worker that had memory has ended: unmapped, it is free for
//                                              the next one
// Both ignore what they do not know. But for "leave", only the end of an instance closes a channel that was
// accepted.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/control.h"
#include "actors/supervisor/kv_memory.h"
#include "actors/supervisor/log_event.h"
#include "actors/supervisor/peer_facts.h"
#include "actors/supervisor/rank_links.h"
#include "actors/supervisor/resources.h"
#include "actors/supervisor/status_page.h"
#include "base/clock.h"

namespace troupe::supervisor {

/// Packets taken from a channel at a time, so that an instance that floods it holds up no other.
inline constexpr int kMostPeerPackets = 64;

class PrefillPeers {
 public:
  static constexpr Duration kRetry = std::chrono::seconds(1);
  static constexpr Duration kRetryRefused = std::chrono::seconds(5);
  static constexpr Duration kPatience = std::chrono::seconds(10);  ///< for the answer to an offer

  struct Setup {
    std::string runtime_dir;
    PeerFacts facts;
    int ranks = 1;
    int patches = -1;  ///< this instance's ipc::PatchRegion, borrowed; -1: there is none
    LogEvent log;
    std::function<void(const std::string&)> tell;  ///< a line for people: what goes well
    std::function<void(const std::string&)> warn;  ///< what does not
  };

  /// `peers` and `links` are borrowed.
  PrefillPeers(Setup setup, const std::vector<PeerResources>& peers, ServerLinks& links);

  /// To be polled.
  std::vector<int> descriptors() const;
  /// Takes what has come on one of them. Never waits.
  void on_readable(int fd, TimePoint now);

  /// Tries to join instances that are not there, and gives up on those that do not answer. `front` is a pidfd
  /// of the front; -1 while it does not run. Call it at least once a second, and when the front was started.
  void tick(TimePoint now, int front, int front_pid);

  /// Gives what is known of the memories of all ranks to this instance's worker of that rank, unless process
  /// `pid` has it already. `send` returns whether the worker has been sent it.
  using SendMemory = std::function<bool(const nlohmann::json& order, int file)>;
  void tell_worker(int rank, int pid, const SendMemory& send);

  /// Takes a worker's socket to that rank of the instance with this index; closed, if that is not there.
  void send_pair(std::int64_t peer, std::int64_t rank, const ipc::Fd& socket);

  /// No KV blocks of the instance with this index come to a worker here: it is sent away, and not asked
  /// again before another process is at its port.
  void cannot_read(std::int64_t peer, const std::string& why, TimePoint now);

  std::vector<PeerRow> rows() const;

 private:
  enum class State { absent, offered, accepted, joined, refused, leaving };
  struct Told {
    int pid = 0;               // the worker process here that knows
    std::uint64_t change = 0;  // so much
  };
  struct Rank {  // of the prefill instance
    std::optional<KvMemory> memory;
    std::uint64_t change = 0;  // of `memory`
    std::vector<Told> told;    // by rank here

    void forget() {
      memory.reset();
      ++change;
    }
  };
  struct Peer {
    std::size_t index = 0;
    const PeerResources* resources = nullptr;
    State state = State::absent;
    std::string why;  // it was refused
    int pid = 0;
    int unreadable_pid = 0;  // that of a process whose KV memory cannot be read
    ipc::Fd asked;           // the connection that has carried `join`
    Control control;
    ipc::Fd engine;  // pidfd
    int told_front = 0;
    TimePoint try_at{}, answer_by{};
    int rank_count = 0;       // of the instance, as it has said
    std::vector<Rank> ranks;  // as many as an instance at this port has ever had

    bool is_in() const { return state == State::accepted || state == State::joined; }
  };

  void join(Peer& peer, TimePoint now);
  void take(Peer& peer, Packet& packet, TimePoint now);
  void take_memory(Peer& peer, Packet& packet);
  void on_closed(Peer& peer, TimePoint now);
  void refuse(Peer& peer, std::string why, TimePoint now);
  void on_lost(Peer& peer, TimePoint now);
  void leave(Peer& peer, TimePoint now);
  void end_of_engine(Peer& peer, TimePoint now);

  Setup setup_;
  ServerLinks& links_;
  std::vector<Peer> peers_;
};

}  // namespace troupe::supervisor
