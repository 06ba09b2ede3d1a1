#include "model/checkpoint/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/support/files.h"

namespace troupe::model {
namespace {

using Json = nlohmann::json;

Json demo_json() {
  return Json::parse(
      R"({"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "vocab_size": 103424,
      "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16,
      "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 500000, "tie_word_embeddings": true, "use_bias": false, "torch_dtype": "bfloat16",
      "eos_token_id": 2})");
}

// The 21B-A3B model.
Json mixture_json() {
  Json json = demo_json();
  json.update(Json::parse(
      R"({"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": 2560,
      "intermediate_size": 12288, "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4,
      "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 1536, "moe_k": 6,
      "moe_layer_end_index": 27, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_norm_min": 1e-12,
      "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_use_aux_free": true,
      "num_nextn_predict_layers": 1})"));
  return json;
}

Result<ModelSpec> parse(const Json& json) { return parse_spec(json.dump(), "config.json"); }

Result<ModelSpec> with(const char* key, const Json& value) {
  Json json = demo_json();
  json[key] = value;
  return parse(json);
}

Result<ModelSpec> mixture_with(const char* key, const Json& value) {
  Json json = mixture_json();
  json[key] = value;
  return parse(json);
}

// Which layers of it have experts, '-' for a dense one.
std::string layers_with(const Json& changes) {
  Json json = mixture_json();
  json.update(changes);
  const auto spec = parse(json);
  if (!spec.ok()) return spec.status().message;
  std::string text;
  for (int layer = 0; layer < spec->layers; ++layer) text += spec->moe_layer(layer) ? 'E' : '-';
  EXPECT_EQ(spec->moe_layers(), std::count(text.begin(), text.end(), 'E'));
  return text;
}

Result<ModelSpec> without(const char* key) {
  Json json = demo_json();
  json.erase(key);
  return parse(json);
}

TEST(Spec, ReadsTheSmallModel) {
  const auto spec = parse(demo_json());
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

TEST(Spec, ReadsTheMixturesOfExperts) {
  const auto spec = parse(mixture_json());
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  EXPECT_EQ(spec->experts, 64);
  EXPECT_EQ(spec->top_k, 6);
  EXPECT_EQ(spec->expert_intermediate, 1536);
  EXPECT_EQ(spec->shared_experts, 2);
  EXPECT_FALSE(spec->moe_layer(0));
  EXPECT_TRUE(spec->moe_layer(1));
  EXPECT_EQ(spec->moe_layers(), 27);
  EXPECT_EQ(spec->parameters(), 21'825'437'888);  // published, without the draft layer
  // Of 66 experts a layer 8, each 3 · 2560 · 1536.
  EXPECT_EQ(spec->active_parameters(), 21'825'437'888 - std::int64_t{27} * 58 * 3 * 2560 * 1536);
  EXPECT_EQ(parse(demo_json())->active_parameters(), parse(demo_json())->parameters());

  Json json = mixture_json();
  json.update(Json::parse(R"({"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 54,
      "num_attention_heads": 64, "num_key_value_heads": 8, "moe_intermediate_size": 3584, "moe_k": 8,
      "moe_layer_start_index": 3, "moe_layer_end_index": 53, "moe_num_shared_experts": 0})"));
  EXPECT_EQ(parse(json)->parameters(), 298'636'913'856);
  json["tie_word_embeddings"] = false;
  EXPECT_EQ(parse(json)->parameters(), 299'484'163'264);
}

TEST(Spec, WhichLayersHaveExperts) {
  const Json eight{{"num_hidden_layers", 8}};
  const auto layers = [&](Json changes) {
    changes.update(eight);
    return layers_with(changes);
  };
  EXPECT_EQ(layers({{"moe_layer_start_index", 0}}), "EEEEEEEE");
  EXPECT_EQ(layers({{"moe_layer_start_index", 3}}), "---EEEEE");
  EXPECT_EQ(layers({{"moe_layer_end_index", -1}}), "-EEEEEEE");
  EXPECT_EQ(layers({{"moe_layer_end_index", 29}}), "-EEEEEEE");
  EXPECT_EQ(layers({{"moe_layer_end_index", 4}}), "-EEEE---");
  EXPECT_EQ(layers({{"moe_layer_interval", 2}}), "-E-E-E-E");
  EXPECT_EQ(layers({{"moe_layer_interval", 3}, {"moe_layer_start_index", 3}}), "-----E--");
  EXPECT_NE(layers({{"moe_layer_start_index", 8}}).find("no layer has experts"), std::string::npos);
  EXPECT_NE(layers({{"moe_layer_interval", 9}}).find("no layer has experts"), std::string::npos);
}

TEST(Spec, WhatAMixtureMayLeaveOut) {
  for (const char* key : {"moe_num_experts", "moe_k", "moe_intermediate_size"}) {
    Json json = mixture_json();
    json.erase(key);
    const auto spec = parse(json);
    ASSERT_FALSE(spec.ok()) << key;
    EXPECT_NE(spec.status().message.find(std::string(key) + " is missing"), std::string::npos);
  }
  Json json = mixture_json();
  for (const char* key : {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "moe_gate",
                          "moe_use_aux_free", "moe_norm_min", "moe_capacity", "architectures"}) {
    json.erase(key);
  }
  ASSERT_TRUE(parse(json).ok()) << parse(json).status().message;
  EXPECT_EQ(spec_hash(*parse(json)), spec_hash(*parse(mixture_json())));
  EXPECT_EQ(mixture_with("moe_num_shared_experts", 0)->shared_experts, 0);
  json.erase("moe_num_shared_experts");
  EXPECT_EQ(parse(json)->shared_experts, 0);
  EXPECT_EQ(mixture_with("moe_num_shared_experts", nullptr)->shared_experts, 0);
}

TEST(Spec, WhatAMixtureLeavesOutIsReadOffItsTensors) {
  const auto found = [](const std::vector<const char*>& left_out, const ExpertTensors& tensors) {
    Json json = mixture_json();
    json["num_hidden_layers"] = 8;
    for (const char* key : left_out) json.erase(key);
    return parse_spec(json.dump(), "config.json", [&tensors](int hidden) {
      EXPECT_EQ(hidden, 2560);
      return Result<ExpertTensors>(tensors);
    });
  };
  const std::vector<const char*> all = {"moe_num_shared_experts", "moe_layer_start_index",
                                        "moe_layer_end_index", "moe_layer_interval"};
  const auto layers = [](const Result<ModelSpec>& spec) {
    std::string text;
    for (int layer = 0; layer < spec->layers; ++layer) text += spec->moe_layer(layer) ? 'E' : '-';
    return text;
  };
  EXPECT_EQ(layers(found(all, {{3, 4, 5, 6, 7}, 0})), "---EEEEE");
  EXPECT_EQ(layers(found(all, {{1, 3, 5}, 0})), "-E-E-E--");
  EXPECT_EQ(layers(found(all, {{0}, 0})), "E-------");
  EXPECT_EQ(layers(found({"moe_layer_start_index"}, {{3, 4, 5, 6, 7}, 0})), "---EEEEE");
  EXPECT_EQ(found(all, {{1}, 0})->shared_experts, 0);
  EXPECT_EQ(found(all, {{1}, 1536})->shared_experts, 1);
  EXPECT_EQ(found(all, {{1}, 3072})->shared_experts, 2);
  EXPECT_EQ(found({"moe_layer_end_index"}, {{1}, 0})->shared_experts, 2)
      << "the file says so; the tensors are checked later";
  const auto odd = found(all, {{1}, 1600});
  ASSERT_FALSE(odd.ok());
  EXPECT_NE(odd.status().message.find(
                "moe_num_shared_experts is missing, and the tensors of the shared experts are 1600 wide"),
            std::string::npos)
      << odd.status().message;
  EXPECT_TRUE(parse_spec(mixture_json().dump(), "config.json", [](int) -> Result<ExpertTensors> {
                ADD_FAILURE() << "a complete file needs no tensors";
                return ExpertTensors{};
              }).ok());
}

// Every checkpoint of the fixtures, with each of these keys left out, and with all of them.
TEST(Spec, KeysOfExpertsMayBeMissingBesideTheTensors) {
  int mixtures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(TROUPE_TEST_DATA) + "/goldens")) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const Json whole = Json::parse(test::read_text(entry.path() / "config.json"));
    if (!whole.contains("moe_num_experts")) continue;
    ++mixtures;
    const auto expected = read_spec(entry.path());
    ASSERT_TRUE(expected.ok()) << expected.status().message;
    std::vector<std::vector<const char*>> cases = {
        {"moe_num_shared_experts", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"}};
    for (const char* key : cases.front()) cases.push_back({key});
    for (const auto& left_out : cases) {
      const test::TempDirectory directory;
      std::filesystem::copy(entry.path(), directory.path(), std::filesystem::copy_options::recursive);
      Json json = whole;
      for (const char* key : left_out) json.erase(key);
      test::write_text(directory.path() / "config.json", json.dump());
      const auto spec = read_spec(directory.path());
      ASSERT_TRUE(spec.ok()) << spec.status().message;
      EXPECT_EQ(spec_hash(*spec), spec_hash(*expected)) << entry.path() << " without " << left_out.front();
    }
  }
  EXPECT_GE(mixtures, 4);
}

// The text models that were released, with what their config.json leaves out: counts of parameters are
// published.
TEST(Spec, ReadsEveryReleasedTextModel) {
  Json large = mixture_json();
  large.update(Json::parse(R"({"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 54,
      "num_attention_heads": 64, "num_key_value_heads": 8, "moe_intermediate_size": 3584, "moe_k": 8,
      "moe_layer_start_index": 3, "moe_layer_end_index": 53, "moe_num_shared_experts": 0})"));
  struct Release {
    const char* name;
    Json json;
    Json changes;  // a merge patch: null leaves a key out
    std::int64_t parameters;
  };
  const std::int64_t small = 360'748'032, middle = 21'825'437'888, big = 298'636'913'856;
  const Release releases[] = {
      {"0.3B-PT", demo_json(), {}, small},
      {"0.3B-Base-PT, older class", demo_json(), {{"architectures", {"Ernie4_5_ForCausalLM"}}}, small},
      {"0.3B-Paddle",
       demo_json(),
       {{"architectures", {"Ernie4_5_ForCausalLM"}},
        {"torch_dtype", nullptr},
        {"dtype", "bfloat16"},
        {"use_bias", nullptr},
        {"rms_norm_eps", nullptr}},
       small},
      {"0.3B, saved by transformers 5",
       demo_json(),
       {{"rope_theta", nullptr},
        {"torch_dtype", nullptr},
        {"dtype", "bfloat16"},
        {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}}},
       small},
      {"21B-A3B-PT", mixture_json(), {}, middle},
      {"21B-A3B, no head_dim", mixture_json(), {{"head_dim", nullptr}}, middle},
      {"21B-A3B-Thinking",
       mixture_json(),
       {{"head_dim", nullptr},
        {"moe_layer_end_index", -1},
        {"moe_gate", nullptr},
        {"moe_norm_min", nullptr},
        {"use_bias", nullptr}},
       middle},
      {"21B-A3B-Paddle",
       mixture_json(),
       {{"moe_layer_interval", nullptr},
        {"moe_layer_end_index", nullptr},
        {"num_nextn_predict_layers", nullptr},
        {"compression_ratio", 1.0}},
       middle},
      {"300B-A47B-PT", large, {}, big},
      {"300B-A47B-PT, untied", large, {{"tie_word_embeddings", false}}, 299'484'163'264},
      {"300B-A47B-Base-PT", large, {{"moe_num_shared_experts", nullptr}, {"head_dim", nullptr}}, big},
      {"300B-A47B-Base-PT, less",
       large,
       {{"moe_num_shared_experts", nullptr},
        {"moe_layer_end_index", nullptr},
        {"moe_layer_interval", nullptr},
        {"moe_use_aux_free", nullptr},
        {"moe_capacity", nullptr},
        {"tie_word_embeddings", nullptr},
        {"max_position_embeddings", nullptr},
        {"rope_theta", nullptr},
        {"eos_token_id", nullptr}},
       big},
      {"300B-A47B-Paddle",
       large,
       {{"moe_num_shared_experts", nullptr}, {"torch_dtype", nullptr}, {"moe_layer_end_index", -1}},
       big}};
  for (const Release& release : releases) {
    Json json = release.json;
    if (release.changes.is_object()) json.merge_patch(release.changes);
    const auto spec = parse(json);
    ASSERT_TRUE(spec.ok()) << release.name << ": " << spec.status().message;
    EXPECT_EQ(spec->parameters(), release.parameters) << release.name;
    EXPECT_EQ(spec->head_dim, 128) << release.name;
    EXPECT_EQ(spec->max_positions, 131072) << release.name;
    EXPECT_EQ(spec->rope_theta, 500000.0f) << release.name;
    EXPECT_EQ(spec->rms_norm_eps, 1e-5f) << release.name;
  }
}

TEST(Spec, RefusesMixturesThatCannotBe) {
  for (const char* key : {"moe_num_experts", "moe_k", "moe_intermediate_size", "moe_num_shared_experts",
                          "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"}) {
    for (const Json& value : {Json(-2), Json(1.5), Json("16"), Json(std::int64_t{1} << 40), Json(true)}) {
      const auto spec = mixture_with(key, value);
      ASSERT_FALSE(spec.ok()) << key << " = " << value;
      EXPECT_EQ(spec.status().code, Code::invalid_argument);
      EXPECT_NE(spec.status().message.find(key), std::string::npos) << spec.status().message;
    }
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"moe_k", 65},
                                                                            {"moe_k", 0},
                                                                            {"moe_num_experts", 0},
                                                                            {"moe_intermediate_size", 0},
                                                                            {"moe_layer_interval", 0},
                                                                            {"moe_gate", "top2_fused"},
                                                                            {"moe_use_aux_free", false},
                                                                            {"norm_gate_logits", false},
                                                                            {"moe_norm_min", 1e-6}}) {
    const auto spec = mixture_with(key, value);
    ASSERT_FALSE(spec.ok()) << key << " = " << value;
    EXPECT_NE(spec.status().message.find(key), std::string::npos) << spec.status().message;
  }
  const auto wide = mixture_with("moe_k", 65);
  EXPECT_NE(wide.status().message.find("is 65; allowed is a whole number from 1 to 32"), std::string::npos)
      << wide.status().message;
}

TEST(Spec, ExpertsPerModalityAreNotForTextModels) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"moe_num_experts", {64, 64}},
                                                 {"moe_intermediate_size", {1536, 512}},
                                                 {"moe_layer_start_index", {1, 1}},
                                                 {"moe_layer_end_index", {29, 28}}}) {
    const auto spec = mixture_with(key, value);
    ASSERT_FALSE(spec.ok());
    EXPECT_EQ(spec.status().code, Code::unsupported);
    EXPECT_NE(spec.status().message.find(key), std::string::npos) << spec.status().message;
    EXPECT_NE(spec.status().message.find("allowed is one number"), std::string::npos)
        << spec.status().message;
  }
}

