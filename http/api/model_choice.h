#pragma once
// Which of several models a body asks for, before it is parsed by that model's rules.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "http/api/openai_request.h"

namespace troupe::http {

/// The text of the top-level field "model" of a JSON object. Empty: there is none, it is no text, or the body
/// is broken, which the parser then says.
std::string model_of_body(std::string_view body);

/// Index of the model that has the name, 0 being `first`. Of a name that none has, and of none: 0, whose
/// rules then answer or refuse.
std::size_t choose_model(std::string_view name, const ModelFacts& first, const std::vector<ModelFacts>& more);

}  // namespace troupe::http
