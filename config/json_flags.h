#pragma once
// The flags whose value is a JSON object: each checks its keys, their types and their ranges. The object
// is kept as text until a module reads it.
#include <string_view>

#include "base/status.h"

namespace troupe::config {

/// Keys and types alone; parse_speculation() (config/speculation.h) reads them.
Status check_speculative_config(std::string_view text);
Status check_graph_optimization_config(std::string_view text);
Status check_early_stop_config(std::string_view text);
Status check_eplb_config(std::string_view text);
Status check_plas_attention_config(std::string_view text);
Status check_pooler_config(std::string_view text);
Status check_limit_mm_per_prompt(std::string_view text);
Status check_mm_processor_kwargs(std::string_view text);
Status check_rsync_config(std::string_view text);
/// Any object.
Status check_json_object(std::string_view text);

/// The boolean `key` of a checked object; false when the text or the key is absent.
bool json_flag(std::string_view text, std::string_view key);
bool json_has(std::string_view text, std::string_view key);

}  // namespace troupe::config
