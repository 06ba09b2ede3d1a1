#pragma once
// system and messages of POST /v1/messages → chat messages. Private to the parsers of http/api/.
#include "http/api/fields.h"
#include "http/api/media_parts.h"

namespace troupe::http {

/// The messages, moved out of the body; images and videos go to `media`. `answered`: the last one has to
/// leave the turn to the assistant. A failure names its place ("messages.2.content.0.tool_use_id").
Json read_turns(Fields& own, const config::LimitOptions& limits, bool answered, MediaParts& media);

}  // namespace troupe::http
