#pragma once
// The schemas of the answers, for /openapi.json.

namespace troupe::http {

/// A JSON object: name of a component → schema.
extern const char* const kAnswerSchemas;

}  // namespace troupe::http