TEST(Spec, HeadDimDefaultsToTheShareOfAHead) {
  EXPECT_EQ(without("head_dim")->head_dim, 64);
  EXPECT_EQ(with("head_dim", nullptr)->head_dim, 64);
  Json json = demo_json();
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
  Json json = demo_json();
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
                                                 {"quantization_config", Json::array()}}) {
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
  // What no attention kernel takes must not come as far as one.
  EXPECT_TRUE(with("head_dim", 256).ok());
  EXPECT_NE(with("head_dim", 258).status().message.find("to 256"), std::string::npos);
  EXPECT_TRUE(with("num_attention_heads", 96).ok());
  EXPECT_NE(with("num_attention_heads", 98).status().message.find("up to 48 times num_key_value_heads, 2"),
            std::string::npos);
  Json wide = demo_json();
  wide.erase("head_dim");
  wide.update({{"hidden_size", 1024}, {"num_attention_heads", 2}, {"num_key_value_heads", 2}});
  EXPECT_NE(parse(wide).status().message.find("2 heads of at most 256"), std::string::npos);
  EXPECT_FALSE(mixture_with("moe_layer_end_index", 18446744073709551615u).ok());  // not -1
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

TEST(Spec, OfTheFamilyEveryNameIsKnown) {
  for (const Json& json : {Json{{"architectures", {"Ernie4_5_VL_MoeForConditionalGeneration"}},
                                {"model_type", "ernie4_5_moe_vl"}},
                           Json{{"model_type", "ernie4_5_moe_vl"}}, Json{{"model_type", "ernie4_5_vl_moe"}},
                           Json{{"architectures", {"Ernie4_5_VLMoeForConditionalGeneration"}}}}) {
    const auto spec = parse(json);
    ASSERT_FALSE(spec.ok());
    EXPECT_NE(spec.status().message.find("vision_config"), std::string::npos) << spec.status().message;
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
  const std::uint64_t same = hash(parse(demo_json()));
  EXPECT_EQ(hash(with("eos_token_id", 5)), same);
  EXPECT_EQ(hash(with("transformers_version", "5.0")), same);
  EXPECT_NE(hash(with("num_hidden_layers", 17)), same);
  EXPECT_NE(hash(with("rope_theta", 10000)), same);
  EXPECT_NE(hash(with("tie_word_embeddings", false)), same);
  EXPECT_NE(hash(without("tie_word_embeddings")), same);
  EXPECT_NE(hash(with("rms_norm_eps", 1e-6)), same);

  const std::uint64_t experts = hash(parse(mixture_json()));
  EXPECT_EQ(hash(mixture_with("moe_layer_end_index", -1)), experts) << "the same layers";
  EXPECT_EQ(hash(mixture_with("moe_capacity", {1, 1, 1})), experts);
  for (const char* key : {"moe_num_experts", "moe_k", "moe_intermediate_size", "moe_num_shared_experts",
                          "moe_layer_start_index", "moe_layer_interval"}) {
    EXPECT_NE(hash(mixture_with(key, 7)), experts) << key;
  }
  EXPECT_NE(hash(mixture_with("moe_layer_end_index", 26)), experts);
}

TEST(Spec, FilesThatAreNotThere) {
  const test::TempDirectory directory;
  EXPECT_EQ(read_spec(directory.path()).status().code, Code::not_found);
  test::write_text(directory.path() / "config.json", "");
  EXPECT_NE(read_spec(directory.path()).status().message.find("empty"), std::string::npos);
  test::write_text(directory.path() / "other.json", demo_json().dump());
  EXPECT_TRUE(read_spec(directory.path(), "other.json").ok());
}

}  // namespace
}  // namespace troupe::model
