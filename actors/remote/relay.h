#pragma once
// The two kinds of relay. Each is what stands in the place of the process on the other machine: beside a
// front a Dialer is its engine, beside an engine a Gate is its fronts. Each runs threads of its own.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/remote/bridge.h"
#include "actors/remote/cluster_keys.h"
#include "actors/remote/kv_client.h"
#include "actors/remote/kv_server.h"
#include "actors/remote/relay_greeting.h"
#include "base/log.h"
#include "config/address.h"
#include "ipc/fd.h"
#include "ipc/link.h"

namespace troupe::remote {

/// For a connection, TLS and the greeting.
inline constexpr Duration kGreetingPatience = std::chrono::seconds(3);

/// A peer, as the status page shows it.
struct PeerState {
  std::string role;     ///< the peer's: engine, prefill (an engine that computes prompts alone) or front
  std::string address;  ///< where it listens, or the name of its node
  std::string state;    ///< joining, absent, refused, joined
  std::string why;      ///< it is absent, in words that follow its name; or refused

  bool operator==(const PeerState&) const = default;
};

struct RelaySetup {
  RelayGreeting own;
  ClusterKeys keys;
  Log log;
};

/// Connects to an engine, again and again, and carries what the front and it say to each other. Of a prefill
/// engine it also gets KV blocks, by connections beside that one: those wait for the network, tokens do not
/// wait for them.
class Dialer {
 public:
  /// `region`: of images and videos of the front; null: the model does not see. `fetches`: by rank, through
  /// which the workers here get KV blocks; none: the engine gives none.
  Dialer(RelaySetup setup, ipc::LowerEnd end, std::shared_ptr<ipc::BlockNames> names, config::Address engine,
         std::shared_ptr<const ipc::PatchRegion> region = nullptr,
         std::vector<ipc::BlockFetches> fetches = {});
  ~Dialer();  ///< ends the connection

  PeerState peer() const;

 private:
  void run(const std::stop_token& stop);
  std::string visit(const std::stop_token& stop);
  void kv_refused(const std::string& why);
  void tell(const std::string& state, const std::string& why);

  const RelaySetup setup_;
  ipc::LowerEnd end_;
  const config::Address engine_;
  Bridge bridge_;
  mutable std::mutex mutex_;
  PeerState peer_;                // guarded by mutex_, as the next
  std::string kv_refusal_;        // of this connection
  std::deque<KvClient> clients_;  // by rank
  std::jthread thread_;
};

/// Takes the fronts that come to a socket, as many at a time as there are links.
class Gate {
 public:
  /// `listen` is borrowed, and does not block. `name` is the engine's, for those that it refuses. `pixels`:
  /// what images and videos of all fronts show; null: the model does not see. `kv`: the KV blocks of a
  /// prefill engine, borrowed; null: fronts get none.
  Gate(RelaySetup setup, std::vector<ipc::UpperEnd> ends, const std::shared_ptr<ipc::BlockNames>& names,
       int listen, std::string name, const std::shared_ptr<PixelStore>& pixels = nullptr,
       KvServer* kv = nullptr);
  ~Gate();  ///< ends the connections

  /// Of those that are joined.
  std::vector<PeerState> peers() const;
  std::size_t places() const { return places_.size(); }

  /// A sign of life of the fronts' place. Any thread.
  void beat();
  /// The fronts are told to give new requests to other engines; those that come later are refused.
  void drain();
  /// No front has anything that runs or waits.
  bool idle() const;
  /// As the front has heard it that has been there longest.
  EngineCounts counts() const;

 private:
  /// A link, and the front that has it.
  struct Place {
    Place(ipc::UpperEnd upper, std::shared_ptr<ipc::BlockNames> names, std::shared_ptr<PixelStore> pixels)
        : end(std::move(upper)),
          bridge(end, ipc::Side::upper, std::move(names), {nullptr, std::move(pixels)}) {}
    ipc::UpperEnd end;
    Bridge bridge;
    bool taken = false;  // guarded by mutex_, as those below
    std::string front;
    std::string server;  // who has it, or had it last
  };
  struct Visit {
    std::jthread thread;
    std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
  };
  void run(const std::stop_token& stop);
  void serve(ipc::Fd socket, const std::string& from, const std::stop_token& stop);
  void serve_kv(Stream& stream, const RelayGreeting& greeting, const std::stop_token& stop);
  Place* take_place(const std::string& front, const std::string& server, TimePoint deadline,
                    const std::stop_token& stop, std::string& why);

  const RelaySetup setup_;
  const int listen_;
  const std::string name_;
  KvServer* const kv_;
  const std::size_t most_visits_;
  mutable std::mutex mutex_;
  std::condition_variable_any left_;  // a front has left its place
  std::deque<Place> places_;
  bool draining_ = false;      // guarded by mutex_
  std::vector<Visit> visits_;  // of the thread that accepts
  std::jthread thread_;
};

}  // namespace troupe::remote
