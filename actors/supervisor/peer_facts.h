#pragma once
// What two instances must have in common, so that one can use the KV blocks of the other and their processes
// understand each other.
#include <nlohmann/json.hpp>
#include <string>

#include "config/options.h"

namespace troupe::supervisor {

/// Of an instance with these options, as they are after preflight: an object of texts, each named as it is
/// shown.
nlohmann::json facts_of(const config::Options& options);

/// The first fact that differs, in one sentence with both values; "" when none does. What one side lacks
/// differs.
std::string difference(const nlohmann::json& prefill_facts, int prefill_pid,
                       const nlohmann::json& decode_facts, int decode_pid);

}  // namespace troupe::supervisor
