#pragma once
// What chunks and whole answers write alike.
#include <string>
#include <string_view>

#include "http/api/openai_response.h"

namespace troupe::http {

/// As JSON: "stop" with its quotes, or null.
std::string_view to_string(FinishReason reason);

/// {"prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details":{"cached_tokens"},
/// "completion_tokens_details":{"reasoning_tokens"}}, with what the usage shows besides.
void append_usage_object(std::string& out, const Usage& usage);

/// ,"image_tokens","video_tokens" of a prompt that has any; else nothing.
void append_visual_tokens(std::string& out, const Usage& usage);

/// ,"speculation":{"draft_tokens","accepted_draft_tokens"} where the server speculates; else nothing.
void append_speculation(std::string& out, const Usage& usage);

/// {"name","arguments"}; the name is left out when it is empty.
void append_function(std::string& out, const ToolCall& call);

}  // namespace troupe::http
