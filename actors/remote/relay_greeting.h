#pragma once
// The first frames of a connection. The front's relay says who it is; the engine's compares what the two must
// have in common, and answers with the same of its own or with a sentence. Nothing of it is read before TLS
// has shown that the peer is of the cluster.
#include <optional>
#include <stop_token>
#include <string>

#include "actors/remote/frames.h"
#include "actors/remote/kv_frames.h"
#include "actors/remote/stream.h"
#include "actors/supervisor/peer_facts.h"
#include "base/clock.h"
#include "base/status.h"

namespace troupe::remote {

struct RelayGreeting {
  std::string node;  ///< the name in its certificate
  supervisor::PeerFacts facts;
  std::optional<KvPart> kv{};  ///< the connection carries KV blocks, not a link
  std::string server{};        ///< of a front: tells the servers of a node apart; the same after a reconnect
};

/// The front's half: greets and reads the answer. Code::forbidden: a refusal, in the engine's words. Other
/// errors follow the peer's name: "did not answer within 3 s".
Result<RelayGreeting> greet(Stream& stream, FrameReader& reader, const RelayGreeting& own, TimePoint deadline,
                            const std::stop_token& stop);

/// The engine's half: reads the greeting.
Result<RelayGreeting> await_greeting(Stream& stream, FrameReader& reader, TimePoint deadline,
                                     const std::stop_token& stop);
/// Answers it; false: the peer does not take the answer.
bool welcome(Stream& stream, const RelayGreeting& own, TimePoint deadline, const std::stop_token& stop);
void refuse(Stream& stream, const std::string& why, TimePoint deadline, const std::stop_token& stop);

}  // namespace troupe::remote
