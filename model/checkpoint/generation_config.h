#pragma once
// A checkpoint's generation_config.json: the tokens that end an answer, and default sampling parameters.
#include <filesystem>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/checkpoint/spec.h"

namespace troupe::model {

/// Absent keys stay unset. Values of the request take precedence.
struct GenerationConfig {
  std::vector<TokenId> eos_ids;  ///< eos_token_id, an int or a list
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int> top_k;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
};

/// Reads `directory`/generation_config.json; an absent file is an empty config. Errors name the file, the
/// key, the value and what is allowed.
Result<GenerationConfig> read_generation_config(const std::filesystem::path& directory);

/// The tokens that end an answer: those of generation_config.json, then those that only config.json names,
/// then the tokenizer's end token. Each id once, in this order; ids outside the model's vocabulary, which
/// cannot be sampled, are left out.
std::vector<TokenId> end_ids(const GenerationConfig& generation, const ModelSpec& spec,
                             std::optional<TokenId> tokenizer_eos);

}  // namespace troupe::model
