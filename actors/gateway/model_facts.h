#pragma once
// What parsers of requests are told of the model and of how its answers are read.
#include "http/api/openai_request.h"
#include "model/checkpoint/generation_config.h"
#include "text/parsers/answer_syntax.h"
#include "text/template/chat_template.h"

namespace troupe {

/// Without names and vocabulary. `chat` null: there is no template.
http::ModelFacts model_facts(const model::GenerationConfig& generation, const AnswerSyntax& syntax,
                             const ChatTemplate* chat);

}  // namespace troupe
