#pragma once
// The fields that hold an answer to a form → AnswerForm: response_format, OpenAI's; guided_json and its kin,
// FastDeploy's and vLLM's; structural_tag and structured_outputs. Private to the parsers of http/api/.
#include "http/api/fields.h"
#include "http/api/openai_request.h"

namespace troupe::http {

/// The form that the request names, free when it names none. Checks what needs neither a tokenizer nor a
/// grammar: types, and that there is one form at most. The value is moved out of the body.
AnswerForm read_answer_form(Fields& fields, const RequestRules& rules);

/// Refuses the fields that cannot be honoured beside a form.
void check_beside_form(Fields& fields, const AnswerForm& form);

}  // namespace troupe::http
