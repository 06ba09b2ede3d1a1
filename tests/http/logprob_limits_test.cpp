// How many log-probabilities a request may ask for beside a token.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "http/api/openai_request.h"

namespace troupe::http {
namespace {

TEST(LogprobLimits, ALimitOfLogprobsMayBeAnyNumberOrTheVocabulary) {
  config::LimitOptions limits;
  const ModelFacts model{.vocab_size = 1000};
  const RequestRules rules{limits, model};
  struct Wanted {
    std::string message;  // empty: taken
    std::int32_t count = -1;
  };
  const auto of = [&](const char* field, int asked) {
    Wanted wanted;
    const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],)";
    const std::string member = "\"" + std::string(field) + "\":" + std::to_string(asked);
    const auto read = [&](const auto& parsed, auto&& count) {
      if (parsed.ok())
        wanted.count = count(parsed->request.generation.sampling);
      else
        wanted.message = parsed.status().message;
      EXPECT_TRUE(parsed.ok() ||
                  (parsed.status().param == field && parsed.status().reason == "out_of_range"));
    };
    const auto output = [](const wire::Sampling& s) { return s.logprobs; };
    const auto prompt = [](const wire::Sampling& s) { return s.prompt_logprobs; };
    if (std::string_view(field) == "logprobs")
      read(parse_completion(R"({"prompt":"x",)" + member + "}", rules), output);
    else if (std::string_view(field) == "top_logprobs")
      read(parse_chat(chat + member + R"(,"logprobs":true})", rules), output);
    else
      read(parse_chat(chat + member + "}", rules), prompt);
    return wanted;
  };
  for (const char* field : {"logprobs", "top_logprobs", "prompt_logprobs"}) {
    int& limit = std::string_view(field) == "logprobs" ? limits.max_completion_logprobs : limits.max_logprobs;
    const auto refused = [&](int asked, const std::string& range) {
      EXPECT_EQ(of(field, asked).message,
                std::string(field) + " must be an integer from " + range + ", got " + std::to_string(asked));
    };
    limit = 50;
    EXPECT_EQ(of(field, 50).count, 50);
    refused(51, "0 to 50");
    refused(-1, "0 to 50");
    limit = 0;
    refused(1, "0 to 0");
    for (const int whole : {-1, 1000, 1'000'000}) {
      limit = whole;
      EXPECT_EQ(of(field, 1000).count, 1000);
      EXPECT_EQ(of(field, -1).count, 1000) << "all";
      refused(1001, "-1 to 1000");
      refused(-2, "-1 to 1000");
    }
    limit = 20;
  }
}

}  // namespace
}  // namespace troupe::http
