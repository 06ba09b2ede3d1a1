#pragma once
// What one rendering may consume. A template that exceeds one of these fails its own request only.
#include <cstdint>
#include <optional>

namespace troupe {

struct RenderLimits {
  std::int64_t steps = 2'000'000;  ///< expressions and statements evaluated, items visited, 64 bytes touched
  std::int64_t output_bytes = 32 << 20;      ///< the prompt
  std::int64_t made_bytes = 256ll << 20;     ///< all strings and lists made, including those freed again
  int depth = 400;                           ///< nested expressions, blocks and macro calls
  std::optional<std::int64_t> now_unix_s{};  ///< what strftime_now() reads; the wall clock when unset
};

}  // namespace troupe
