#include "model/spec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/support/files.h"

namespace troupe::model {
namespace {

using Json = nlohmann::json;

Json demo() {
  return Json::parse(
      R"({"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "vocab_size": 103424,
      "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16,
      "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 500000, "tie_word_embeddings": true, "use_bias": false, "torch_dtype": "bfloat16",
      "eos_token_id": 2})");
}

Result<ModelSpec> parse(const Json& json) { return parse_spec(json.dump(), "config.json"); }

Result<ModelSpec> with(const char* key, const Json& value) {
  Json json = demo();
  json[key] = value;
  return parse(json);
}

Result<ModelSpec> without(const char* key) {
  Json json = demo();
  json.erase(key);
  return parse(json);
}

TEST(Spec, ReadsTheSmallModel) {
  const auto spec = parse(demo());
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  EXPECT_EQ(spec->hidden, 1024);
  EXPECT_EQ(spec->q_width(), 2048);
  EXPECT_EQ(spec->kv_width(), 256);
  EXPECT_EQ(spec->tied, true);
  EXPECT_EQ(spec->stored, DType::bf16);
  EXPECT_EQ(spec->eos_ids, std::vector<TokenId>{2});
  EXPECT_EQ(spec->parameters(), 360'748'032);  // published
  EXPECT_EQ(spec->kv_bytes_per_token(DType::bf16), 18'432);
}

TEST(Spec, HeadDimDefaultsToTheShareOfAHead) {
  EXPECT_EQ(without("head_dim")->head_dim, 64);
  EXPECT_EQ(with("head_dim", nullptr)->head_dim, 64);
  Json json = demo();
  json.erase("head_dim");
  json["hidden_size"] = 1000;
  EXPECT_FALSE(parse(json).ok());
}

TEST(Spec, RotationMayBeNamedEitherWay) {
  EXPECT_EQ(with("rope_theta", 10000)->rope_theta, 10000.0f);
  EXPECT_EQ(without("rope_theta")->rope_theta, 500000.0f);
  EXPECT_EQ(with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}})->rope_theta,
            10000.0f);
  EXPECT_FALSE(with("rope_scaling", {{"type", "yarn"}, {"factor", 4}}).ok());
}

TEST(Spec, TheTypeOfStoredWeightsHasTwoNames) {
  Json json = demo();
  json.erase("torch_dtype");
  EXPECT_EQ(parse(json)->stored, std::nullopt);
  json["dtype"] = "float16";
  EXPECT_EQ(parse(json)->stored, DType::f16);
  EXPECT_FALSE(with("torch_dtype", "int8").ok());
}

TEST(Spec, SeveralEndTokens) {
  EXPECT_EQ(with("eos_token_id", {2, 100})->eos_ids, (std::vector<TokenId>{2, 100}));
  EXPECT_FALSE(with("eos_token_id", 103424).ok());
  EXPECT_FALSE(with("eos_token_id", -1).ok());
}

TEST(Spec, RefusesWhatItsArithmeticDoesNotDo) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"use_bias", true},
                                                 {"compression_ratio", 2.0},
                                                 {"hidden_act", "gelu"},
                                                 {"quantization_config", Json::object()}}) {
    const auto spec = with(key, value);
    ASSERT_FALSE(spec.ok()) << key;
    EXPECT_NE(spec.status().message.find(key), std::string::npos) << spec.status().message;
  }
  EXPECT_TRUE(with("compression_ratio", 1.0).ok());
  EXPECT_TRUE(with("hidden_act", "silu").ok());
}

TEST(Spec, RefusesSizesThatCannotBe) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const Json& value : {Json(0), Json(-16), Json(1.5), Json("16"), Json(std::int64_t{1} << 40),
                              Json(std::uint64_t{1} << 63), Json(true)}) {
      const auto spec = with(key, value);
      ASSERT_FALSE(spec.ok()) << key << " = " << value;
      EXPECT_NE(spec.status().message.find(key), std::string::npos) << spec.status().message;
    }
  }
  EXPECT_FALSE(with("num_key_value_heads", 3).ok());
  EXPECT_FALSE(with("head_dim", 127).ok());
  EXPECT_FALSE(with("rms_norm_eps", 0).ok());
  EXPECT_FALSE(with("rms_norm_eps", "small").ok());
  EXPECT_FALSE(with("rope_theta", -1).ok());
  EXPECT_FALSE(without("hidden_size").ok());
  EXPECT_FALSE(with("tie_word_embeddings", 1).ok());
}

TEST(Spec, NamesOtherArchitectures) {
  const auto llama = parse(Json{{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}});
  ASSERT_FALSE(llama.ok());
  EXPECT_EQ(llama.status().code, Code::invalid_argument);
  EXPECT_NE(llama.status().message.find("LlamaForCausalLM"), std::string::npos);
  EXPECT_NE(llama.status().message.find("llama"), std::string::npos);
  EXPECT_FALSE(parse(Json::object()).ok());
  EXPECT_FALSE(with("architectures", "Ernie4_5ForCausalLM").ok());
}

TEST(Spec, FamilyMembersThatCannotRunYetSaySo) {
  for (const Json& json :
       {Json{{"architectures", {"Ernie4_5_MoeForCausalLM"}}, {"model_type", "ernie4_5_moe"}},
        Json{{"model_type", "ernie4_5_moe_vl"}},
        Json{{"architectures", {"Ernie4_5_VLMoeForConditionalGeneration"}}}}) {
    const auto spec = parse(json);
    ASSERT_FALSE(spec.ok());
    EXPECT_EQ(spec.status().code, Code::unsupported);
    EXPECT_NE(spec.status().message.find("not available yet"), std::string::npos);
  }
  EXPECT_TRUE(with("architectures", {"Ernie4_5_ForCausalLM"}).ok());
  EXPECT_TRUE(without("architectures").ok());
}

TEST(Spec, TextThatIsNoObject) {
  for (const std::string text : {"", "{", "[]", "null", "5", "{} x"}) {
    EXPECT_FALSE(parse_spec(text, "config.json").ok()) << text;
  }
  EXPECT_FALSE(parse_spec(std::string(100'000, '['), "config.json").ok());
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1000; ++i) deep += "[";
  EXPECT_FALSE(parse_spec(deep, "config.json").ok());
}

TEST(Spec, HashTellsNetworksApart) {
  const auto hash = [](const Result<ModelSpec>& spec) { return spec_hash(*spec); };
  const std::uint64_t same = hash(parse(demo()));
  EXPECT_EQ(hash(with("eos_token_id", 5)), same);
  EXPECT_EQ(hash(with("transformers_version", "5.0")), same);
  EXPECT_NE(hash(with("num_hidden_layers", 17)), same);
  EXPECT_NE(hash(with("rope_theta", 10000)), same);
  EXPECT_NE(hash(with("tie_word_embeddings", false)), same);
  EXPECT_NE(hash(without("tie_word_embeddings")), same);
  EXPECT_NE(hash(with("rms_norm_eps", 1e-6)), same);
}

TEST(Spec, FilesThatAreNotThere) {
  const test::TempDirectory directory;
  EXPECT_EQ(read_spec(directory.path()).status().code, Code::not_found);
  test::write_text(directory.path() / "config.json", "");
  EXPECT_NE(read_spec(directory.path()).status().message.find("empty"), std::string::npos);
  test::write_text(directory.path() / "other.json", demo().dump());
  EXPECT_TRUE(read_spec(directory.path(), "other.json").ok());
}

}  // namespace
}  // namespace troupe::model
