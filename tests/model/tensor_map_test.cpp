#include "model/checkpoint/tensor_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "model/support/files.h"
#include "model/support/spoiled_checkpoint.h"

namespace troupe::model {
namespace {

using test::golden_directory;
using test::TempDirectory;
using test::TestTensor;

using TensorMapTest = test::SpoiledCheckpoint;
using test::values;

using Key = std::tuple<Weight, int, int>;

Key key_of(const WeightSource& source) { return {source.weight, source.layer, source.expert}; }

// Every weight of the network has exactly one source.
void expect_complete(const ModelSpec& spec, const TensorMap& map) {
  std::set<Key> found;
  for (const WeightSource& source : map.sources) {
    EXPECT_TRUE(found.insert(key_of(source)).second) << source.name;
  }
  const int moe = spec.moe_layers(), experts = spec.experts + spec.shared_experts;
  const int layers = 6 * spec.layers + 3 * (spec.layers - moe) + (2 + 3 * experts) * moe;
  EXPECT_EQ(found.size(), static_cast<std::size_t>((map.tied ? 2 : 3) + layers));
}

void expect_same_weights(const TensorMap& map, const TensorMap& other) {
  std::map<Key, const WeightSource*> by_key;
  for (const WeightSource& source : other.sources) by_key[key_of(source)] = &source;
  ASSERT_EQ(map.sources.size(), other.sources.size());
  for (const WeightSource& source : map.sources) {
    const WeightSource* twin = by_key[key_of(source)];
    ASSERT_NE(twin, nullptr) << source.name;
    ASSERT_EQ(source.outputs, twin->outputs) << source.name;
    ASSERT_EQ(source.inputs, twin->inputs) << source.name;
    EXPECT_EQ(values(source), values(*twin)) << source.name << " and " << twin->name;
  }
}

const WeightSource& source(const TensorMap& map, Weight weight) {
  return *std::find_if(map.sources.begin(), map.sources.end(),
                       [&](const WeightSource& s) { return s.weight == weight && s.layer == 0; });
}

TEST_F(TensorMapTest, TorchNames) {
  take("gqa3_tied");
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_FALSE(mapped->transposed);
  EXPECT_TRUE(mapped->tied);
  expect_complete(spec_, *mapped);
  EXPECT_EQ(source(*mapped, Weight::query).outputs, 96);
  EXPECT_EQ(source(*mapped, Weight::query).inputs, 48);
}

TEST_F(TensorMapTest, PaddleNamesJoinAndTranspose) {
  take("gqa5_untied_paddle");
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_TRUE(mapped->transposed);
  EXPECT_FALSE(mapped->tied);
  expect_complete(spec_, *mapped);
  EXPECT_EQ(source(*mapped, Weight::value).name, "ernie.layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ(source(*mapped, Weight::query).first, 0);
  EXPECT_EQ(source(*mapped, Weight::key).first, 80);
  EXPECT_EQ(source(*mapped, Weight::value).first, 96);
  EXPECT_EQ(source(*mapped, Weight::gate).first, 0);
  EXPECT_EQ(source(*mapped, Weight::up).first, 112);
}

TEST_F(TensorMapTest, JoinedNamesInTorchOrientation) {
  take("gqa3_tied");
  for (TestTensor& t : tensors_) {
    if (t.name.starts_with("model.")) t.name = "ernie." + t.name.substr(6);
  }
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "ernie.layers." + std::to_string(layer) + ".";
    TestTensor qkv{at + "self_attn.qkv_proj.weight", "F32", {96 + 2 * 32, 48}, {}};
    for (const char* part : {"q", "k", "v"}) {
      qkv.data += tensor(at + "self_attn." + part + "_proj.weight").data;
      remove(at + "self_attn." + std::string(part) + "_proj.weight");
    }
    tensors_.push_back(qkv);
  }
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_FALSE(mapped->transposed);
  expect_complete(spec_, *mapped);
}

TEST_F(TensorMapTest, MissingTensorsAreNamed) {
  take("gqa3_tied");
  remove("model.layers.1.mlp.down_proj.weight");
  remove("model.norm.weight");
  refused("2 missing tensors: 'model.layers.1.mlp.down_proj.weight', 'model.norm.weight'");
  take("gqa5_untied");
  remove("lm_head.weight");
  refused("lm_head.weight");
}

TEST_F(TensorMapTest, ALongListIsCut) {
  take("gqa3_tied");
  spec_.layers = 1000;
  refused("…");
}

TEST_F(TensorMapTest, UnknownTensorsAreNamed) {
  take("gqa3_tied");
  add("model.layers.0.self_attn.q_proj.bias", "F32", {96}, 384);
  refused("unknown tensors: 'model.layers.0.self_attn.q_proj.bias'");
  take("gqa3_tied");
  spec_.layers = 1;
  refused("model.layers.1.");
}

TEST_F(TensorMapTest, MisshapenTensorsAreNamed) {
  take("gqa3_tied");
  tensor("model.layers.0.self_attn.k_proj.weight").shape = {48, 32};
  refused("'model.layers.0.self_attn.k_proj.weight' has the shape [48, 32]; expected is [32, 48]");
  take("gqa3_tied");
  tensor("model.norm.weight").shape = {1, 48};
  refused("'model.norm.weight'");
  take("gqa3_tied");
  spec_.vocab = 300;
  refused("'model.embed_tokens.weight'");
}

TEST_F(TensorMapTest, OtherTypesAreRefused) {
  take("gqa3_tied");
  tensor("model.norm.weight").dtype = "I32";
  refused("'model.norm.weight' is I32");
}

TEST_F(TensorMapTest, KnownButNotNeededTensorsAreListed) {
  take("gqa3_tied");
  add("model.mtp_block.0.mlp.down_proj.weight", "BF16", {2, 2}, 8);
  add("model.mtp_linear_proj.0.weight", "BF16", {2, 2}, 8);
  add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {8}, 32);
  add("lm_head.weight", "F32", {1}, 4);
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_EQ(mapped->skipped.size(), 4u);
  expect_complete(spec_, *mapped);
}

TEST_F(TensorMapTest, WithoutTheFlagPresenceDecidesAboutTheHead) {
  take("gqa5_untied");
  spec_.tied.reset();
  EXPECT_FALSE(map()->tied);
  remove("lm_head.weight");
  EXPECT_TRUE(map()->tied);
}

TEST_F(TensorMapTest, ExpertsByTheirNames) {
  take("moe_shared2");
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  expect_complete(spec_, *mapped);
  std::map<Key, const WeightSource*> by_key;
  for (const WeightSource& source : mapped->sources) by_key[key_of(source)] = &source;
  EXPECT_EQ((by_key[{Weight::down, 0, WeightSource::kNoExpert}]->name),
            "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ((by_key[{Weight::up, 2, 7}]->name), "model.layers.2.mlp.experts.7.up_proj.weight");
  EXPECT_EQ((by_key[{Weight::router, 1, WeightSource::kNoExpert}]->outputs), 8);
  EXPECT_EQ((by_key[{Weight::router_bias, 1, WeightSource::kNoExpert}]->inputs), 8);
  // Two shared experts of 24 are one MLP of 48: rows of gate and up, columns of down.
  const WeightSource& gate = *by_key[{Weight::gate, 1, 9}];
  EXPECT_EQ(gate.name, "model.layers.1.mlp.shared_experts.gate_proj.weight");
  EXPECT_EQ(gate.first, 24 * 48);
  EXPECT_EQ(gate.outputs, 24);
  const WeightSource& down = *by_key[{Weight::down, 1, 9}];
  EXPECT_EQ(down.first, 24);
  EXPECT_EQ(down.stride, 48);
  EXPECT_EQ(down.inputs, 24);
}

TEST_F(TensorMapTest, DialectsHoldTheSameNumbers) {
  for (const std::string name : {"gqa3_tied", "gqa5_untied", "moe_shared2", "moe_interval"}) {
    take(name);
    const auto mapped = map();
    ASSERT_TRUE(mapped.ok()) << mapped.status().message;
    const Checkpoint twin = *Checkpoint::open(golden_directory(name + "_paddle"));
    const auto other = map_tensors(*read_spec(golden_directory(name + "_paddle")), twin);
    ASSERT_TRUE(other.ok()) << other.status().message;
    EXPECT_TRUE(other->transposed);
    expect_complete(spec_, *other);
    expect_same_weights(*mapped, *other);
  }
}

TEST_F(TensorMapTest, StackedExperts) {
  take("moe_interval");
  const Checkpoint single = *Checkpoint::open(golden_directory("moe_interval"));
  for (const int layer : {1, 3}) {
    const std::string at = "model.layers." + std::to_string(layer) + ".mlp.";
    TestTensor gate_up{at + "experts.gate_up_proj", "F16", {5, 2 * 32, 40}, {}};
    TestTensor down{at + "experts.down_proj", "F16", {5, 40, 32}, {}};
    for (int e = 0; e < 5; ++e) {
      const std::string expert = at + "experts." + std::to_string(e) + ".";
      for (const char* part : {"gate", "up"}) gate_up.data += tensor(expert + part + "_proj.weight").data;
      down.data += tensor(expert + "down_proj.weight").data;
      for (const char* part : {"gate", "up", "down"}) remove(expert + part + "_proj.weight");
    }
    tensors_.push_back(gate_up);
    tensors_.push_back(down);
    TestTensor& bias = tensor(at + "moe_statics.e_score_correction_bias");
    bias.name = at + "gate.moe_statics.e_score_correction_bias";
    bias.shape = {5};
  }
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  expect_complete(spec_, *mapped);
  expect_same_weights(*mapped, *map_tensors(spec_, single));
  remove("model.layers.3.mlp.experts.down_proj");
  refused("missing tensors: 'model.layers.3.mlp.experts.down_proj'");
}

// Vision-language checkpoints in torch orientation have it so.
TEST_F(TensorMapTest, ARouterHasItsOwnOrientation) {
  take("moe_shared2");
  const auto reference = map();
  const auto straight =
      values(*std::find_if(reference->sources.begin(), reference->sources.end(),
                           [](auto& s) { return s.weight == Weight::router && s.layer == 1; }));
  TestTensor& router = tensor("model.layers.1.mlp.gate.weight");
  const std::string old = router.data;
  router.shape = {48, 8};
  for (std::size_t e = 0; e < 8; ++e) {
    for (std::size_t i = 0; i < 48; ++i) {
      std::memcpy(router.data.data() + (i * 8 + e) * 4, old.data() + (e * 48 + i) * 4, 4);
    }
  }
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_FALSE(mapped->transposed);
  for (const WeightSource& source : mapped->sources) {
    if (source.weight == Weight::router && source.layer == 1) {
      EXPECT_EQ(values(source), straight);
    }
  }
  tensor("model.layers.1.mlp.gate.weight").shape = {16, 24};
  refused("'model.layers.1.mlp.gate.weight' has the shape [16, 24]; expected is [8, 48]");
}

TEST_F(TensorMapTest, MissingAndMisshapenPartsOfAMixture) {
  take("moe_shared2");
  remove("model.layers.1.mlp.experts.3.up_proj.weight");
  remove("model.layers.2.mlp.moe_statics.e_score_correction_bias");
  refused(
      "2 missing tensors: 'model.layers.1.mlp.experts.3.up_proj.weight', "
      "'model.layers.2.mlp.moe_statics.e_score_correction_bias'");
  take("moe_shared2");
  tensor("model.layers.2.mlp.moe_statics.e_score_correction_bias").shape = {8, 1};
  refused("e_score_correction_bias' has the shape [8, 1]; expected is [1, 8]");
  take("moe_shared2");
  tensor("model.layers.1.mlp.experts.0.down_proj.weight").shape = {24, 48};
  refused("'model.layers.1.mlp.experts.0.down_proj.weight' has the shape [24, 48]; expected is [48, 24]");
  take("moe_shared2");
  spec_.shared_experts = 1;
  refused("shared_experts.gate_proj.weight' has the shape [48, 48]; expected is [24, 48]");
}

TEST_F(TensorMapTest, MoreOrFewerExpertsThanTheConfigSays) {
  take("moe_shared2");
  spec_.experts = 9;
  refused("missing tensors: 'model.layers.1.mlp.experts.8.");
  take("moe_shared2");
  spec_.experts = 7;
  tensor("model.layers.1.mlp.gate.weight").shape = {7, 48};
  tensor("model.layers.1.mlp.gate.weight").data.resize(7 * 48 * 4);
  refused("'model.layers.1.mlp.");
}

TEST_F(TensorMapTest, LayersThatAreNotWhatTheConfigSays) {
  take("moe_shared2");
  spec_.moe_start = 2;
  refused("layer 1 is dense, by moe_layer_start_index 2, moe_layer_end_index 2 and moe_layer_interval 1");
  take("moe_shared2");
  spec_.moe_start = 0;
  refused("layer 0 has experts");
  take("moe_shared2");
  spec_.experts = 0;
  refused("layer 1 is dense, by the architecture Ernie4_5_MoeForCausalLM");
  take("moe_shared2");
  spec_.shared_experts = 0;
  refused("moe_num_shared_experts is 0, and there is the tensor 'model.layers.1.mlp.shared_experts.");
  take("moe_interval");
  spec_.shared_experts = 2;
  refused("moe_num_shared_experts is 2, and layer 1 has none");
}

TEST_F(TensorMapTest, TheSameWeightUnderTwoNames) {
  take("gqa3_tied");
  add("ernie.norm.weight", "F32", {48}, 192);
  refused("same weight");
}

}  // namespace
}  // namespace troupe::model
