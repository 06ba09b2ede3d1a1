#include "http/api/embeddings_request.h"

#include "http/api/json_body.h"
#include "http/api/openai_fields.h"

namespace troupe::http {
namespace {

void read_form(Fields& fields, const RequestRules& rules, EmbeddingForm& form) {
  const std::int64_t width = rules.model.embedding_width;
  form.dimensions = clip(fields.integer("dimensions", 1, width > 0 ? width : kMaxInteger).value_or(0));
  form.normalize = fields.boolean("normalize", true);
  const auto encoding = fields.string("encoding_format");
  form.base64 = encoding == "base64";
  if (!encoding || form.base64 || *encoding == "float") return;
  fields.fail("encoding_format", "must be \"float\" or \"base64\", got " + excerpt(Json(*encoding)),
              "invalid_value");
}

/// Without add_generation_prompt a conversation is embedded as it stands, up to its last message.
void read_messages(Fields& fields, const RequestRules& rules, Source& source) {
  ToolRules tools;
  read_conversation(fields, rules, true, tools, nullptr, source);
  source.conversation.add_generation_prompt = fields.boolean("add_generation_prompt");
  if (source.media.empty()) return;
  fields.fail("messages", "may not hold images or videos here: embeddings are those of text",
              "unsupported_modality");
}

}  // namespace

Result<Parsed> parse_embeddings(std::string_view body, const RequestRules& rules) {
  return parse_with(body, rules, Api::embeddings, [&](Fields& fields, Request& request) {
    request.answer.model = read_model(fields, rules);
    request.answer.id = read_answer_id(fields, "embd-", rules);
    read_form(fields, rules, request.answer.embedding);
    read_handling(fields, request);
    // The token behind the prompt is sampled as any, and shown to nobody.
    request.generation.sampling.temperature = 0;
    request.generation.sampling.embeds = 1;
    request.generation.max_tokens = 0;
    const bool input = fields.find("input") != nullptr, messages = fields.find("messages") != nullptr;
    request.answer.embedding.of_messages = messages;
    if (input && messages) {
      fields.fail("messages", "cannot be given together with input", "invalid_value");
    } else if (messages) {
      read_messages(fields, rules, request.source);
    } else if (input) {
      read_prompts(fields, "input", kMostEmbeddingInputs, rules.model.vocab_size, request.source);
    } else {
      fields.fail("input", "or messages is required", "missing_required_parameter");
    }
  });
}

}  // namespace troupe::http
