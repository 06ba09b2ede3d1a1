#pragma once
// A regular expression of a tokenizer file, by PCRE2 with Unicode classes and its JIT compiler.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace troupe {

/// Immutable; any number of threads may search at once.
class Pattern {
 public:
  /// `expression` is written for Oniguruma, whose \s is Unicode's White_Space: it is spelled out, since
  /// PCRE2's has one character more.
  static Result<Pattern> compile(const std::string& expression);

  Pattern(Pattern&&) = default;
  Pattern& operator=(Pattern&&) = default;

  using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

  /// Appends the non-empty matches in `text` (valid UTF-8), left to right. If PCRE2 stops at its own
  /// limits of stack or steps, the rest counts as unmatched.
  void find_all(std::string_view text, Ranges& out) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  explicit Pattern(void* code) : code_(code) {}
  std::unique_ptr<void, Free> code_;  // pcre2_code
};

}  // namespace troupe
