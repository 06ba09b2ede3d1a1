#pragma once
#include "actors/supervisor/peer_facts.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe::remote {

/// What a front and an engine on two machines must have in common, with digests of what is in the model's
/// directory: its configuration, its vocabulary and, where there are some, its weights.
Result<supervisor::PeerFacts> node_facts(const config::Options& options, int vocabulary_fd);

/// True if the facts of a front are those of one that hands prompts over to prefill engines.
bool is_decode_instance(const supervisor::PeerFacts& front);

/// In one sentence with both names; "" when nothing does. A front needs no weights, so that they are
/// compared only where both have them. The front of a decode instance needs a prefill engine. Ranks may
/// differ.
std::string node_difference(supervisor::PeerFacts engine, const std::string& engine_name,
                            supervisor::PeerFacts front, const std::string& front_name);

}  // namespace troupe::remote
