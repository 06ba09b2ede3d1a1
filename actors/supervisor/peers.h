#pragma once
// The other instances with which this one shares its work (--splitwise-role): what its supervisor does for
// them. An instance of role mixed tells those that ask it what it is. And fronts and engines on other
// machines.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/supervisor/children.h"
#include "actors/supervisor/console.h"
#include "actors/supervisor/decode_peer.h"
#include "actors/supervisor/kv_memory.h"
#include "actors/supervisor/local_requests.h"
#include "actors/supervisor/prefill_peers.h"
#include "actors/supervisor/relayed_peers.h"
#include "actors/supervisor/resources.h"

namespace troupe::supervisor {

class Peers {
 public:
  /// All are borrowed.
  Peers(Resources& resources, Children& children, Console& console, LogEvent log, Duration grace);

  using Add = std::function<void(int fd, std::function<void()> action)>;
  /// Names the descriptors to be polled and what to do when one is readable.
  void poll(const Add& add);

  /// A `join` with the control channel that came with it. `state` is that of the server.
  void join(ReceivedRequest request, bool running, TimePoint now);

  /// Takes an event of a worker of this instance about KV memories: where its own is, that it gets no blocks
  /// of another one, or a socket for the worker that has another one. False: the event is about something
  /// else.
  bool take(const Child& worker, Packet& packet, TimePoint now);

  /// A relay of this instance has said whom it is connected to.
  void on_peers(const Child& relay, const Packet& packet) { relayed_.take(relay.name, packet); }

  /// Call it whenever a child may have been started or has become ready, and at least once a second.
  void tick(TimePoint now);

  void fill(StatusPage& page) const;

 private:
  void accept(DecodePeer::Offer offer);
  void forget_decode_front();
  void replace_engine();
  void on_memory(const Child& worker, Packet& packet);
  void tell_relay();
  void send_pair(std::int64_t rank, const ipc::Fd& socket);
  void tell_patches(const Child& worker);
  Child& engine();

  Resources& resources_;
  Children& children_;
  Duration grace_;
  PrefillPeers prefills_;
  DecodePeer decode_;
  RelayedPeers relayed_;
  RankMemories relayed_memories_;  // of a prefill engine that takes fronts
  struct RelayTold {
    int pid = 0;
    std::uint64_t life = 0;
    bool operator==(const RelayTold&) const = default;
  };
  RelayTold relay_told_;  // that process, of that life of relayed_memories_
  ipc::LinkFds link_;     // from the decode instance
  ipc::Fd block_names_;   // likewise: the engine's table, also when that instance has gone
  ipc::Fd patches_;       // likewise, in which it has its images; invalid: there are none
  std::uint64_t patches_change_ = 0;
  struct Told {
    int pid = 0;
    std::uint64_t change = 0;
  };
  std::vector<Told> told_patches_;  // by rank: the worker process that knows of that change
  int engine_before_ = 0;           // process that was started with other ones; 0: none has to be replaced
};

}  // namespace troupe::supervisor
