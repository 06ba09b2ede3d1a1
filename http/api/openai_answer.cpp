// Whole answers: chat, completions, the model list, tokenize and detokenize. See openai_response.h.
#include "http/api/json_text.h"
#include "http/api/openai_logprobs.h"
#include "http/api/openai_usage.h"

namespace troupe::http {
namespace {

void append_token_ids(std::string& out, const AnswerChoice& choice) {
  if (!choice.prompt_token_ids.empty()) {
    out.append(R"(,"prompt_token_ids":)");
    append_ids(out, choice.prompt_token_ids);
  }
  if (!choice.token_ids.empty()) {
    out.append(R"(,"completion_token_ids":)");
    append_ids(out, choice.token_ids);
  }
}

void append_calls(std::string& out, const AnswerChoice& choice) {
  if (choice.calls.empty()) {
    out.append(R"(,"tool_calls":null)");
    return;
  }
  if (choice.legacy_calls) {
    out.append(R"(,"function_call":)");
    append_function(out, choice.calls.front());
    return;
  }
  out.append(R"(,"tool_calls":[)");
  for (std::size_t i = 0; i < choice.calls.size(); ++i) {
    out.append(i > 0 ? R"(,{"id":)" : R"({"id":)");
    append_json_string(out, choice.calls[i].id);
    out.append(R"(,"type":"function","function":)");
    append_function(out, choice.calls[i]);
    out.push_back('}');
  }
  out.push_back(']');
}

/// The text, or null when there is none.
void append_text_or_null(std::string& out, std::string_view text) {
  if (text.empty()) {
    out.append("null");
  } else {
    append_json_string(out, text);
  }
}

void append_message(std::string& out, const AnswerChoice& choice) {
  out.append(R"(,"message":{"role":"assistant","content":)");
  if (choice.calls.empty()) {
    append_json_string(out, choice.text);
  } else {
    append_text_or_null(out, choice.text);
  }
  out.append(R"(,"reasoning_content":)");
  append_text_or_null(out, choice.reasoning);
  out.append(R"(,"reasoning":)");
  append_text_or_null(out, choice.reasoning);
  out.append(R"(,"refusal":null)");
  append_calls(out, choice);
  append_token_ids(out, choice);
  out.push_back('}');
}

void append_choice(std::string& out, Api api, const AnswerChoice& choice) {
  append_choice_begin(out, api, choice);
  if (!choice.with_logprobs) {
    out.append("null");
  } else if (api == Api::chat) {
    append_chat_logprobs(out, choice.logprobs);
  } else {
    append_completion_logprobs(out, choice.logprobs, 0);
  }
  if (choice.with_prompt_logprobs) {
    out.append(R"(,"prompt_logprobs":)");
    append_prompt_logprobs(out, choice.prompt_logprobs);
  }
  append_choice_end(out, choice);
}

void append_model(std::string& out, const ModelCard& model) {
  out.append(R"({"id":)");
  append_json_string(out, model.id);
  out.append(R"(,"object":"model","created":)");
  append_integer(out, model.created_s);
  out.append(R"(,"owned_by":"troupe","root":)");
  append_json_string(out, model.root);
  out.append(R"(,"parent":null,"max_model_len":)");
  append_integer(out, model.max_model_len);
  if (model.sees) out.append(R"(,"capabilities":{"vision":true})");
  out.append(R"(,"sampling_defaults":{"temperature":)");
  append_float(out, model.sampling.temperature);
  out.append(R"(,"top_p":)");
  append_float(out, model.sampling.top_p);
  out.append(R"(,"top_k":)");
  append_integer(out, model.sampling.top_k);
  out.append(R"(,"min_p":)");
  append_float(out, model.sampling.min_p);
  out.append(R"(,"repetition_penalty":)");
  append_float(out, model.sampling.repetition_penalty);
  out.append(R"(,"presence_penalty":)");
  append_float(out, model.sampling.presence_penalty);
  out.append(R"(,"frequency_penalty":)");
  append_float(out, model.sampling.frequency_penalty);
  out.append(R"(},"permission":[]})");
}

}  // namespace

void append_choice_begin(std::string& out, Api api, const AnswerChoice& choice) {
  out.append(R"({"index":)");
  append_integer(out, choice.index);
  if (api == Api::chat) {
    append_message(out, choice);
  } else {
    out.append(R"(,"text":)");
    append_json_string(out, choice.text);
    append_token_ids(out, choice);
  }
  out.append(R"(,"logprobs":)");
}

void append_choice_end(std::string& out, const AnswerChoice& choice) {
  out.append(R"(,"finish_reason":)").append(to_string(choice.finish)).push_back('}');
}

void append_answer_end(std::string& out, const Usage& usage) {
  out.append(R"(],"usage":)");
  append_usage_object(out, usage);
  out.push_back('}');
}

std::string format_answer(const AnswerFrame& frame, std::span<const AnswerChoice> choices,
                          const Usage& usage) {
  std::string out = frame.answer_prefix();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_choice(out, frame.api(), choices[i]);
  }
  append_answer_end(out, usage);
  return out;
}

std::string format_models(std::span<const ModelCard> models) {
  std::string out = R"({"object":"list","data":[)";
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_model(out, models[i]);
  }
  out.append("]}");
  return out;
}

std::string format_model(const ModelCard& model) {
  std::string out;
  append_model(out, model);
  return out;
}

std::string format_tokenized(std::span<const TokenId> tokens, std::int64_t max_model_len,
                             std::span<const std::string> token_strs) {
  std::string out = R"({"count":)";
  append_integer(out, static_cast<std::int64_t>(tokens.size()));
  out.append(R"(,"max_model_len":)");
  append_integer(out, max_model_len);
  out.append(R"(,"tokens":)");
  append_ids(out, tokens);
  if (!token_strs.empty()) {
    out.append(R"(,"token_strs":[)");
    for (std::size_t i = 0; i < token_strs.size(); ++i) {
      if (i > 0) out.push_back(',');
      append_json_string(out, token_strs[i]);
    }
    out.push_back(']');
  }
  out.push_back('}');
  return out;
}

std::string format_detokenized(std::string_view text) {
  std::string out = R"({"prompt":)";
  append_json_string(out, text);
  out.push_back('}');
  return out;
}

}  // namespace troupe::http
