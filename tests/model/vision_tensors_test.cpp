// Which tensor is which weight of a vision-language model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "model/checkpoint/tensor_map.h"
#include "model/support/spoiled_checkpoint.h"
#include "model/vision/vision_weights.h"

namespace troupe::model {
namespace {

using test::golden_directory;
using test::TestTensor;

using VisionTensors = test::SpoiledCheckpoint;

using Key = std::tuple<Weight, int, int>;

std::map<Key, std::vector<float>> values(const TensorMap& map) {
  std::map<Key, std::vector<float>> all;
  for (const WeightSource& s : map.sources) {
    const bool is_new = all.emplace(Key{s.weight, s.layer, s.expert}, test::values(s)).second;
    EXPECT_TRUE(is_new) << s.name << " comes twice";
  }
  return all;
}

TEST_F(VisionTensors, HubNamesAreComplete) {
  take("vision_small");
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_FALSE(mapped->transposed);
  EXPECT_TRUE(mapped->skipped.empty());
  VisionWeights unused;
  const std::size_t vision = vision_tensors(*spec_.vision, spec_.hidden, unused).size();
  const int moe = spec_.moe_layers();
  const int decoder = 6 * spec_.layers + 3 * (spec_.layers - moe) +
                      (4 + 3 * (2 * spec_.experts + spec_.shared_experts)) * moe + 2;
  EXPECT_EQ(values(*mapped).size(), vision + static_cast<std::size_t>(decoder));
}

// Fused experts, routers as [experts, hidden], prefixes of the modules in memory.
TEST_F(VisionTensors, NamesInMemoryAreTheSameWeights) {
  take("vision_small");
  const auto hub = map();
  ASSERT_TRUE(hub.ok()) << hub.status().message;
  const auto expected = values(*hub);
  take("vision_nested");
  const auto nested = map();
  ASSERT_TRUE(nested.ok()) << nested.status().message;
  EXPECT_EQ(values(*nested), expected);
}

// -Paddle files: "ernie.", linears as [inputs, outputs], gate and up joined.
TEST_F(VisionTensors, PaddleNamesAreTheSameWeights) {
  take("vision_small");
  const auto hub = map();
  const auto expected = values(*hub);
  std::vector<TestTensor> paddle;
  for (TestTensor& t : tensors_) {
    if (t.name.starts_with("model.")) t.name = "ernie." + t.name.substr(6);
    const bool table = t.name.find("embed_tokens") != std::string::npos;
    const bool as_is = table || t.shape.size() != 2 || t.name.find("mlp.gate.") != std::string::npos ||
                       t.name.find("correction_bias") != std::string::npos;
    if (!as_is) {
      const auto rows = static_cast<std::size_t>(t.shape[0]), columns = static_cast<std::size_t>(t.shape[1]);
      const std::size_t size = t.data.size() / (rows * columns);
      const std::string before = t.data;
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
          std::memcpy(&t.data[(c * rows + r) * size], &before[(r * columns + c) * size], size);
        }
      }
      std::swap(t.shape[0], t.shape[1]);
    }
    paddle.push_back(std::move(t));
  }
  tensors_ = std::move(paddle);
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message;
  EXPECT_TRUE(mapped->transposed);
  EXPECT_EQ(values(*mapped), expected);
}

TEST_F(VisionTensors, AnExpertListOfAnotherLengthIsNamed) {
  take("vision_small");
  std::erase_if(tensors_, [](const TestTensor& t) {
    return t.name.find("layers.2.mlp.experts.11.") != std::string::npos;
  });
  refused("missing tensors: 'model.layers.2.mlp.experts.11.down_proj.weight'");
  take("vision_small");
  TestTensor more = tensor("model.layers.1.mlp.experts.11.down_proj.weight");
  more.name = "model.layers.1.mlp.experts.12.down_proj.weight";
  tensors_.push_back(more);
  refused("unknown tensors: 'model.layers.1.mlp.experts.12.down_proj.weight'");
}

TEST_F(VisionTensors, WrongWidthsAndKindsAreNamed) {
  take("vision_small");
  spec_.vision->expert_intermediate = 24;
  refused("'model.layers.1.mlp.experts.6.gate_proj.weight' has the shape [16, 48]; expected is [24, 48]");
  take("vision_small");
  TestTensor& bias = tensor("model.layers.1.mlp.moe_statics.e_score_correction_bias");
  bias.shape = {12};
  refused("'model.layers.1.mlp.moe_statics.e_score_correction_bias' has the shape [12]; expected is [2, 6]");
  take("vision_small");
  std::erase_if(tensors_, [](const TestTensor& t) { return t.name == "model.layers.2.mlp.gate.weight_1"; });
  refused("missing tensors: 'model.layers.2.mlp.gate.weight_1'");
  take("vision_small");
  std::erase_if(tensors_,
                [](const TestTensor& t) { return t.name.starts_with("vision_model.blocks.1.norm2."); });
  refused("2 missing tensors: 'vision_model.blocks.1.norm2.bias'");
  take("vision_small");
  spec_.moe_start = 2;
  refused("layer 1 is dense");
}

}  // namespace
}  // namespace troupe::model
