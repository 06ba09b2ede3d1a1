#pragma once
// One part of an answer whose parts are sent one after the other: an output item of a response, a content
// block of a message.
#include <cstdint>
#include <string>

namespace troupe::http {

struct AnswerPart {
  enum class Kind : std::uint8_t { thoughts, text, call };
  Kind kind = Kind::text;
  std::string id;       ///< of the part; plain ASCII that JSON does not escape, as is call_id
  std::string call_id;  ///< call: what a tool's result refers to
  std::string name;     ///< call: of the function
  std::string text;     ///< the thoughts, the text, or the JSON of the arguments
  bool complete = false;
};

}  // namespace troupe::http
