// Which names of a model a request may use, and which its answer has.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace troupe::http
