#pragma once
// Request bodies with OpenAI's fields (and FastDeploy's additions) → Request, with every check that does not
// need the model's weights or tokenizer and every default applied, so that no later code meets an unset
// value. All client JSON comes in here: nesting and element counts are bounded, numbers go through checked
// getters, and a failure names the field by its dotted path ("messages.0.role"), what was found and what is
// allowed. Nothing here throws.
//
// null means absent everywhere. Unknown top-level fields are ignored and reported by name; client_policy.h
// says what else is.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/media_rules.h"
#include "config/options.h"
#include "http/api/request.h"

namespace troupe::http {

/// Which of a conversation's tools the model may or must call.
struct ToolRules {
  enum class Choice : std::uint8_t {
    none,       ///< none; also when there are no tools
    automatic,  ///< as the model likes
    required,   ///< at least one
    named,      ///< `name`, once
  };
  Choice choice = Choice::none;
  std::string name;
  bool parallel = true;  ///< several calls in one answer
  bool legacy = false;   ///< given as `functions`: the answer has function_call
  std::string schema_field =
      "function.parameters";        ///< where a tool of the request has its schema, for errors
  std::vector<std::size_t> places;  ///< of the conversation's tools in the client's list; empty: the same

  std::size_t place_of(std::size_t tool) const { return tool < places.size() ? places[tool] : tool; }
};

/// What of its chat_template_kwargs a chat template reads to turn thoughts on and off.
enum class ThinkingSwitch : std::uint8_t {
  none,
  enable_thinking,  ///< true, false
  options,          ///< options.thinking_mode: "open", "close"
};

/// The form that holds an answer to calls of `tools`, and beside them to `other`, which may be free.
using ToolForm =
    std::function<Result<AnswerForm>(const Json& tools, const ToolRules& rules, const AnswerForm& other)>;

/// What is known about the model, and how it is served, before its weights are loaded. Immutable while a
/// server runs.
struct ModelFacts {
  std::vector<std::string> names;     ///< every name a request may use, the first that of answers to requests
                                      ///< without one; empty: any name passes
  std::size_t served_names = 1;       ///< the first so many of them are listed, and answered as the first
  std::vector<std::string> others{};  ///< of the server's other models, for refusals
  bool any_name = false;              ///< requests may use other names, too
  std::int32_t embedding_width = 0;   ///< bounds `dimensions`; 0: not known
  std::int64_t vocab_size = 0;        ///< bounds the token ids of requests; 0: only 0 … 2^31-1 is checked
  bool offers_forms = true;           ///< answers can be held to a form, and thoughts to a limit; false with
                                      ///< --guided-decoding-backend off
  wire::Sampling sampling{};    ///< of a request that says nothing; a seed of 0: each draws one of its own
  bool tells_thoughts = false;  ///< thoughts are told apart from the answer
  ToolForm tool_form{};         ///< empty: no calls are looked for in answers. Any thread
  ThinkingSwitch thinking_switch = ThinkingSwitch::none;
  bool sees = false;                 ///< it reads images and videos
  config::MediaRules media{};        ///< of these
  bool template_reads_tools = true;  ///< false: the chat template would leave a request's tools out
};

/// What a parser is given beside the body.
struct RequestRules {
  const config::LimitOptions& limits;
  const ModelFacts& model;
  std::string_view id{};       ///< part of the answer's id when the request names none: "chatcmpl-" + it
  std::uint64_t random = 0;    ///< the seed of a request that neither it nor the model gives one
  std::int64_t arrived_s = 0;  ///< Unix time
};

/// The request, and what of it has no effect: unknown top-level fields (at most 8, cut to 64 bytes), and the
/// paths of what client_policy.h leaves out (at most 16).
struct Parsed {
  Request request;
  std::vector<std::string> ignored_fields;
};

Result<Parsed> parse_chat(std::string_view body, const RequestRules& rules);
Result<Parsed> parse_completion(std::string_view body, const RequestRules& rules);
Result<Parsed> parse_tokenize(std::string_view body, const RequestRules& rules);
Result<Parsed> parse_detokenize(std::string_view body, const RequestRules& rules);

}  // namespace troupe::http
