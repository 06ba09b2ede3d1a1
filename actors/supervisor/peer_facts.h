#pragma once
// What two instances must have in common, so that one can use the KV blocks of the other and their processes
// understand each other.
#include <map>
#include <string>

#include "config/options.h"

namespace troupe::supervisor {

/// Values as texts, each named as it is shown.
using PeerFacts = std::map<std::string, std::string>;

/// Of an instance with these options, as they are after preflight.
PeerFacts facts_of(const config::Options& options);

/// The first fact that differs, in one sentence with both values; "" when none does. What one side lacks
/// differs.
std::string difference(const PeerFacts& prefill, int prefill_pid, const PeerFacts& decode, int decode_pid);

}  // namespace troupe::supervisor
