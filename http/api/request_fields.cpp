#include "http/api/request_fields.h"

#include <algorithm>
#include <limits>

namespace troupe::http {
namespace {

constexpr double kOpen = std::numeric_limits<double>::infinity();
constexpr std::uint16_t kOpenAi = kChatApi | kCompletionsApi;
constexpr std::uint16_t kMessageApis = kMessagesApi | kCountTokensApi;
constexpr std::uint16_t kParts = kResponsesApi | kMessagesApi;              // answers made of parts
constexpr std::uint16_t kShared = kChatApi | kResponsesApi | kMessagesApi;  // with the same meaning
constexpr std::uint16_t kAnswering = kShared | kCompletionsApi;
constexpr std::size_t kMaxIgnoredFields = 8;
constexpr std::size_t kMaxIgnoredBytes = 64;
constexpr std::size_t kMaxLeftOut = 16;

constexpr RequestField kFields[] = {
    {"add_generation_prompt", kChatApi | kTokenizeApi, FieldType::boolean,
     "end the prompt where the assistant begins to speak"},
    {"add_generation_prompt", kEmbeddingsApi, FieldType::boolean,
     "true: end messages where the assistant begins to speak"},
    {"add_generation_prompt", kParts, FieldType::boolean, "false is not offered: for chats"},
    {"add_special_tokens", kAnswering | kTokenizeApi | kEmbeddingsApi, FieldType::boolean,
     "those that the tokenizer adds; ERNIE's add none, so both values give the same prompt"},
    {"allowed_token_ids", kAnswering, FieldType::list, "not offered"},
    {"audio", kOpenAi, FieldType::object, "not offered"},
    {"background", kResponsesApi, FieldType::boolean, "true is not offered"},
    {"bad_words", kAnswering, FieldType::list, "strings of one token each that must not occur"},
    {"bad_words_token_ids", kAnswering, FieldType::list, "tokens that must not occur"},
    {"best_of",
     kCompletionsApi,
     FieldType::integer,
     "candidates per prompt, of which the n likeliest are given",
     {1, kOpen}},
    {"best_of", kChatApi | kParts, FieldType::integer, "above 1 is not offered: for completions"},
    {"cache", kAnswering | kEmbeddingsApi, FieldType::boolean,
     "false: neither reads nor fills the prefix cache"},
    {"cache_control", kMessageApis, FieldType::object, ""},
    {"cache_salt", kAnswering | kEmbeddingsApi, FieldType::string,
     "only requests with the same salt share cached prefixes"},
    {"chat_template", kAnswering, FieldType::string, "not offered"},
    {"chat_template_kwargs", kShared | kTokenizeApi | kCountTokensApi | kEmbeddingsApi, FieldType::object,
     "variables of the chat template"},
    {"chat_template_kwargs", kCompletionsApi, FieldType::object, ""},
    {"client_metadata", kResponsesApi, FieldType::object, ""},
    {"collect_metrics", kOpenAi, FieldType::boolean, ""},
    {"completion_token_ids", kAnswering, FieldType::list, "not offered"},
    {"container", kMessageApis, FieldType::any, "not offered"},
    {"context_management", kResponsesApi | kMessageApis, FieldType::any,
     "left out: nothing of a conversation is dropped"},
    {"continue_final_message", kChatApi, FieldType::boolean,
     "the answer goes on with the last message, the assistant's; needs add_generation_prompt false"},
    {"continue_final_message", kCompletionsApi | kParts, FieldType::boolean,
     "true is not offered: for chats"},
    {"conversation", kResponsesApi, FieldType::any, "not offered: nothing is stored"},
    {"diagnostics", kMessagesApi, FieldType::object, ""},
    {"dimensions",
     kEmbeddingsApi,
     FieldType::integer,
     "the first so many numbers of each embedding; at most those that the model has",
     {1, kOpen}},
    {"disable_chat_template", kChatApi, FieldType::boolean, "the first message's content is the prompt"},
    {"disable_chat_template", kParts, FieldType::boolean, "true is not offered: for chats"},
    {"disaggregate_info", kOpenAi, FieldType::any, ""},
    {"echo", kCompletionsApi, FieldType::boolean, "the prompt before the answer"},
    {"echo", kChatApi | kParts, FieldType::boolean, "true is not offered: for completions"},
    {"enable_thinking", kShared | kTokenizeApi | kCountTokensApi, FieldType::any,
     "as in chat_template_kwargs"},
    {"enable_thinking", kCompletionsApi, FieldType::any, ""},
    {"encoding_format", kEmbeddingsApi, FieldType::string, "float or base64, of little-endian float32"},
    {"frequency_penalty",
     kAnswering,
     FieldType::number,
     "penalty for each time that a token has occurred",
     {-2, 2}},
    {"function_call", kChatApi | kTokenizeApi, FieldType::any, "older form of tool_choice"},
    {"functions", kChatApi | kTokenizeApi, FieldType::list, "older form of tools"},
    {"functions", kCompletionsApi | kParts, FieldType::list, "not offered: for chats; others have tools"},
    {"guided_choice", kAnswering, FieldType::list, "the answer is one of these strings"},
    {"guided_grammar", kAnswering, FieldType::string, "the answer follows this EBNF grammar"},
    {"guided_json", kAnswering, FieldType::any, "the answer fits this JSON schema"},
    {"guided_json_object", kAnswering, FieldType::boolean, "the answer is a JSON object"},
    {"guided_regex", kAnswering, FieldType::string, "the answer matches this regular expression"},
    {"guided_whitespace_pattern", kAnswering, FieldType::string, "not offered"},
    {"ignore_eos", kAnswering, FieldType::boolean, "the model's end does not end the answer"},
    {"include", kResponsesApi, FieldType::list, "log-probabilities are not offered"},
    {"include_draft_logprobs", kOpenAi, FieldType::boolean, ""},
    {"include_logprobs_decode_token", kOpenAi, FieldType::boolean, ""},
    {"include_stop_str_in_output", kAnswering, FieldType::boolean, "leave the stop string in the text"},
    {"inference_geo", kMessagesApi, FieldType::string, ""},
    {"input", kEmbeddingsApi, FieldType::any, "a text, token ids, or a list of up to 2048 of either"},
    {"input", kResponsesApi, FieldType::any,
     "a string, or items: message, reasoning, function_call, function_call_output, and calls of other tools"},
    {"instructions", kResponsesApi, FieldType::string, "a system message before the input"},
    {"instructions", kOpenAi | kMessageApis, FieldType::string,
     "not offered: give a message with the role system"},
    {"logit_bias", kAnswering, FieldType::object, "token id to bias, -100 to 100"},
    {"logits_processors_args", kAnswering, FieldType::object, "not offered"},
    {"logprobs", kChatApi, FieldType::boolean, "give the log-probability of each token"},
    {"logprobs",
     kCompletionsApi,
     FieldType::integer,
     "give so many alternatives beside each token; -1: the whole vocabulary, where --max-completion-logprobs "
     "allows it",
     {-1, kOpen}},
    {"logprobs", kParts, FieldType::any, "not offered: chats give log-probabilities"},
    {"max_completion_tokens", kOpenAi, FieldType::integer,
     "most tokens of the answer, thoughts too; goes before max_tokens"},
    {"max_completion_tokens", kMessagesApi, FieldType::integer, "not offered: use max_tokens"},
    {"max_completion_tokens", kResponsesApi, FieldType::integer, "as max_output_tokens", {1, kOpen}},
    {"max_output_tokens",
     kResponsesApi,
     FieldType::integer,
     "most tokens of the answer, thoughts too",
     {1, kOpen}},
    {"max_output_tokens", kOpenAi | kMessagesApi, FieldType::integer, "not offered: use max_tokens"},
    {"max_streaming_response_tokens",
     kAnswering,
     FieldType::integer,
     "tokens that an event of a stream collects",
     {1, 2147483647}},
    {"max_tokens", kOpenAi, FieldType::integer, "most tokens of the answer, thoughts too"},
    {"max_tokens",
     kMessagesApi,
     FieldType::integer,
     "most tokens of the answer, thoughts too; required",
     {1, kOpen}},
    {"max_tokens", kResponsesApi, FieldType::integer, "as max_output_tokens", {1, kOpen}},
    {"max_tool_calls", kResponsesApi, FieldType::integer, ""},
    {"mcp_servers", kMessageApis, FieldType::list, "not offered"},
    {"messages", kChatApi | kTokenizeApi, FieldType::list, "the conversation"},
    {"messages", kEmbeddingsApi, FieldType::list, "a conversation, instead of the input"},
    {"messages", kMessageApis, FieldType::list, "the conversation, without its system message"},
    {"messages", kResponsesApi, FieldType::list, "not offered: use input"},
    {"metadata", kChatApi, FieldType::object, "enable_thinking in it counts as a template variable"},
    {"metadata", kCompletionsApi, FieldType::object, ""},
    {"metadata", kResponsesApi, FieldType::object, "up to 16 strings, repeated in the answer"},
    {"metadata", kMessageApis, FieldType::object, ""},
    {"min_p",
     kAnswering,
     FieldType::number,
     "drop tokens less likely than this share of the likeliest",
     {0, 1}},
    {"min_tokens", kAnswering, FieldType::integer, "tokens before which the answer cannot end", {0, kOpen}},
    {"mm_hashes", kOpenAi, FieldType::any, ""},
    {"mm_processor_kwargs", kShared | kTokenizeApi | kCountTokensApi, FieldType::object,
     "image_min_pixels, image_max_pixels, video_min_pixels, video_max_pixels, video_fps, video_min_frames, "
     "video_max_frames, video_target_frames, video_frames_sample"},
    {"mm_processor_kwargs", kCompletionsApi, FieldType::object, "not offered: for chats"},
    {"modalities", kChatApi, FieldType::list, "text only"},
    {"modalities", kCompletionsApi, FieldType::list, ""},
    {"model", kAnswering | kTokenizeApi | kDetokenizeApi | kCountTokensApi | kEmbeddingsApi,
     FieldType::string, "a served name, or default"},
    {"n", kOpenAi, FieldType::integer, "choices per prompt", {1, kOpen}},
    {"n", kParts, FieldType::integer, "a response is one answer", {1, 1}},
    {"normalize", kEmbeddingsApi, FieldType::boolean, "false: the numbers as the model has them"},
    {"output_config", kMessageApis, FieldType::object, "effort; format of type json_schema"},
    {"output_config", kOpenAi | kResponsesApi, FieldType::object, "not offered: for messages"},
    {"parallel_tool_calls", kShared | kTokenizeApi | kCountTokensApi, FieldType::boolean,
     "false: the answer ends with its first call"},
    {"prediction", kChatApi, FieldType::object,
     "what the answer is likely to be, of type content: drafts for a server that speculates; changes no "
     "answer"},
    {"prediction", kCompletionsApi, FieldType::object, ""},
    {"presence_penalty", kAnswering, FieldType::number, "penalty for tokens that have occurred", {-2, 2}},
    {"previous_response_id", kResponsesApi, FieldType::string, "not offered: nothing is stored"},
    {"priority",
     kAnswering | kEmbeddingsApi,
     FieldType::integer,
     "lower runs first",
     {-2147483647, 2147483647}},
    {"prompt", kCompletionsApi | kTokenizeApi, FieldType::any,
     "text or token ids; for completions also a list of these"},
    {"prompt", kResponsesApi, FieldType::object, "not offered: nothing is stored"},
    {"prompt_cache_key", kOpenAi | kResponsesApi, FieldType::string, ""},
    {"prompt_cache_options", kResponsesApi, FieldType::object, ""},
    {"prompt_cache_retention", kOpenAi | kResponsesApi, FieldType::string, ""},
    {"prompt_logprobs",
     kOpenAi,
     FieldType::integer,
     "log-probabilities of the prompt's tokens, with so many alternatives; -1: the whole vocabulary, where "
     "--max-logprobs allows it",
     {-1, kOpen}},
    {"prompt_logprobs", kParts, FieldType::integer, "not offered: chats give log-probabilities"},
    {"prompt_token_ids", kOpenAi, FieldType::list, "the prompt as token ids"},
    {"prompt_token_ids", kParts, FieldType::list, "not offered: for chats and completions"},
    {"reasoning", kResponsesApi, FieldType::object,
     "effort: none, minimal, low, medium, high; xhigh and max mean high"},
    {"reasoning_effort", kChatApi, FieldType::string,
     "none, minimal, low, medium, high; xhigh and max mean high"},
    {"reasoning_effort", kCompletionsApi, FieldType::string, ""},
    {"reasoning_effort", kParts, FieldType::string, "as the effort of reasoning or output_config"},
    {"reasoning_max_tokens", kShared, FieldType::integer, "most tokens of the thoughts", {1, kOpen}},
    {"reasoning_max_tokens", kCompletionsApi, FieldType::integer, "not offered: chats have thoughts"},
    {"repetition_penalty",
     kAnswering,
     FieldType::number,
     "divides the logits of tokens that have occurred; above 0",
     {-kOpen, 10}},
    {"request_id", kAnswering | kEmbeddingsApi, FieldType::string, "part of the answer's id"},
    {"response_format", kOpenAi, FieldType::object, "text, json_object, json_schema"},
    {"response_format", kResponsesApi, FieldType::object, "not offered: use text.format"},
    {"response_format", kMessagesApi, FieldType::object, "not offered: use output_config.format"},
    {"response_max_tokens", kShared, FieldType::integer, "most tokens behind the thoughts", {1, kOpen}},
    {"response_max_tokens", kCompletionsApi, FieldType::integer, "not offered: use max_tokens"},
    {"return_token_ids", kOpenAi, FieldType::boolean, "give the token ids too"},
    {"return_token_ids", kParts, FieldType::boolean, "true is not offered: chats give token ids"},
    {"return_token_strs", kTokenizeApi, FieldType::boolean, "give the text of each token"},
    {"safety_identifier", kOpenAi | kResponsesApi, FieldType::string, ""},
    {"seed", kAnswering, FieldType::integer, "the same seed gives the same answer"},
    {"service_tier", kOpenAi | kResponsesApi | kMessagesApi, FieldType::string, ""},
    {"speed", kMessageApis, FieldType::string, ""},
    {"stop", kAnswering, FieldType::any, "strings that end the answer"},
    {"stop_sequences", kMessagesApi, FieldType::list, "strings that end the answer"},
    {"stop_sequences", kOpenAi | kResponsesApi, FieldType::list, "not offered: use stop"},
    {"stop_token_ids", kAnswering, FieldType::list, "tokens that end the answer"},
    {"store", kOpenAi, FieldType::boolean, ""},
    {"store", kResponsesApi, FieldType::boolean, "accepted; nothing is stored"},
    {"stream", kAnswering, FieldType::boolean, "send the answer as events while it is made"},
    {"stream_options", kOpenAi, FieldType::object, "include_usage, continuous_usage_stats"},
    {"stream_options", kResponsesApi, FieldType::object, ""},
    {"structural_tag", kAnswering, FieldType::any, "the form of the answer as a structural tag"},
    {"structured_outputs", kAnswering, FieldType::object,
     "the form of the answer: json, regex, choice, grammar, json_object or structural_tag"},
    {"suffix", kCompletionsApi, FieldType::any, "not offered"},
    {"system", kMessageApis, FieldType::any, "the system message: a string or text blocks"},
    {"system", kOpenAi | kResponsesApi, FieldType::any, "not offered: give a message with the role system"},
    {"temp_scaled_logprobs", kOpenAi, FieldType::boolean, "true is not offered"},
    {"temperature", kAnswering, FieldType::number, "0 is greedy", {0, 2}},
    {"text", kResponsesApi, FieldType::object, "format: text, json_object, json_schema"},
    {"text", kOpenAi | kMessagesApi, FieldType::object, "not offered: for responses"},
    {"thinking", kMessageApis, FieldType::object, "enabled with budget_tokens, adaptive, disabled"},
    {"thinking_token_budget",
     kChatApi | kResponsesApi,
     FieldType::integer,
     "most tokens of the thoughts",
     {0, kOpen}},
    {"thinking_token_budget", kCompletionsApi, FieldType::integer, "not offered: chats have thoughts"},
    {"thinking_token_budget", kMessagesApi, FieldType::integer, "not offered: use thinking.budget_tokens"},
    {"timeout",
     kAnswering | kEmbeddingsApi,
     FieldType::number,
     "seconds from arrival to the end of the answer; above 0; at most --request-timeout",
     {-kOpen, 86400}},
    {"tokens", kDetokenizeApi, FieldType::list, "token ids"},
    {"tool_choice", kChatApi | kResponsesApi | kTokenizeApi, FieldType::any,
     "none, auto, required, or a function"},
    {"tool_choice", kMessageApis, FieldType::object, "of type auto, any, tool or none"},
    {"tools", kChatApi | kResponsesApi | kTokenizeApi, FieldType::list,
     "functions that the model may call; other kinds are left out"},
    {"tools", kMessageApis, FieldType::list,
     "tools that the model may use; kinds without a schema are left out"},
    {"tools", kCompletionsApi, FieldType::list, "not offered: for chats"},
    {"top_k", kAnswering, FieldType::integer, "sample from so many tokens; 0 and -1: all", {-1, 2147483647}},
    {"top_logprobs",
     kChatApi,
     FieldType::integer,
     "alternatives beside each token; -1: the whole vocabulary, where --max-logprobs allows it",
     {-1, kOpen}},
    {"top_logprobs", kResponsesApi, FieldType::integer, "above 0 is not offered", {0, 20}},
    {"top_logprobs", kMessagesApi, FieldType::integer, "above 0 is not offered"},
    {"top_p",
     kAnswering,
     FieldType::number,
     "sample from the likeliest tokens of this probability; 0 is greedy",
     {0, 1}},
    {"top_p_normalized_logprobs", kOpenAi, FieldType::boolean, "true is not offered"},
    {"trace_context", kOpenAi, FieldType::any, ""},
    {"truncate_prompt_tokens",
     kAnswering | kEmbeddingsApi,
     FieldType::integer,
     "only so many tokens of the prompt's end are used; -1: as many as fit",
     {-1, 2147483647}},
    {"truncation", kResponsesApi, FieldType::string, ""},
    {"user", kOpenAi | kEmbeddingsApi, FieldType::string, "part of the answer's id"},
    {"user", kResponsesApi, FieldType::string, ""},
    {"verbosity", kOpenAi, FieldType::string, ""},
    {"web_search_options", kOpenAi, FieldType::object, "not offered"},
};
static_assert(std::is_sorted(std::begin(kFields), std::end(kFields),
                             [](const RequestField& a, const RequestField& b) { return a.name < b.name; }));

bool is_known(std::string_view name, ApiSet apis) {
  const auto* field = std::lower_bound(std::begin(kFields), std::end(kFields), name,
                                       [](const RequestField& f, std::string_view n) { return f.name < n; });
  for (; field != std::end(kFields) && field->name == name; ++field) {
    if ((field->apis & apis) != 0) return true;
  }
  return false;
}

}  // namespace

std::span<const RequestField> request_fields() { return kFields; }

bool is_shared(const RequestField& field) { return (field.apis & kShared) == kShared; }

std::vector<std::string> unknown_fields(const Json& body, ApiSet apis) {
  std::vector<std::string> names;
  for (const auto& [key, value] : json::members(body)) {
    if (names.size() == kMaxIgnoredFields) break;
    if (is_known(key, apis)) continue;
    std::size_t end = std::min(key.size(), kMaxIgnoredBytes);
    while (end > 0 && end < key.size() && (static_cast<unsigned char>(key[end]) & 0xC0) == 0x80) --end;
    names.push_back(key.substr(0, end));
  }
  return names;
}

Result<std::vector<std::string>> ignored_fields(const Json& body, ApiSet apis, bool strict,
                                                std::span<const std::string> left_out) {
  std::vector<std::string> names = unknown_fields(body, apis);
  if (strict && !names.empty()) {
    return invalid("There is no field \"" + names.front() + "\" (--strict-requests)", names.front(),
                   "unknown_parameter");
  }
  if (strict && !left_out.empty()) {
    return invalid(left_out.front() +
                       " would be left out, since this server does not offer its kind (--strict-requests)",
                   left_out.front(), "unknown_parameter");
  }
  const auto listed = left_out.first(std::min(left_out.size(), kMaxLeftOut));
  names.insert(names.end(), listed.begin(), listed.end());
  return names;
}

}  // namespace troupe::http
