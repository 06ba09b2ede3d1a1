// Which names of a model a request may use, and which its answer has.
#include <gtest/gtest.h>

#include "http/api/model_choice.h"
#include "http/api/openai_request.h"

namespace troupe::http {
namespace {

TEST(ModelNames, AnAliasIsAnsweredAsTheFirstServedName) {
  ModelFacts model{.names = {"first", "second", "/models/demo", "default"}, .served_names = 2};
  const config::LimitOptions limits;
  const auto answering = [&](const std::string& name) {
    const std::string turns = R"([{"role":"user","content":"hi"}])";
    return parse_chat(R"({"messages":)" + turns + R"(,"model":")" + name + "\"}",
                      {limits, model, "id", 0, 0});
  };
  EXPECT_EQ(answering("second")->request.answer.model, "first");
  EXPECT_EQ(answering("/models/demo")->request.answer.model, "/models/demo");
  EXPECT_EQ(answering("gpt-9").status().reason, "model_not_found");
  model.any_name = true;
  EXPECT_EQ(answering("gpt-9")->request.answer.model, "gpt-9");
  EXPECT_EQ(answering("second")->request.answer.model, "first");
  EXPECT_EQ(answering(std::string(1 << 20, 'm')).status().reason, "model_not_found");
}

TEST(ModelNames, OfSeveralModelsTheBodyChooses) {
  const ModelFacts first{.names = {"a", "default"}, .others = {"b", "c"}};
  const std::vector<ModelFacts> more{{.names = {"b"}}, {.names = {"c"}}};
  const auto chosen = [&](const std::string& name) { return choose_model(name, first, more); };
  EXPECT_EQ(chosen(""), 0u);
  EXPECT_EQ(chosen("a"), 0u);
  EXPECT_EQ(chosen("default"), 0u);
  EXPECT_EQ(chosen("b"), 1u);
  EXPECT_EQ(chosen("c"), 2u);
  EXPECT_EQ(chosen("d"), 0u);
  const config::LimitOptions limits;
  const Status unknown =
      parse_completion(R"({"prompt":"x","model":"d"})", {limits, first, "id", 0, 0}).status();
  EXPECT_EQ(unknown.message, R"(The model "d" does not exist; this server has "a", "b" and "c")");
  EXPECT_EQ(unknown.code, Code::not_found);
}

TEST(ModelNames, TheNameIsThatOfTheOutermostObject) {
  EXPECT_EQ(model_of_body(R"({"model":"b"})"), "b");
  EXPECT_EQ(model_of_body(R"( { "x" : {"model":"no"}, "y":["model","no"], "model" : "b" } )"), "b");
  EXPECT_EQ(model_of_body(R"({"prompt":"\"model\":\"no\"","model":"a\/\u0062"})"), "a/b");
  EXPECT_EQ(model_of_body(R"({"x":"model","y":1})"), "");
  EXPECT_EQ(model_of_body(R"({"model":"a","model":"b"})"), "b") << "as the parser takes it";
  for (const char* broken : {"", "{", R"({"model)", R"({"model")", R"({"model":)", R"({"model":"b)",
                             R"({"model":1})", R"({"model":null})", R"(["model","b"])", R"({"\)"}) {
    EXPECT_EQ(model_of_body(broken), "") << broken;
  }
}

}  // namespace
}  // namespace troupe::http
