#pragma once
// The schemas of what is inside the fields of requests, for /openapi.json.

namespace troupe::http {

/// A JSON object: name of a component → schema. Readers may take more than these say, never less.
extern const char* const kRequestSchemas;
/// Those that take the place of others where messages may hold images and videos, and what they refer to.
extern const char* const kVisualRequestSchemas;

}  // namespace troupe::http
