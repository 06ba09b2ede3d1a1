#pragma once
// system and messages of POST /v1/messages → chat messages. Private to the parsers of http/.
#include "http/fields.h"
#include "http/openai_request.h"

namespace troupe::http {

/// The messages, moved out of the body. `answered`: the last one has to leave the turn to the assistant. A
/// failure names its place ("messages.2.content.0.tool_use_id").
Json read_turns(Fields& own, const config::LimitOptions& limits, bool answered);

}  // namespace troupe::http
