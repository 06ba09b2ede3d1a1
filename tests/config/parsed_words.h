#pragma once
// Command lines as options, or as the sentence that refuses them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/parse.h"

namespace troupe::config {

using Words = std::vector<std::string>;

inline Options parsed(const Words& words, const Environment& environment = {}) {
  Result<ParsedOptions> result = parse(words, environment);
  EXPECT_TRUE(result.ok()) << result.status().message;
  return result.ok() ? result->options : Options{};
}

inline std::string option_error(const Words& words, const Environment& environment = {}, int exit = 2) {
  Result<ParsedOptions> result = parse(words, environment);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(exit_code(result.status()), exit) << result.status().message;
  return result.status().message;
}

}  // namespace troupe::config
