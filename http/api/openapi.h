#pragma once
// /openapi.json: the routes, and the fields of their bodies from request_fields().
#include <string>

#include "config/options.h"

namespace troupe::http {

/// The document, in OpenAPI 3.1. `sees`: messages may hold images and videos.
std::string openapi_document(const config::LimitOptions& limits, bool sees = false);

}  // namespace troupe::http
