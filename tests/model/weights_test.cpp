// Weights in device memory: the same bytes whatever form the checkpoint has, and dummy ones that look like
// weights.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "gpu/cpu.h"
#include "model/checkpoint/model_files.h"
#include "model/support/files.h"
#include "model/support/shapes.h"
#include "model/weights.inl"

namespace troupe::model {
namespace {

using test::golden_directory;

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() : device({.threads = 2, .pin = false}) {}

  // All bytes of a checkpoint's weights, as they lie.
  std::string loaded(const ModelSpec& spec, const Checkpoint& checkpoint, DType dtype) {
    const auto map = map_tensors(spec, checkpoint);
    EXPECT_TRUE(map.ok()) << map.status().message;
    if (!map) return {};
    const auto weights = Weights<Cpu>::load(device, spec, dtype, *map);
    return {static_cast<const char*>(weights->layout().embedding.data), weights->bytes()};
  }
  std::string loaded(const std::string& golden, DType dtype) {
    return loaded(*read_spec(golden_directory(golden)), *Checkpoint::open(golden_directory(golden)), dtype);
  }

  Cpu device;
};

TEST_F(WeightsTest, DialectsLoadTheSameBytes) {
  for (const char* golden : {"gqa3_tied", "gqa5_untied", "moe_shared2", "moe_interval"}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      const std::string bytes = loaded(golden, dtype);
      EXPECT_GT(std::set<char>(bytes.begin(), bytes.end()).size(), 100u);
      EXPECT_TRUE(bytes == loaded(std::string(golden) + "_paddle", dtype))
          << golden << " in " << to_string(dtype);
    }
  }
}

// A header of odd length puts every tensor at an odd address.
TEST_F(WeightsTest, TensorsAtAnyAddress) {
  for (const char* golden : {"moe_shared2", "moe_shared2_paddle", "gqa5_untied_paddle"}) {
    std::string file = test::read_text(golden_directory(golden) / "model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    file.insert(8 + length, 1, ' ');
    ++length;
    std::memcpy(file.data(), &length, 8);
    const test::TempDirectory directory;
    test::write_text(directory.path() / "model.safetensors", file);
    const Checkpoint shifted = *Checkpoint::open(directory.path());
    EXPECT_EQ(
        loaded(*read_spec(golden_directory(golden)), shifted, DType::bf16) == loaded(golden, DType::bf16),
        true)
        << golden;
  }
}

// Standard deviation of a packed matrix's elements, but for padding.
double deviation(const kernels::Matrix& matrix) {
  double squares = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < kernels::matrix_bytes(matrix.format, matrix.outputs, matrix.inputs) /
                                  size_of(matrix.activations());
       ++i) {
    const double value = load_element(matrix.data, matrix.activations(), i);
    squares += value * value;
    count += value != 0;
  }
  return std::sqrt(squares / static_cast<double>(count));
}

TEST_F(WeightsTest, DummiesAreDrawnForEveryExpert) {
  const ModelSpec spec = *read_spec(golden_directory("moe_shared2"));
  const auto weights = Weights<Cpu>::dummy(device, spec, DType::bf16, 7);
  ASSERT_TRUE(weights.ok()) << weights.status().message;
  const WeightLayout& layout = weights->layout();
  EXPECT_FALSE(layout.layers[0].moe());
  EXPECT_NEAR(deviation(layout.layers[0].gate_up), 0.02, 0.001);
  std::set<std::string> experts;
  std::set<float> levels;
  for (const int l : {1, 2}) {
    const LayerWeights& layer = layout.layers[static_cast<std::size_t>(l)];
    ASSERT_TRUE(layer.moe());
    EXPECT_EQ(layer.gate_up.data, nullptr);
    EXPECT_EQ(layer.router.format, DType::f32);
    EXPECT_EQ(layer.router.outputs, 8);
    EXPECT_NEAR(deviation(layer.router), 0.02, 0.004);
    const auto [low, high] = std::minmax_element(layer.router_bias, layer.router_bias + 8);
    EXPECT_GE(*low, 22 - 0.01f);
    EXPECT_LE(*high, 63 + 0.01f);
    EXPECT_GT(*high - *low, 0.001f) << "more than bf16 has there";
    EXPECT_LT(*high - *low, 0.02f);
    levels.insert(std::round(*low));
    ASSERT_EQ(layer.expert_gate_up.count, 10);
    ASSERT_EQ(layer.expert_down.count, 10);
    for (int e = 0; e < 10; ++e) {
      for (const kernels::MatrixStack* stack : {&layer.expert_gate_up, &layer.expert_down}) {
        EXPECT_NEAR(deviation(stack->at(e)), 0.02, 0.003);
        experts.insert({static_cast<const char*>(stack->at(e).data), stack->stride()});
      }
    }
    for (int i = 0; i < kernels::padded(spec.hidden); ++i) {
      for (const float* norm : {layer.input_norm, layer.post_norm}) {
        EXPECT_NEAR(norm[i], i < spec.hidden ? 1.0f : 0.0f, i < spec.hidden ? 0.08f : 0);
      }
    }
  }
  EXPECT_EQ(experts.size(), 2u * 2 * 10) << "no two alike";
  EXPECT_EQ(levels.size(), 2u) << "each layer has its own";
  const auto again = Weights<Cpu>::dummy(device, spec, DType::bf16, 7);
  EXPECT_EQ(std::memcmp(again->layout().embedding.data, layout.embedding.data, weights->bytes()), 0);
}

// The 21B model: what a mixture weighs is known before any memory is taken.
TEST_F(WeightsTest, SizeOfALargeMixture) {
  const ModelSpec spec = test::large_mixture();
  const std::int64_t fp32 = std::int64_t{27} * 64 * 2561 + 57 * 2560;  // routers and norms
  const auto bytes = static_cast<std::int64_t>(WeightLayout::make(spec, DType::bf16, true, {}).bytes);
  EXPECT_EQ(bytes, 2 * spec.parameters() + 2 * fp32);
}

}  // namespace
}  // namespace troupe::model
