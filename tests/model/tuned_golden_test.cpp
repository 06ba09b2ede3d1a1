// Part of the tuned shapes' goldens on the CPU: the tool and the loader draw the same weights, and the
// executor's log-probabilities are those of the reference. cuda_tuned_golden_test.cpp runs all of them on a
// GPU.
#include "model/support/tuned_golden.h"

#include <bit>
#include <map>
#include <sstream>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"
#include "model/cpu_executor.h"
#include "model/weights.inl"

namespace troupe::model {
namespace {

using test::TunedGolden;
using test::TunedPart;
using test::TunedReport;

class TunedGoldens : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, TunedGoldens, ::testing::ValuesIn(test::kTunedShapes),
                         [](const auto& info) { return std::string(info.param); });

std::int64_t weighted(std::int64_t bits, int output, int input) {
  return bits * (1 + (31 * output + input) % 1021);
}

std::int64_t sum_of(const std::vector<float>& vector) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    std::uint16_t bits = 0;
    store_element(&bits, DType::bf16, 0, vector[i]);
    sum += weighted(bits, 0, static_cast<int>(i));
  }
  return sum;
}

/// The tool's sum of each weight, computed from what the loader draws.
class Sums {
 public:
  explicit Sums(const ModelSpec& spec) : spec_(spec) {
    matrix(Weight::embedding, 0, spec.vocab, spec.hidden);
    vector(Weight::final_norm, 0, spec.hidden, 1, spec.initializer_range);
    for (int layer = 0; layer < spec.layers; ++layer) {
      vector(Weight::input_norm, layer, spec.hidden, 1, spec.initializer_range);
      vector(Weight::post_norm, layer, spec.hidden, 1, spec.initializer_range);
      matrix(Weight::query, layer, spec.q_width(), spec.hidden);
      matrix(Weight::key, layer, spec.kv_width(), spec.hidden);
      matrix(Weight::value, layer, spec.kv_width(), spec.hidden);
      matrix(Weight::attention_out, layer, spec.hidden, spec.q_width());
      if (!spec.moe_layer(layer)) {
        mlp(layer, spec.intermediate, WeightSource::kNoExpert);
        continue;
      }
      matrix(Weight::router, layer, spec.experts, spec.hidden);
      biases(layer);
      for (int e = 0; e < spec.experts + spec.shared_experts; ++e) mlp(layer, spec.expert_intermediate, e);
    }
  }

  std::map<std::string, std::int64_t> of;

 private:
  void mlp(int layer, int width, int expert) {
    matrix(Weight::gate, layer, width, spec_.hidden, expert);
    matrix(Weight::up, layer, width, spec_.hidden, expert);
    matrix(Weight::down, layer, spec_.hidden, width, expert);
  }

  // Of all 32 bits: half of them would be the layer's level alone.
  void biases(int layer) {
    const std::vector<float> values =
        dummy_biases(dummy_seed(0, Weight::router_bias, layer), spec_.experts, spec_.initializer_range);
    std::int64_t sum = 0;
    for (std::size_t e = 0; e < values.size(); ++e)
      sum += weighted(std::bit_cast<std::uint32_t>(values[e]), 0, static_cast<int>(e));
    of[weight_name(Weight::router_bias, layer, WeightSource::kNoExpert)] = sum;
  }

  void vector(Weight weight, int layer, int size, float mean, float deviation) {
    of[weight_name(weight, layer, WeightSource::kNoExpert)] =
        sum_of(dummy_vector(dummy_seed(0, weight, layer), size, mean, deviation));
  }

