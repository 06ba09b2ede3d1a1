#pragma once
// Whether a JSON schema allows objects alone, as the arguments of a function have to be.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "http/api/json_body.h"

namespace troupe::http {

struct SchemaFault {
  std::string path;  ///< of the keyword or schema, below the whole schema: ".anyOf.1.type"
  std::string what;  ///< goes on after the path: "must be …"
};

/// The first place that allows something else than an object; nothing if there is none. Follows references
/// within the schema and looks into anyOf, oneOf and allOf. A schema without a type and without any of these,
/// at the root, counts as one of objects. What makes no schema at all is found by the compiler of grammars.
std::optional<SchemaFault> beyond_objects(const Json& schema);

}  // namespace troupe::http
