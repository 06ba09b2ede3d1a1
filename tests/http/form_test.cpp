// The fields that hold an answer to a form, in both APIs.
#include <gtest/gtest.h>

#include "http/api/openai_request.h"

namespace troupe::http {
namespace {

const config::LimitOptions kFormLimits;

AnswerForm form_of_chat(const std::string& members) {
  const ModelFacts model{.names = {"demo"}, .vocab_size = 1000};
  auto parsed =
      parse_chat(R"({"messages":[{"role":"user","content":"hi"}],)" + members + "}", {kFormLimits, model});
  EXPECT_TRUE(parsed.ok()) << members << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request.generation.form) : AnswerForm();
}
AnswerForm form_of_completion(const std::string& members) {
  const ModelFacts model{.names = {"demo"}, .vocab_size = 1000};
  auto parsed = parse_completion(R"({"prompt":"x",)" + members + "}", {kFormLimits, model});
  EXPECT_TRUE(parsed.ok()) << members << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request.generation.form) : AnswerForm();
}

void refused_form(const std::string& members, const std::string& param, const std::string& reason,
                  bool offers_forms = true) {
  const ModelFacts model{.names = {"demo"}, .vocab_size = 1000, .offers_forms = offers_forms};
  for (const Status& status :
       {parse_chat(R"({"messages":[{"role":"user","content":"hi"}],)" + members + "}", {kFormLimits, model})
            .status(),
        parse_completion(R"({"prompt":"x",)" + members + "}", {kFormLimits, model}).status()}) {
    EXPECT_EQ(status.param, param) << members << ": " << status.message;
    EXPECT_EQ(status.reason, reason) << members << ": " << status.message;
    EXPECT_LT(status.message.size(), 300u);
  }
}

struct FormCase {
  const char* members;
  AnswerForm::Kind kind;
  const char* value;
  const char* param;
};

TEST(Forms, EveryField) {
  using Kind = AnswerForm::Kind;
  const FormCase cases[] = {
      {R"("n":1)", Kind::free, "null", ""},
      {R"("response_format":{"type":"text"})", Kind::free, "null", ""},
      {R"("response_format":null,"guided_json":null)", Kind::free, "null", ""},
      {R"("guided_json_object":false)", Kind::free, "null", ""},
      {R"("response_format":{"type":"json_object"})", Kind::json_object, "null", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"null"}}})",
       Kind::json_schema, R"({"type":"null"})", "response_format.json_schema.schema"},
      {R"("response_format":{"type":"structural_tag","structures":[],"triggers":[]})", Kind::structural_tag,
       R"({"type":"structural_tag","structures":[],"triggers":[]})", "response_format"},
      {R"("guided_json":{"type":"null"})", Kind::json_schema, R"({"type":"null"})", "guided_json"},
      {R"("guided_json":"{\"type\":\"null\"}")", Kind::json_schema, R"({"type":"null"})", "guided_json"},
      {R"("guided_regex":"a+")", Kind::regex, R"("a+")", "guided_regex"},
      {R"("guided_choice":["a","b"])", Kind::choice, R"(["a","b"])", "guided_choice"},
      {R"("guided_grammar":"root ::= \"a\"")", Kind::grammar, R"("root ::= \"a\"")", "guided_grammar"},
      {R"("guided_json_object":true)", Kind::json_object, "null", "guided_json_object"},
      {R"("structural_tag":"{\"format\":{}}")", Kind::structural_tag, R"({"format":{}})", "structural_tag"},
      {R"("structured_outputs":{"json":true})", Kind::json_schema, "true", "structured_outputs.json"},
      {R"("structured_outputs":{"regex":"a","json":null})", Kind::regex, R"("a")",
       "structured_outputs.regex"},
      {R"("structured_outputs":{"choice":["a"]})", Kind::choice, R"(["a"])", "structured_outputs.choice"},
      {R"("structured_outputs":{"json_object":true},"min_tokens":1)", Kind::json_object, "null",
       "structured_outputs.json_object"},
  };
  for (const FormCase& c : cases) {
    const auto check = [&](const AnswerForm& form) {
      EXPECT_EQ(static_cast<int>(form.kind), static_cast<int>(c.kind)) << c.members;
      EXPECT_EQ(to_text(form.value), c.value) << c.members;
      EXPECT_EQ(form.param, c.param) << c.members;
    };
    check(form_of_chat(c.members));
    check(form_of_completion(c.members));
  }
}

TEST(Forms, WhatIsWrong) {
  refused_form(R"("response_format":"text")", "response_format", "invalid_type");
  refused_form(R"("response_format":{})", "response_format.type", "invalid_value");
  refused_form(R"("response_format":{"type":"yaml"})", "response_format.type", "invalid_value");
  refused_form(R"("response_format":{"type":"json_schema"})", "response_format.json_schema",
               "missing_required_parameter");
  refused_form(R"("response_format":{"type":"json_schema","json_schema":5})", "response_format.json_schema",
               "invalid_type");
  refused_form(R"("response_format":{"type":"json_schema","json_schema":{}})",
               "response_format.json_schema.schema", "missing_required_parameter");
  refused_form(R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})",
               "response_format.json_schema.schema", "invalid_type");
  refused_form(R"("response_format":{"type":"json_schema","json_schema":{"name":5,"schema":{}}})",
               "response_format.json_schema.name", "invalid_type");
  refused_form(R"("guided_json":"{")", "guided_json", "invalid_json");
  refused_form(R"("guided_json":[1])", "guided_json", "invalid_type");
  refused_form(R"("guided_regex":5)", "guided_regex", "invalid_type");
  refused_form(R"("guided_choice":"a")", "guided_choice", "invalid_type");
  refused_form(R"("guided_choice":["a",1])", "guided_choice.1", "invalid_type");
  refused_form(R"("guided_json_object":"yes")", "guided_json_object", "invalid_value");
  refused_form(R"("structural_tag":5)", "structural_tag", "invalid_type");
  refused_form(R"("structured_outputs":5)", "structured_outputs", "invalid_type");
  refused_form(R"("structured_outputs":{"whitespace_pattern":" "})", "structured_outputs.whitespace_pattern",
               "unsupported_parameter");
  refused_form(R"("guided_regex":"a","guided_json":{})", "guided_regex", "invalid_value");
  refused_form(R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
               "structured_outputs.regex", "invalid_value");
  refused_form(R"("guided_regex":"a","min_tokens":2)", "min_tokens", "invalid_value");
}

TEST(Forms, OffSaysSo) {
  refused_form(R"("guided_regex":"a")", "guided_regex", "unsupported_parameter", false);
  refused_form(R"("response_format":{"type":"json_object"})", "response_format", "unsupported_parameter",
               false);
}

}  // namespace
}  // namespace troupe::http
