#pragma once
// What the processes say to one another over their links, and what their actors are told of it: data only, as
// in actors/messages.h.
#include <cstdint>
#include <string>

#include "actors/messages.h"

namespace troupe {

/// The first message of a front in an epoch of its link.
struct Greeting {
  std::uint32_t version = 0;  ///< wire::kMessagesVersion: both ends must have the same
  std::string build;          ///< of the program, for people
};

/// The first message of an engine in an epoch of its link.
struct Welcome {
  std::uint32_t version = 0;  ///< as in Greeting, and
  std::string build;          ///< likewise
  std::string topology;       ///< topology_json() of its actors
};

/// A text process has answered an Encode.
struct TextAnswer {
  std::uint64_t number = 0;  ///< of the job
  Encoded encoded;
};

/// A text process can encode.
struct TextUp {
  std::uint32_t index = 0;
};

/// An engine can serve: what it has run is submitted to it again. Only where its process has come anew; a
/// worker's loss is no such.
struct EngineUp {
  std::uint32_t engine = 0;  ///< index
  std::uint32_t epoch = 0;   ///< of the link; never 0
};

/// The engine's process is gone, and what was submitted to it has yielded all that it will.
struct EngineDown {
  std::uint32_t engine = 0;  ///< index
  std::uint32_t epoch = 0;   ///< the new one of the link
  std::string why;
};

/// Whether an engine can serve now: it runs, and so does its worker.
struct EngineServes {
  std::uint32_t engine = 0;  ///< index
  bool serves = false;
};

/// Requests of an engine that is down have waited long enough for its next process; a SESSION HOST tells
/// itself.
struct WaitedForEngine {
  std::uint32_t engine = 0;  ///< index
  std::uint32_t epoch = 0;   ///< of EngineDown
};

/// A Submit was refused.
struct Refused {
  std::uint64_t exchange = 0;
  std::uint32_t attempt = 0;
  Status status;
};

/// A front's Submit, for SCHEDULER.
struct FrontSubmit {
  std::uint32_t front = 0;
  Submit submit;
};

/// A front's ExpectBlocks, for CACHE MANAGER.
struct FrontExpects {
  std::uint32_t front = 0;
  ExpectBlocks expected;
};

/// The front has taken enough steps for more to be run.
struct FrontReady {
  std::uint32_t front = 0;
};

/// The front's process is gone: its sequences are ended, and its prompts expected no more.
struct FrontLost {
  std::uint32_t front = 0;
};

/// Asks whether nothing of a front is left: what a front that was lost had has ended, so that the next one,
/// or the same one on another machine, may use its keys again.
struct FrontSettled {
  std::uint32_t front = 0;
};

/// A message of a link that an actor handles itself, and the link's epoch in which it came.
struct LinkMessage {
  std::uint32_t type = 0;  ///< MessageType
  std::uint64_t tag = 0;
  std::uint32_t epoch = 0;
  Bytes bytes;
};

/// A link has another epoch: the process at its other end is gone.
struct LinkEpoch {
  std::uint32_t epoch = 0;
};

/// An event of a request that an actor of the engine has logged, for the way of the request through the
/// actors.
struct TracedEvent {
  std::string actor;
  std::string event;
  std::string request_id;
  std::string details;  ///< as TraceStep::details
  std::int64_t at_ns = 0;
};

/// Which part of the engine, or which worker, stands still; empty: none does.
struct SilentPart {
  std::string part;
};

/// Requests that wait to run alone may have their turn; a SESSION HOST tells itself.
struct RetryAlone {};

}  // namespace troupe
