#pragma once
// What a client asked for, checked and in plain types. Whatever is wrong with an OpenAI field has been
// refused before one of these exists, except what only the loaded model can decide: does the prompt fit, is a
// bad word one token. What the chat template reads stays JSON: values of the one parse of the body, within
// its bounds.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "http/api/api.h"
#include "http/api/json_body.h"

namespace troupe::http {

/// Fields that chat and completions share. An empty optional was absent or null in the request: the
/// reader applies generation_config.json and then the product's default.
struct SamplingRequest {
  std::optional<double> temperature;         ///< [0, 2]; 0 is greedy
  std::optional<double> top_p;               ///< [0, 1]; 0 is greedy
  std::optional<double> min_p;               ///< [0, 1]
  std::optional<std::int32_t> top_k;         ///< >= 1; -1 and 0 in the request mean off and arrive as 0
  std::optional<double> repetition_penalty;  ///< (0, 10]
  std::optional<double> presence_penalty;    ///< [-2, 2]
  std::optional<double> frequency_penalty;   ///< [-2, 2]
  std::optional<std::int64_t> max_tokens;    ///< max_completion_tokens when given, else max_tokens; >= 1 in
                                             ///< chat, >= 0 in completions. May exceed the room: clip it
  std::int64_t min_tokens = 0;               ///< 0 <= min_tokens <= max_tokens
  std::optional<std::int64_t> seed;          ///< any signed 64-bit integer
  std::int32_t n = 1;                        ///< [1, limit]
  std::vector<std::string> stop;             ///< none empty
  std::vector<TokenId> stop_token_ids;       ///< within the vocabulary when its size is known
  std::vector<std::pair<TokenId, float>> logit_bias;  ///< ids distinct, bias in [-100, 100]
  std::vector<std::string> bad_words;  ///< strings; whether one is a single token is not known here
  std::vector<TokenId> bad_words_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  std::optional<std::int32_t>
      logprobs;  ///< alternatives to report beside each output token; 0: the token only
  std::optional<std::int32_t> prompt_logprobs;
  bool return_token_ids = false;
  bool cache = true;          ///< false: neither reads nor fills the prefix cache
  std::string cache_salt;     ///< only requests with the same one share cached prefixes; empty: none given
  std::string cache_key;      ///< requests with the same one have much in common; empty: none given
  std::int32_t priority = 0;  ///< lower first
  std::int32_t tokens_per_event = 1;  ///< of a stream; >= 1
  std::int32_t truncate_prompt_tokens =
      0;                          ///< of a prompt's end, the rest is left out; 0: all; -1: as many as fit
  std::optional<double> timeout;  ///< seconds from arrival to the end of the answer, (0, 86400]
  bool stream = false;
  bool include_usage = false;           ///< stream_options.include_usage: one more chunk with the usage
  bool continuous_usage_stats = false;  ///< the usage in every chunk
};

/// The form that an answer is held to, as the client described it: response_format, guided_* and their kin,
/// or what tool_choice asks for.
struct AnswerForm {
  enum class Kind : std::uint8_t { free, json_object, json_schema, regex, choice, grammar, structural_tag };
  Kind kind = Kind::free;
  Json value;  ///< json_schema, structural_tag: the object; choice: a list of strings; regex, grammar (EBNF):
               ///< a string
  std::string param;  ///< the field that it came from, for errors: "response_format.json_schema.schema"
  /// Parts of `value` that the request has elsewhere: {".format.json_schema", "tools.0.function.parameters"}.
  std::vector<std::pair<std::string, std::string>> places{};
};

/// What the chat template turns into a prompt.
struct Conversation {
  Json messages;  ///< array of {role, content, …}; null: none. Roles are system, user, assistant, tool,
                  ///< function; content is a string, null, a list of {type: "text", text} or, for a tool,
                  ///< an object. tool_calls[].function.arguments is absent, null, an object, or a
                  ///< text that begins as one
  Json tools;     ///< array of function tools; null: none, or tool_choice was "none"
  Json template_kwargs;  ///< an object; null: none
  bool add_generation_prompt = true;
  bool continue_final_message =
      false;  ///< the prompt ends with the text of the last message, which is the assistant's
  bool without_template = false;  ///< the first message's content is the prompt
};

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

enum class ReasoningEffort : std::uint8_t { none, minimal, low, medium, high };

/// How long the model may think and answer.
struct ThinkingRules {
  std::optional<std::int64_t> max_tokens;                 ///< of the thoughts; >= 0
  std::string max_tokens_field = "reasoning_max_tokens";  ///< that max_tokens came from, for errors
  std::optional<std::int64_t> response_max_tokens;        ///< of the text behind them; >= 1
  std::optional<ReasoningEffort> effort;
};

struct ChatRequest {
  std::string model;     ///< as given, one of ModelFacts::names when those are known; empty: absent
  std::string id;        ///< of the answer, "chatcmpl-…" (from request_id or user when given)
  Api api = Api::chat;   ///< chat, responses or messages
  std::string settings;  ///< of Api::responses: the members of the answer that repeat the request, as JSON
                         ///< without braces
  Conversation conversation;
  std::vector<TokenId> prompt_token_ids;  ///< when not empty, the prompt itself: no template, no tokenizer
  ToolRules tools;
  ThinkingRules thinking;
  AnswerForm form;
  SamplingRequest sampling;
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;  ///< text (special tokens count), or ids

struct CompletionRequest {
  std::string model;
  std::string id;               ///< of the answer, "cmpl-…"
  std::vector<Prompt> prompts;  ///< at least one, none empty; choice i of prompt p has index p * n + i
  bool echo = false;
  std::optional<std::int32_t> best_of;  ///< >= n; in a stream n
  AnswerForm form;
  SamplingRequest sampling;
};

/// Either a raw prompt or a conversation.
struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;
  bool add_special_tokens = true;  ///< of a raw prompt
  Conversation conversation;       ///< set when `prompt` is not
  std::optional<ReasoningEffort>
      effort;  ///< of the answer to the conversation; the template may depend on it
  bool return_token_strs = false;
  Api api = Api::tokenize;  ///< or count_tokens: the answer is the number of tokens alone
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

/// Pages and actions without parameters. Health is not among them: the server answers it from
/// Backend::health().
struct InfoRequest {
  enum class Kind { models, model, metrics, config_info, reset_prefix_cache, events };
  Kind kind = Kind::models;
  std::string
      name;  ///< of model: what stands behind /v1/models/; of events: the id of a request to follow, or empty
};

using RequestBody =
    std::variant<ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, InfoRequest>;

/// Which one it is; Api::chat for an InfoRequest.
inline Api api_of(const RequestBody& body) {
  if (const auto* chat = std::get_if<ChatRequest>(&body)) return chat->api;
  if (const auto* tokenize = std::get_if<TokenizeRequest>(&body)) return tokenize->api;
  if (std::holds_alternative<CompletionRequest>(body)) return Api::completions;
  return std::holds_alternative<DetokenizeRequest>(body) ? Api::detokenize : Api::chat;
}

}  // namespace troupe::http
