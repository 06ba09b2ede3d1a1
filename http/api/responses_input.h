#pragma once
// instructions and input of POST /v1/responses → chat messages. Private to the parsers of http/api/.
#include "http/api/fields.h"
#include "http/api/media_parts.h"

namespace troupe::http {

/// The messages, moved out of the body; images and videos go to `media`. A failure names its place
/// ("input.2.call_id").
Json read_response_input(Fields& own, const config::LimitOptions& limits, MediaParts& media);

}  // namespace troupe::http
