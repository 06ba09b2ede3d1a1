#pragma once
// system and messages of POST /v1/messages → chat messages. Private to the parsers of http/api/.
#include "http/api/fields.h"
#include "http/api/openai_request.h"

namespace troupe::http {

/// The messages, moved out of the body. `answered`: the last one has to leave the turn to the assistant. A
/// failure names its place ("messages.2.content.0.tool_use_id").
Json read_turns(Fields& own, const config::LimitOptions& limits, bool answered);

}  // namespace troupe::http
