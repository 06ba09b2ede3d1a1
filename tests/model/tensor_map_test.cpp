#include "model/tensor_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/support/files.h"

namespace troupe::model {
namespace {

using test::golden_directory;
using test::TempDirectory;
using test::TestTensor;

// A golden's tensors, to be spoiled one at a time.
class TensorMapTest : public ::testing::Test {
 protected:
  void take(const std::string& golden) {
    spec_ = *read_spec(golden_directory(golden));
    tensors_ = test::tensors_of(*Checkpoint::open(golden_directory(golden)));
  }
  TestTensor& tensor(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const TestTensor& t) { return t.name == name; });
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TestTensor& t) { return t.name == name; });
  }
  void add(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
           std::size_t bytes) {
    tensors_.push_back({name, dtype, std::move(shape), std::string(bytes, '\0')});
  }
  Result<TensorMap> map() {
    test::write_safetensors(directory_.path() / "model.safetensors", tensors_);
    checkpoint_ = *Checkpoint::open(directory_.path());
    return map_tensors(spec_, checkpoint_);
  }
  void refused(const std::string& part) {
    const auto mapped = map();
    ASSERT_FALSE(mapped.ok());
    EXPECT_NE(mapped.status().message.find(part), std::string::npos) << mapped.status().message;
  }

  TempDirectory directory_;
  ModelSpec spec_;
  std::vector<TestTensor> tensors_;
  Checkpoint checkpoint_;
};

// Every weight of the network has exactly one source.
void expect_complete(const ModelSpec& spec, const TensorMap& map) {
  std::set<std::pair<Weight, int>> found;
  for (const WeightSource& source : map.sources) {
    EXPECT_TRUE(found.emplace(source.weight, source.layer).second) << source.name;
  }
  EXPECT_EQ(found.size(), static_cast<std::size_t>((map.tied ? 2 : 3) + 9 * spec.layers));
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

TEST_F(TensorMapTest, TheSameWeightUnderTwoNames) {
  take("gqa3_tied");
  add("ernie.norm.weight", "F32", {48}, 192);
  refused("same weight");
}

}  // namespace
}  // namespace troupe::model
