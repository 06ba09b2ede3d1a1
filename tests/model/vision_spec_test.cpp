// Configurations of vision-language models.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/patch_grid.h"
#include "model/checkpoint/spec.h"
#include "model/support/files.h"

namespace troupe::model {
namespace {

using Json = nlohmann::json;

// ERNIE-4.5-VL-28B-A3B, as the hub has it.
Json hub_json() {
  return Json::parse(
      R"({"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_moe_vl",
      "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
      "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-05, "rope_theta": 500000, "tie_word_embeddings": true, "use_bias": false,
      "torch_dtype": "bfloat16", "moe_capacity": [128, 128, 128], "moe_gate": "topk",
      "moe_intermediate_size": [1536, 512], "moe_k": 6, "moe_layer_end_index": [29, 28],
      "moe_layer_interval": 1, "moe_layer_start_index": [1, 1], "moe_num_experts": [64, 64],
      "moe_num_shared_experts": 2, "moe_use_aux_free": true, "rope_3d": true, "freq_allocation": 20,
      "im_patch_id": 100295, "pixel_hidden_size": 1280, "spatial_conv_size": 2, "temporal_conv_size": 2,
      "use_temporal_conv": true, "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_act": "quick_gelu",
      "hidden_size": 1280, "in_channels": 3, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
      "spatial_merge_size": 2}})");
}

// The same as transformers writes it.
Json nested_json() {
  return Json::parse(
      R"({"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_vl_moe",
      "dtype": "bfloat16", "tie_word_embeddings": true, "image_token_id": 100295, "video_token_id": 103367,
      "image_start_token_id": 101304, "text_config": {"model_type": "ernie4_5_vl_moe_text", "dtype": null,
      "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
      "num_attention_heads": 20, "num_key_value_heads": 4, "moe_intermediate_size": [1536, 512], "moe_k": 6,
      "moe_num_experts": 64, "moe_num_shared_experts": 2, "mlp_layer_types": null, "rope_parameters":
      {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [22, 22, 20]}},
      "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 5120, "num_heads": 16,
      "temporal_merge_size": 2}})");
}

Result<ModelSpec> parse(const Json& json) { return parse_spec(json.dump(), "config.json"); }

Status refused(Json json, const Json& changes) {
  json.merge_patch(changes);
  const auto spec = parse(json);
  EXPECT_FALSE(spec.ok()) << changes;
  return spec.status();
}

void expect_error(const Json& changes, const std::string& part, Code code = Code::invalid_argument) {
  const Status status = refused(hub_json(), changes);
  EXPECT_EQ(status.code, code) << status.message;
  EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
}

