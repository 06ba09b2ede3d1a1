#pragma once
// The prompts of `troupe quantize --calibrate`: a file with a JSON object on each line.
#include <cstddef>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe::cli {

struct CalibrationPrompts {
  std::vector<std::vector<TokenId>> prompts;
  std::size_t cut = 0;  ///< prompts that had more tokens than are taken, and have the first ones
  std::string key;      ///< equal for equal files
};

/// A line is {"messages": [...]}, with "tools" if there are any, in the model's chat template; {"prompt":
/// text or token ids}, in which special tokens count; or {"text": ...}, in which they do not. Empty lines
/// are skipped, and of a prompt at most `most_tokens` are taken. `model` has been resolved; `vocab`: its rows
/// of the embedding, which every token has to be below. Errors name the file, and the line as FILE:7;
/// not_found: the file.
Result<CalibrationPrompts> read_calibration_prompts(const std::string& file,
                                                    const config::ModelOptions& model,
                                                    std::size_t most_tokens, int vocab);

}  // namespace troupe::cli
