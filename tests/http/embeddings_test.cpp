// Bodies and answers of /v1/embeddings.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "http/api/embeddings_answer.h"
#include "http/api/embeddings_request.h"

namespace troupe::http {
namespace {

using nlohmann::json;

const config::LimitOptions kLimits;
const ModelFacts kModel{.names = {"demo"}, .embedding_width = 8, .vocab_size = 1000};

Result<Parsed> parse(const json& body) {
  return parse_embeddings(body.dump(), {kLimits, kModel, "fresh", 0, 0});
}

Request good(const json& body) {
  auto parsed = parse(body);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request{};
}

void bad(const json& body, const std::string& param, const std::string& reason) {
  const auto parsed = parse(body);
  EXPECT_FALSE(parsed.ok()) << body;
  EXPECT_EQ(parsed.status().param, param) << body;
  EXPECT_EQ(parsed.status().reason, reason) << body << parsed.status().message;
}

TEST(EmbeddingsRequest, FormsOfAnInput) {
  EXPECT_EQ(good({{"input", "a"}}).source.texts, std::vector<std::string>{"a"});
  EXPECT_EQ(good({{"input", {"a", "b"}}}).source.texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(good({{"input", {1, 2}}}).source.ids, (std::vector<std::vector<TokenId>>{{1, 2}}));
  EXPECT_EQ(good({{"input", {{1, 2}, {3}}}}).source.ids, (std::vector<std::vector<TokenId>>{{1, 2}, {3}}));
  const json turns = {{{"role", "user"}, {"content", "hi"}}};
  const Request chat = good({{"messages", turns}});
  EXPECT_TRUE(chat.answer.embedding.of_messages);
  EXPECT_EQ(chat.source.conversation.messages.size(), 1u);
  EXPECT_FALSE(chat.source.conversation.add_generation_prompt);
  EXPECT_TRUE(
      good({{"messages", turns}, {"add_generation_prompt", true}}).source.conversation.add_generation_prompt);
  EXPECT_TRUE(good({{"input", std::vector<std::string>(2048, "a")}}).source.texts.size() == 2048);

  bad(json::object(), "input", "missing_required_parameter");
  bad({{"input", "a"}, {"messages", turns}}, "messages", "invalid_value");
  bad({{"input", ""}}, "input", "empty_prompt");
  bad({{"input", {"a", ""}}}, "input.1", "empty_prompt");
  bad({{"input", 5}}, "input", "invalid_type");
  bad({{"input", {{1}, {1000}}}}, "input.1.0", "token_out_of_range");
  bad({{"input", std::vector<std::string>(2049, "a")}}, "input", "too_many_elements");
}

TEST(EmbeddingsRequest, TheFormOfTheAnswer) {
  const Request plain = good({{"input", "a"}});
  EXPECT_EQ(plain.api, Api::embeddings);
  EXPECT_EQ(plain.answer.id, "embd-fresh");
  EXPECT_EQ(plain.answer.embedding.dimensions, 0);
  EXPECT_TRUE(plain.answer.embedding.normalize);
  EXPECT_FALSE(plain.answer.embedding.base64);
  EXPECT_EQ(plain.generation.sampling.embeds, 1u);
  const Request other = good({{"input", "a"},
                              {"dimensions", 8},
                              {"normalize", false},
                              {"encoding_format", "base64"},
                              {"priority", -3},
                              {"truncate_prompt_tokens", 7}});
  EXPECT_EQ(other.answer.embedding.dimensions, 8);
  EXPECT_FALSE(other.answer.embedding.normalize);
  EXPECT_TRUE(other.answer.embedding.base64);
  EXPECT_EQ(other.priority, -3);
  EXPECT_EQ(other.source.keep_tokens, 7);
  EXPECT_EQ(parse({{"input", "a"}, {"zebra", 1}})->ignored_fields, std::vector<std::string>{"zebra"});

  bad({{"input", "a"}, {"dimensions", 9}}, "dimensions", "out_of_range");
  bad({{"input", "a"}, {"dimensions", 0}}, "dimensions", "out_of_range");
  bad({{"input", "a"}, {"encoding_format", "int8"}}, "encoding_format", "invalid_value");
  bad({{"input", "a"}, {"model", "other"}}, "model", "model_not_found");
}

json answer(const EmbeddingForm& form, std::initializer_list<std::vector<float>> rows) {
  std::string out;
  append_embeddings_begin(out);
  std::int32_t index = 0;
  for (const std::vector<float>& row : rows) append_embedding(out, form, index++, row);
  Answer about;
  about.id = "embd-1";
  about.model = "demo";
  append_embeddings_end(out, about, {.prompt_tokens = 7, .cached_tokens = 2});
  return json::parse(out);
}

std::vector<float> numbers(const json& answer, std::size_t index) {
  return answer["data"][index]["embedding"].get<std::vector<float>>();
}

TEST(EmbeddingsAnswer, NumbersAreCutAndNormalised) {
  const json whole = answer({}, {{3, 4, 0}, {0, 0, 0}});
  EXPECT_EQ(numbers(whole, 0), (std::vector<float>{0.6f, 0.8f, 0}));
  EXPECT_EQ(numbers(whole, 1), (std::vector<float>{0, 0, 0})) << "no direction";
  EXPECT_EQ(whole["data"][1]["index"], 1);
  EXPECT_EQ(whole["usage"]["total_tokens"], 7);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(numbers(answer({.dimensions = 1}, {{3, 4, 0}}), 0), std::vector<float>{1});
  EXPECT_EQ(numbers(answer({.normalize = false}, {{3, 4.5f, -0.1f}}), 0),
            (std::vector<float>{3, 4.5f, -0.1f}));
}

TEST(EmbeddingsAnswer, Base64HoldsTheSameFloats) {
  const std::vector<float> row{0.125f, -7.3e-20f, 1e30f, 0};
  const json packed = answer({.normalize = false, .base64 = true}, {row});
  const auto bytes = decode_base64(packed["data"][0]["embedding"].get<std::string>());
  ASSERT_TRUE(bytes.ok());
  ASSERT_EQ(bytes->size(), row.size() * sizeof(float));
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::uint32_t bits = 0;
    for (int byte = 3; byte >= 0; --byte)
      bits = bits << 8 | static_cast<unsigned char>((*bytes)[4 * i + static_cast<std::size_t>(byte)]);
    EXPECT_EQ(std::bit_cast<float>(bits), row[i]);
  }
}

}  // namespace
}  // namespace troupe::http