TEST(VisionSpec, ReadsTheReleasedModel) {
  const auto spec = parse(hub_json());
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  ASSERT_TRUE(spec->vision);
  const VisionSpec& v = *spec->vision;
  EXPECT_EQ(std::tuple(v.depth, v.width, v.heads, v.head_dim(), v.intermediate),
            std::tuple(32, 1280, 16, 80, 5120));
  EXPECT_EQ(std::tuple(spec->experts, spec->expert_intermediate, v.expert_intermediate, spec->shared_experts),
            std::tuple(64, 1536, 512, 2));
  EXPECT_EQ(v.temporal_pairs, 20);
  EXPECT_EQ(std::tuple(v.patch, v.video_patch, v.image_start, v.image_end, v.video_start, v.video_end),
            std::tuple(100295, 100295, 101304, 101305, 101306, 101307));
  EXPECT_TRUE(v.is_boundary(101307));
  EXPECT_FALSE(v.is_boundary(100295));
  EXPECT_FALSE(spec->moe_layer(0));
  EXPECT_TRUE(spec->moe_layer(1) && spec->moe_layer(27));
  EXPECT_EQ(spec->moe_layers(), 27);
  EXPECT_EQ(spec->parameters(), 29'399'294'336) << "published";
}

TEST(VisionSpec, BothFormsAreTheSameModel) {
  Json hub = hub_json();
  hub["video_token_id"] = 103367;
  const auto flat = parse(hub), nested = parse(nested_json());
  ASSERT_TRUE(flat.ok() && nested.ok()) << flat.status().message << nested.status().message;
  EXPECT_EQ(spec_hash(*flat), spec_hash(*nested));
  hub["model_type"] = "ernie4_5_vl_moe";
  hub.erase("architectures");
  EXPECT_EQ(spec_hash(*parse(hub)), spec_hash(*nested));
  hub["vision_config"]["depth"] = 31;
  EXPECT_NE(spec_hash(*parse(hub)), spec_hash(*nested));
}

TEST(VisionSpec, LayersMayBeListed) {
  const auto with = [](const Json& types) {
    Json json = nested_json();
    json["text_config"]["num_hidden_layers"] = types.size();
    json["text_config"]["mlp_layer_types"] = types;
    return parse(json);
  };
  const auto spec = with({"dense", "sparse", "dense", "sparse", "dense"});
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  for (int layer = 0; layer < 5; ++layer) EXPECT_EQ(spec->moe_layer(layer), layer % 2 == 1) << layer;
  for (const Json& types : {Json{"dense", "sparse", "sparse", "dense", "sparse"}, Json{"dense", "dense"},
                            Json{"sparse", "dense", "sparse"}, Json{"sparse", "round"}}) {
    const auto other = with(types);
    ASSERT_FALSE(other.ok()) << types;
    EXPECT_NE(other.status().message.find("mlp_layer_types"), std::string::npos) << other.status().message;
  }
}

TEST(VisionSpec, LayersOfOneModalityAlone) {
  expect_error({{"moe_layer_start_index", {1, 2}}}, "experts for one modality alone", Code::unsupported);
  expect_error({{"moe_layer_end_index", {20, 29}}}, "moe_layer_end_index is [20,29]", Code::unsupported);
  Json same = hub_json();
  same["moe_layer_end_index"] = {-1, 27};
  EXPECT_TRUE(parse(same).ok());
}

TEST(VisionSpec, RefusesWhatCannotBe) {
  expect_error({{"moe_num_experts", {64, 32}}}, "the same number");
  expect_error({{"moe_num_experts", {64, 64, 64}}}, "moe_num_experts is [64,64,64]");
  expect_error({{"moe_intermediate_size", {1536, 0}}}, "moe_intermediate_size is [1536,0]");
  expect_error({{"moe_intermediate_size", nullptr}}, "moe_intermediate_size is missing");
  expect_error({{"vision_config", nullptr}}, "vision_config is missing");
  expect_error({{"vision_config", {{"hidden_size", 3584}}}}, "it has to be embed_dim, 1280");
  expect_error({{"vision_config", {{"num_heads", 24}}}}, "num_heads is 24");
  expect_error({{"vision_config", {{"patch_size", 16}}}}, "patch_size is 16; only 14");
  expect_error({{"vision_config", {{"hidden_act", "silu"}}}}, "only quick_gelu");
  expect_error({{"vision_config", {{"depth", 0}}}}, "depth is 0");
  expect_error({{"spatial_conv_size", 4}}, "spatial_conv_size is 4; only 2");
  expect_error({{"temporal_conv_size", 1}}, "temporal_conv_size is 1; only 2");
  expect_error({{"use_temporal_conv", false}}, "use_temporal_conv is false");
  expect_error({{"rope_3d", false}}, "rope_3d is false");
  expect_error({{"pixel_hidden_size", 64}}, "pixel_hidden_size is 64; only 1280");
  expect_error({{"freq_allocation", 21}}, "freq_allocation is 21");
  expect_error({{"freq_allocation", 66}}, "freq_allocation is 66");
  expect_error({{"im_patch_id", 200000}}, "im_patch_id is 200000; allowed are ids below vocab_size, 103424");
  expect_error({{"vocab_size", 101307}}, "video_end_token_id is 101307");
  const Status nested = refused(nested_json(), {{"text_config", 5}});
  EXPECT_NE(nested.message.find("text_config"), std::string::npos) << nested.message;
  const Status section =
      refused(nested_json(), {{"text_config", {{"rope_parameters", {{"mrope_section", {22, 20, 22}}}}}}});
  EXPECT_NE(section.message.find("mrope_section [22,20,22]"), std::string::npos) << section.message;
}

}  // namespace
}  // namespace troupe::model
