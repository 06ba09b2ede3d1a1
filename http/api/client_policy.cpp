#include "http/api/client_policy.h"

#include <algorithm>
#include <string>

#include "http/api/chat_body.h"
#include "http/api/request_fields.h"

namespace troupe::http {
namespace {

using When = FieldPolicy::When;

constexpr std::uint16_t kChoiceApis = kChatApi | kCompletionsApi;
constexpr std::uint16_t kTurnApis = kMessagesApi | kCountTokensApi;
constexpr std::uint16_t kPartApis = kResponsesApi | kMessagesApi;  // answers made of parts
constexpr std::uint16_t kAnswerApis = kChoiceApis | kPartApis;

constexpr std::string_view kNotOffered = "is not offered by this server";
constexpr std::string_view kNothingStored =
    "is not offered: this server stores nothing. Send the earlier items in input";
constexpr std::string_view kScoresOfChat =
    "is not offered here; /v1/chat/completions gives log-probabilities";
constexpr std::string_view kRawScores = "is not offered; log-probabilities are those before sampling";
constexpr std::string_view kThoughtsOfChat =
    "is for /v1/chat/completions: a completion has no thoughts apart";

constexpr std::string_view kChatOnly = "is for /v1/chat/completions";
constexpr std::string_view kSystemMessage =
    "is no field of this API: here it is a message with the role system";

constexpr FieldPolicy kFieldPolicies[] = {
    {"add_generation_prompt", kPartApis, When::off, PartUse::refused,
     "false is for /v1/chat/completions: here an answer is a turn of its own"},
    {"allowed_token_ids", kAnswerApis, When::given, PartUse::refused, kNotOffered},
    {"audio", kChoiceApis, When::given, PartUse::refused, kNotOffered},
    {"background", kResponsesApi, When::on, PartUse::refused,
     "true is not offered: this server stores no answers. Use stream"},
    {"best_of", kChatApi | kPartApis, When::above_one, PartUse::refused, "above 1 is for /v1/completions"},
    {"chat_template", kAnswerApis, When::given, PartUse::refused, kNotOffered},
    {"completion_token_ids", kAnswerApis, When::given, PartUse::refused, kNotOffered},
    {"container", kTurnApis, When::filled, PartUse::refused, kNotOffered},
    // Which earlier items a server may drop when the context grows. Nothing is dropped here.
    {"context_management", kResponsesApi | kTurnApis, When::filled, PartUse::left_out, {}},
    {"continue_final_message", kCompletionsApi | kPartApis, When::on, PartUse::refused, kChatOnly},
    {"conversation", kResponsesApi, When::given, PartUse::refused, kNothingStored},
    {"disable_chat_template", kPartApis, When::on, PartUse::refused, kChatOnly},
    {"echo", kChatApi | kPartApis, When::on, PartUse::refused, "is for /v1/completions"},
    {"functions", kCompletionsApi, When::filled, PartUse::refused, kChatOnly},
    {"functions", kPartApis, When::filled, PartUse::refused, "is no field of this API: here it is tools"},
    {"guided_whitespace_pattern", kAnswerApis, When::given, PartUse::refused,
     "is not offered by this server; --guided-decoding-disable-any-whitespace turns white space off for all"},
    {"instructions", kChoiceApis | kTurnApis, When::filled, PartUse::refused, kSystemMessage},
    {"logits_processors_args", kAnswerApis, When::given, PartUse::refused, kNotOffered},
    {"logprobs", kPartApis, When::filled, PartUse::refused, kScoresOfChat},
    {"max_completion_tokens", kMessagesApi, When::given, PartUse::refused,
     "is no field of this API: here it is max_tokens"},
    {"max_output_tokens", kChoiceApis | kMessagesApi, When::given, PartUse::refused,
     "is no field of this API: here it is max_tokens"},
    {"mcp_servers", kTurnApis, When::filled, PartUse::refused, kNotOffered},
    {"messages", kResponsesApi, When::given, PartUse::refused,
     "belongs to /v1/chat/completions; here it is input"},
    {"mm_processor_kwargs", kCompletionsApi, When::given, PartUse::refused, kChatOnly},
    {"modalities", kChatApi, When::not_text, PartUse::refused, "must be [\"text\"]"},
    {"output_config", kChoiceApis, When::filled, PartUse::refused,
     "is no field of this API: here it is reasoning_effort and response_format"},
    {"output_config", kResponsesApi, When::filled, PartUse::refused,
     "is no field of this API: here it is reasoning.effort and text.format"},
    {"previous_response_id", kResponsesApi, When::given, PartUse::refused, kNothingStored},
    {"prompt", kResponsesApi, When::given, PartUse::refused,
     "is not offered: this server stores no prompts. Use instructions and input"},
    {"prompt_logprobs", kPartApis, When::given, PartUse::refused, kScoresOfChat},
    {"prompt_token_ids", kPartApis, When::filled, PartUse::refused, kChatOnly},
    {"reasoning_max_tokens", kCompletionsApi, When::given, PartUse::refused, kThoughtsOfChat},
    {"response_format", kResponsesApi, When::filled, PartUse::refused,
     "is no field of this API: here it is text.format"},
    {"response_format", kMessagesApi, When::filled, PartUse::refused,
     "is no field of this API: here it is output_config.format"},
    {"response_max_tokens", kCompletionsApi, When::given, PartUse::refused, kThoughtsOfChat},
    {"return_token_ids", kPartApis, When::on, PartUse::refused,
     "true is not offered here; /v1/chat/completions gives token ids"},
    {"stop_sequences", kChoiceApis | kResponsesApi, When::filled, PartUse::refused,
     "is no field of this API: here it is stop"},
    {"suffix", kCompletionsApi, When::filled, PartUse::refused, kNotOffered},
    {"system", kChoiceApis | kResponsesApi, When::filled, PartUse::refused, kSystemMessage},
    {"temp_scaled_logprobs", kChoiceApis, When::on, PartUse::refused, kRawScores},
    {"text", kChoiceApis | kMessagesApi, When::filled, PartUse::refused, "belongs to /v1/responses"},
    {"thinking_token_budget", kCompletionsApi, When::given, PartUse::refused, kThoughtsOfChat},
    {"thinking_token_budget", kMessagesApi, When::given, PartUse::refused,
     "is no field of this API: here it is thinking.budget_tokens"},
    {"tools", kCompletionsApi, When::filled, PartUse::refused, kChatOnly},
    {"top_logprobs", kMessagesApi, When::filled, PartUse::refused, kScoresOfChat},
    {"top_p_normalized_logprobs", kChoiceApis, When::on, PartUse::refused, kRawScores},
    {"web_search_options", kChoiceApis, When::given, PartUse::refused, kNotOffered},
};

constexpr std::string_view kAnotherServer =
    "holds what only the server that made it can read: send the items that it stands for";

constexpr ItemPolicy kItemPolicies[] = {
    // The client runs these: the model sees what it was asked for and what came of it.
    {"apply_patch_call", PartUse::call, "apply_patch", "operation"},
    {"apply_patch_call_output", PartUse::result},
    {"custom_tool_call", PartUse::call, "", "input"},
    {"custom_tool_call_output", PartUse::result},
    {"local_shell_call", PartUse::call, "local_shell", "action"},
    {"local_shell_call_output", PartUse::result},
    {"shell_call", PartUse::call, "shell", "action"},
    {"shell_call_output", PartUse::result},
    // Another server ran these, and told of them in its answer.
    {"code_interpreter_call", PartUse::left_out},
    {"file_search_call", PartUse::left_out},
    {"image_generation_call", PartUse::left_out},
    {"mcp_approval_request", PartUse::left_out},
    {"mcp_approval_response", PartUse::left_out},
    {"mcp_call", PartUse::left_out},
    {"mcp_list_tools", PartUse::left_out},
    {"tool_search_call", PartUse::left_out},
    {"tool_search_output", PartUse::left_out},
    {"web_search_call", PartUse::left_out},
    {"compaction", PartUse::refused, "", kAnotherServer},
    {"compaction_summary", PartUse::refused, "", kAnotherServer},
    {"item_reference", PartUse::refused, "",
     "refers to a stored item, but this server stores nothing: send the item itself"},
};

constexpr std::string_view kLeftOutBlocks[] = {
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "container_upload",
    "mcp_tool_result",
    "mcp_tool_use",
    "redacted_thinking",  // encrypted by another server
    "server_tool_use",
    "text_editor_code_execution_tool_result",
    "tool_reference",
    "tool_search_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
};

struct NamedEffort {
  std::string_view name;
  ReasoningEffort effort;
};
constexpr NamedEffort kNamedEfforts[] = {
    {"none", ReasoningEffort::none}, {"minimal", ReasoningEffort::minimal},
    {"low", ReasoningEffort::low},   {"medium", ReasoningEffort::medium},
    {"high", ReasoningEffort::high}, {"xhigh", ReasoningEffort::high},
    {"max", ReasoningEffort::high},
};

bool is_filled_value(const Json& value) {
  if (value.is_string()) return value != "";
  return !value.empty() && value != 0 && value != false;
}

bool applies(Fields& fields, const FieldPolicy& row, const Json& value) {
  switch (row.when) {
    case When::given: return true;
    case When::filled: return is_filled_value(value);
    case When::on: return fields.boolean(row.field);
    case When::off: return !fields.boolean(row.field, true);
    case When::above_one: return value.is_number() && value > 1;
    case When::not_text: return value != Json{"text"};
  }
  return true;
}

}  // namespace

std::span<const FieldPolicy> field_policies() { return kFieldPolicies; }

void apply_policies(Fields& fields, ApiSet api) {
  for (const FieldPolicy& row : kFieldPolicies) {
    const Json* value = (row.apis & api) != 0 ? fields.find(row.field) : nullptr;
    if (value == nullptr) continue;
    if (!applies(fields, row, *value)) continue;
    if (row.use == PartUse::left_out) {
      fields.leave_out(fields.path(row.field));
    } else if (row.when == When::not_text) {
      fields.fail({Code::unsupported, "modalities must be [\"text\"]", "modalities", "unsupported_modality"});
    } else {
      fields.fail(not_offered(std::string(row.field), std::string(row.why)));
    }
  }
}

bool is_left_out_tool(const Json& tool, std::string_view known) {
  const std::string* type = json::text(json::member(tool, "type"));
  return type != nullptr && *type != known;
}

std::optional<ReasoningEffort> effort_of(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kNamedEfforts), std::end(kNamedEfforts),
                                         [&](const auto& row) { return row.name == name; });
  if (found == std::end(kNamedEfforts)) return {};
  return found->effort;
}

const ItemPolicy* find_item_policy(std::string_view type) {
  const auto* const found = std::find_if(std::begin(kItemPolicies), std::end(kItemPolicies),
                                         [&](const auto& row) { return row.type == type; });
  return found == std::end(kItemPolicies) ? nullptr : found;
}

bool is_left_out_block(const Json& block) {
  return std::any_of(std::begin(kLeftOutBlocks), std::end(kLeftOutBlocks),
                     [&](std::string_view type) { return json::is(json::member(block, "type"), type); });
}

}  // namespace troupe::http
