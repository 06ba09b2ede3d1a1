#pragma once
// The cast of the engine process: who there is, in which order they start, what happens when one dies,
// what bounds their mailboxes. The only file that spawns actors is topology.cpp.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/gateway/gateway_actor.h"
#include "actors/metrics/registry.h"
#include "actors/protocol.h"
#include "actors/root_actor.h"
#include "actors/session/session_host_actor.h"
#include "actors/tokenizer/encoder.h"
#include "base/log.h"
#include "config/options.h"
#include "ipc/link.h"

namespace troupe {

/// One row of the table of actors. CAF's mailboxes have no bound of their own: the bound is a credit that
/// the sender keeps, named here beside what happens when it is used up.
struct Role {
  const char* name;
  OnDown on_down;
  const char* thread;     ///< pool, or one of its own
  const char* bound;      ///< who limits its mailbox
  const char* when_full;
  const char* why;        ///< of the policy, in one sentence
};

/// In start order. docs/topology.md is written from this table.
inline constexpr Role kRoles[] = {
    {"metrics", OnDown::escalate, "pool", "one message a step and a request", "none",
     "Every part reports to it by handle, and a restart of the engine costs less than recasting them all."},
    {"worker_link", OnDown::escalate, "pool, and one receiving thread", "max_steps_in_flight plans", "SCHEDULER waits",
     "Its end means that the ring or the worker cannot be trusted."},
    {"cache", OnDown::escalate, "pool", "one CacheAsks a step", "SCHEDULER waits",
     "Its block tables are the truth about the worker's memory."},
    {"scheduler", OnDown::escalate, "pool", "--max-queued-requests, --max-queued-tokens", "429",
     "It alone knows which plan is in flight."},
    {"tokenizer", OnDown::restart, "own", "two prompts of each SESSION HOST", "SESSION HOST keeps the next ones",
     "It holds nothing: its requests fail, the next ones find a new one."},
    {"session", OnDown::escalate, "pool", "GATEWAY's credits; output by the connection's buffer", "429; the client is cut off",
     "Its sessions hold the text that clients have already seen."},
    {"gateway", OnDown::escalate, "pool", "--max-concurrency", "429",
     "Admission without its count of open requests would be none."},
};

struct CastSetup {
  config::Options options;  ///< resolved
  std::shared_ptr<ipc::EngineEnd> link;
  std::uint64_t spec_hash = 0;
  std::shared_ptr<const Encoder> encoder;
  std::uint32_t tokenizers = 1;
  std::shared_ptr<const SessionContext> sessions;
  std::uint32_t io_threads = 1;
  metrics::Constants constants;
  std::shared_ptr<HealthCell> health;
  Deliver deliver;
  std::string config_json;  ///< what /config-info answers
  std::function<Log(const std::string& actor)> log;
};

/// What the rest of the process needs of the cast.
struct Cast {
  root_actor root;
  gateway_actor gateway;
  metrics_actor metrics;
};

/// Starts every actor in table order, and the ROOT over them.
Cast spawn_cast(caf::actor_system& system, CastSetup setup);

/// The table as a page with a Mermaid graph: docs/topology.md.
std::string topology_markdown();

}  // namespace troupe
