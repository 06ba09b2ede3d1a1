// What is read of a quantization_config, and what is refused by name.
#include "model/checkpoint/stored_quantisation.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace troupe::model {
namespace {

using Json = nlohmann::json;

Json packed(int bits, const char* strategy, int group) {
  return Json{{"quant_method", "compressed-tensors"},
              {"format", "pack-quantized"},
              {"ignore", {"lm_head", "re:.*mlp\\.gate$"}},
              {"config_groups",
               {{"group_0",
                 {{"targets", {"Linear"}},
                  {"weights",
                   {{"num_bits", bits},
                    {"type", "int"},
                    {"symmetric", true},
                    {"strategy", strategy},
                    {"group_size", group}}},
                  {"input_activations", nullptr}}}}}};
}

std::string refused(const Json& json, Code code) {
  const auto read = StoredQuantisation::parse(json.dump(), "config.json");
  EXPECT_FALSE(read.ok()) << json;
  EXPECT_EQ(read.status().code, code) << read.status().message;
  EXPECT_EQ(read.status().message.find('\n'), std::string::npos);
  return read.status().message;
}

TEST(StoredQuantisation, FormatsByModule) {
  Json json = packed(8, "channel", 0);
  json["config_groups"]["group_1"] = packed(4, "group", 64)["config_groups"]["group_0"];
  json["config_groups"]["group_1"]["targets"] = {"re:.*mlp\\.experts\\..*", "model.layers.7.mlp.down_proj"};
  const auto read = StoredQuantisation::parse(json.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status().message;
  EXPECT_EQ(read->of("model.layers.0.self_attn.q_proj"), (StoredFormat{8, 0}));
  EXPECT_EQ(read->of("model.layers.1.mlp.experts.3.up_proj"), (StoredFormat{4, 64}));
  EXPECT_EQ(read->of("model.layers.7.mlp.down_proj"), (StoredFormat{4, 64}));
  EXPECT_EQ(read->of("model.layers.1.mlp.gate_proj"), (StoredFormat{8, 0}));
  EXPECT_EQ(read->of("model.layers.1.mlp.gate"), std::nullopt);
  EXPECT_EQ(read->of("lm_head"), std::nullopt);
}

TEST(StoredQuantisation, OtherMethodsAreRefusedByName) {
  for (const char* method : {"awq", "gptq", "bitsandbytes", "fbgemm_fp8"}) {
    const std::string message = refused({{"quant_method", method}}, Code::unsupported);
    EXPECT_NE(message.find(method), std::string::npos) << message;
    EXPECT_NE(message.find("--quantization wint8 or wint4"), std::string::npos) << message;
  }
  EXPECT_NE(refused({{"quantization", "w4afp8"}}, Code::unsupported).find("w4afp8"), std::string::npos);
}

TEST(StoredQuantisation, Fp8InBlocks) {
  Json json{
      {"quant_method", "fp8"},
      {"fmt", "e4m3"},
      {"activation_scheme", "dynamic"},
      {"weight_block_size", {128, 128}},
      {"modules_to_not_convert", {"model.layers.0.mlp", "mlp.gate", "model.layers.2.self_attn.o_proj"}}};
  const auto read = StoredQuantisation::parse(json.dump(), "config.json");
  ASSERT_TRUE(read.ok()) << read.status().message;
  const StoredFormat fp8{.bits = 8, .fp8 = true};
  EXPECT_EQ(read->of("model.layers.0.self_attn.q_proj"), fp8);
  EXPECT_EQ(read->of("model.layers.1.mlp.gate_proj"), fp8);
  EXPECT_EQ(read->of("model.layers.10.mlp.experts.3.up_proj"), fp8);
  for (const char* other : {"model.layers.0.mlp.gate_proj", "model.layers.1.mlp.gate", "lm_head",
                            "model.layers.2.self_attn.o_proj"}) {
    EXPECT_EQ(read->of(other), std::nullopt) << other;
  }
  const auto with = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    return refused(changed, Code::unsupported);
  };
  EXPECT_NE(with("weight_block_size", {64, 128}).find("weight_block_size [64,128], [128,128] is read"),
            std::string::npos);
  EXPECT_NE(with("weight_block_size", nullptr).find("weight_block_size"), std::string::npos);
  EXPECT_NE(with("fmt", "e5m2").find("fmt \"e5m2\""), std::string::npos);
  EXPECT_NE(with("activation_scheme", "static").find("activation_scheme \"static\""), std::string::npos);
}

TEST(StoredQuantisation, OtherFormsAreRefusedByKeyAndValue) {
  const auto with = [](const char* key, const Json& value) {
    Json json = packed(4, "group", 64);
    json["config_groups"]["group_0"]["weights"][key] = value;
    return refused(json, Code::unsupported);
  };
  EXPECT_NE(with("num_bits", 3).find("num_bits 3"), std::string::npos);
  EXPECT_NE(with("symmetric", false).find("symmetric false"), std::string::npos);
  EXPECT_NE(with("type", "float").find("type \"float\""), std::string::npos);
  EXPECT_NE(with("strategy", "tensor").find("strategy \"tensor\""), std::string::npos);
  EXPECT_NE(with("actorder", "group").find("actorder \"group\""), std::string::npos);
  Json json = packed(4, "group", 64);
  json["format"] = "marlin-24";
  EXPECT_NE(refused(json, Code::unsupported).find("marlin-24"), std::string::npos);
  json = packed(8, "channel", 0);
  json["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}};
  EXPECT_NE(refused(json, Code::unsupported).find("input_activations"), std::string::npos);
  json = packed(8, "channel", 0);
  json["kv_cache_scheme"] = {{"num_bits", 8}};
  EXPECT_NE(refused(json, Code::unsupported).find("kv_cache_scheme"), std::string::npos);
}

TEST(StoredQuantisation, BrokenOnes) {
  refused(Json::array(), Code::invalid_argument);
  Json json = packed(8, "channel", 0);
  json.erase("config_groups");
  EXPECT_NE(refused(json, Code::invalid_argument).find("config_groups"), std::string::npos);
  json = packed(8, "channel", 0);
  json["ignore"] = {"re:(("};
  EXPECT_NE(refused(json, Code::invalid_argument).find("re:(("), std::string::npos);
  json["ignore"] = {8};
  refused(json, Code::invalid_argument);
  json = packed(8, "channel", 0);
  json["config_groups"]["group_0"].erase("targets");
  EXPECT_NE(refused(json, Code::invalid_argument).find("group_0"), std::string::npos);
}

}  // namespace
}  // namespace troupe::model
