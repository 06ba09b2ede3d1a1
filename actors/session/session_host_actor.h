#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "actors/protocol.h"
#include "actors/session/engine_side.h"
#include "actors/session/quarantine.h"
#include "actors/session/session_book.h"
#include "base/log.h"

namespace troupe {

/// Hands finished outputs to the I/O thread of the same index; thread-safe, never blocks.
using Deliver = std::function<void(std::uint32_t io, std::vector<http::Output>&&)>;

/// What a SESSION HOST is given at spawn.
struct SessionHostParts {
  std::uint32_t io = 0;
  std::shared_ptr<const SessionContext> context;
  std::vector<tokenizer_actor> tokenizers;  ///< the last of them takes long texts, too
  std::vector<std::shared_ptr<EngineSide>>
      engines;  ///< by index; one takes nothing before its first EngineUp
  metrics_actor metrics;
  media_actor media;  ///< null: the model does not see
  Deliver deliver;
  Log log;
  /// By engine; empty: no request asks for a form. One whose engine has ended answers with an error, or with
  /// a Status of Code::unavailable and kEngineLost.
  std::vector<forms_actor> grammars;
  std::shared_ptr<Quarantine> quarantine;  ///< the same for all SESSION HOSTs; null: there is only this one
  std::shared_ptr<EngineRouter> router;    ///< likewise
  /// How long requests wait for an engine that is down to come back before they are given to others: what
  /// they have computed is found again there alone.
  std::chrono::milliseconds wait_for_engine{1500};
  std::int64_t slice_ns =
      1'000'000;  ///< how long one turn writes answers; others run before the next one does
};

/// Status::reason: the engine that was asked has ended; what it was asked for has not failed.
inline constexpr const char* kEngineLost = "engine_lost";

struct SessionHostState {
  static inline const char* name = "session";
  SessionHostParts parts;
  std::unique_ptr<SessionBook> book;
  struct Credit {
    caf::typed_response_promise<Closed> promise;
    std::int64_t deadline_ns = 0;
  };
  std::map<std::uint64_t, Credit> credits;                     ///< by exchange
  std::set<std::pair<std::int64_t, std::uint64_t>> deadlines;  ///< of the credits, each with its exchange
  std::map<std::uint64_t, EngineProcess>
      compiling;                     ///< exchanges whose forms GRAMMAR has not answered, and whose
  bool retries = false;              ///< a RetryAlone is on its way
  std::uint64_t reported_drops = 0;  ///< of SessionBook::dropped(), in the log
  std::int64_t next_look_ns = 0;     ///< when an Expire will come; 0: none is on its way
  /// By TextLane: exchanges that no TOKENIZER has been given yet, in the order in which they get one.
  std::array<std::multimap<std::int64_t, std::uint64_t>, kTextLanes> waiting;
  std::vector<int>
      jobs;  ///< given and not answered: by TOKENIZER in the common lane, then of the other lanes
  std::size_t next_tokenizer = 0;
};

/// SESSION HOST. Its death takes the engine down (actors/topology.h).
session_host_actor::behavior_type session_host_behavior(
    session_host_actor::stateful_pointer<SessionHostState> self, SessionHostParts parts);

}  // namespace troupe
