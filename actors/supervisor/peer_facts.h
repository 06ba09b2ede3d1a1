#pragma once
// What two instances must have in common, so that one can use the KV blocks of the other, or a front on one
// machine an engine on another, and their processes understand each other.
#include <map>
#include <string>

#include "config/options.h"

namespace troupe::supervisor {

/// Values as texts, each named as it is shown.
using PeerFacts = std::map<std::string, std::string>;

/// Of an instance with these options, as they are after preflight.
PeerFacts facts_of(const config::Options& options);

/// Likewise, of instances on different machines: without what each machine has of its own, as the path of the
/// model.
PeerFacts facts_across_machines(const config::Options& options);

/// One side of a comparison.
struct PeerSide {
  const PeerFacts& facts;
  std::string name;  ///< "the prefill instance (pid 12)"
};

/// The first fact that differs, in one sentence with both values; "" when none does. What one side lacks
/// differs.
std::string difference(const PeerSide& a, const PeerSide& b);

}  // namespace troupe::supervisor
