#pragma once
// A piece of a prompt and whether its author may speak to the model in special tokens.
#include <string>

namespace troupe {

/// Trusted text comes from the chat template and the checkpoint's own configuration; untrusted text
/// comes from a request. Only trusted text may turn into special tokens.
struct TextSpan {
  std::string text;
  bool trusted = false;

  bool operator==(const TextSpan&) const = default;
};

}  // namespace troupe