  void matrix(Weight weight, int layer, int outputs, int inputs, int expert = WeightSource::kNoExpert) {
    memory_.assign(kernels::matrix_bytes(DType::bf16, outputs, inputs) / 2, 0);
    const kernels::Matrix into{memory_.data(), DType::bf16, outputs, inputs};
    kernels::run(device_, kernels::FillRandom{.into = into,
                                              .outputs = outputs,
                                              .seed = dummy_seed(0, weight, layer, expert),
                                              .deviation = spec_.initializer_range});
    std::int64_t sum = 0;
    for (int o = 0; o < outputs; ++o) {
      for (int i = 0; i < inputs; ++i) {
        sum += weighted(memory_[kernels::packed_index(DType::bf16, inputs, o, i)], o, i);
      }
    }
    of[weight_name(weight, layer, expert)] = sum;
  }

  const ModelSpec& spec_;
  Cpu device_{{.threads = 2, .pin = false}};
  std::vector<std::uint16_t> memory_;
};

TEST_P(TunedGoldens, ToolAndLoaderDrawTheSameWeights) {
  const TunedGolden golden(GetParam());
  const auto spec = read_spec(test::tuned_directory(GetParam()));
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  std::map<std::string, std::int64_t> expected;
  std::istringstream names(std::string(golden.weight_names.begin(), golden.weight_names.end()));
  std::size_t count = 0;
  for (std::string name; std::getline(names, name);) expected[name] = golden.weight_sums.at(count++);
  ASSERT_EQ(count, golden.weight_sums.size());
  EXPECT_EQ(Sums(*spec).of, expected);
}

class TunedGoldensOnCpu : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  void check(const TunedPart& part, int chunk, int stagger) {
    const auto [name, dtype] = GetParam();
    const TunedGolden golden(name);
    config::Options options = test::tuned_options(name);
    options.model.dtype = dtype == DType::f32 ? config::DTypeOption::float32 : config::DTypeOption::bfloat16;
    options.device.cpu_threads = 2;
    const auto files = open_model(options.model);
    ASSERT_TRUE(files.ok()) << files.status().message;
    wire::Capacity capacity;
    capacity.kv_blocks = test::blocks_of(golden, part);
    capacity.max_slots = static_cast<int>(part.sequences.size());
    capacity.max_tokens_per_step = 256;
    capacity.max_model_len = test::kTunedModelLen;
    capacity.vocab_size = files->spec.vocab;
    const auto executor = make_cpu_executor(*files, options, capacity);
    ASSERT_TRUE(executor.ok()) << executor.status().message;
    test::run_tuned(**executor, golden, part, chunk, stagger, report);
    report.print(name + std::string(" ") + to_string(dtype));
  }

  /// The errors against what the format allows.
  void judge() const {
    EXPECT_EQ(report.missing, 0);
    if (std::get<1>(GetParam()) == DType::f32) {
      EXPECT_LE(report.outputs.our_rms(), 1e-3);
      EXPECT_LE(report.prompts.our_rms(), 1e-3);
      EXPECT_EQ(report.ours_agree, report.steps);
    } else {
      EXPECT_LE(report.outputs.our_rms(), test::kMostOfTheirError * report.outputs.their_rms());
      EXPECT_LE(report.prompts.our_rms(), test::kMostOfTheirError * report.prompts.their_rms());
    }
  }

  TunedReport report;
};
INSTANTIATE_TEST_SUITE_P(All, TunedGoldensOnCpu,
                         ::testing::Combine(::testing::ValuesIn(test::kTunedShapes),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

// Eight prompts of 1 … 257 tokens, in pieces, while others decode. In sequence 5 two experts have equal
// scores in fp32, of which the reference took the other one.
TEST_P(TunedGoldensOnCpu, APartOfThem) {
  check({.sequences = {3, 4, 6, 7, 8, 9, 10, 16}, .steps = 24}, 100, 1);
  if (!HasFailure()) judge();
}

// All prompts and steps take minutes on a CPU.
TEST_P(TunedGoldensOnCpu, DISABLED_All) {
  check(test::all_of(TunedGolden(std::get<0>(GetParam()))), 200, 1);
  if (!HasFailure()) judge();
}

}  // namespace
}  // namespace troupe::model
