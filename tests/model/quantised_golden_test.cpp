// Quantised formats on the CPU beside the numpy reference (tools/generate/quantise_reference.py): codes and
// scales of drawn weights bit for bit, log-probabilities of whole models to the rounding of activations.
// cuda_quantised_golden_test.cpp does the latter on a GPU.
#include "model/support/quantised_golden.h"

#include <bit>
#include <memory>

#include "gpu/cpu.h"
#include "kernels/quantised_weights.h"
#include "model/cpu_executor.h"
#include "model/support/quantised_sums.h"

namespace troupe::model {
namespace {

using kernels::WeightFormat;
using test::QuantisedCase;

using test::format_named, test::seed_of, test::shape_of, test::weighted;

class QuantisedGoldens : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, QuantisedGoldens, ::testing::ValuesIn(test::kTunedShapes),
                         [](const auto& info) { return std::string(info.param); });

// The weights are drawn, quantised and packed by the device, then read back from its order.
TEST_P(QuantisedGoldens, CodesAndScalesAreTheReferences) {
  const test::QuantisedFile file(GetParam());
  const auto spec = read_spec(test::tuned_directory(GetParam()));
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  Cpu device({.threads = 2, .pin = false});
  for (const test::StoredSums& stored : test::stored_sums(file)) {
    if (stored.format == "fp8") continue;  // cuda_quantised_golden_test.cpp
    SCOPED_TRACE(stored.format + " " + stored.weight);
    const WeightFormat format = format_named(stored.format);
    const auto [outputs, inputs] = shape_of(*spec, stored.weight);
    std::vector<std::byte> memory(kernels::matrix_bytes(format, outputs, inputs) + 64);
    void* start = memory.data();
    std::size_t space = memory.size();
    const kernels::Matrix into{std::align(64, memory.size() - 64, start, space), format, outputs, inputs};
    kernels::run(device, kernels::FillRandom{.into = into,
                                             .outputs = outputs,
                                             .seed = seed_of(stored.weight),
                                             .deviation = spec->initializer_range});
    const kernels::Packed packed(into);
    std::int64_t codes = 0, scales = 0;
    const int groups = format.group == 0 ? 1 : (inputs + format.group - 1) / format.group;
    for (int o = 0; o < outputs; ++o) {
      for (int i = 0; i < inputs; ++i) codes += weighted(packed.code(o, i), o, i);
      for (int g = 0; g < groups; ++g) {
        const float scale = packed.scale(o, g);
        // Scales per output are one row of the sum.
        scales += format.group == 0 ? weighted(std::bit_cast<std::uint32_t>(scale), 0, o)
                                    : weighted(float_to_bf16(scale), o, g);
      }
    }
    EXPECT_EQ(codes, stored.codes);
    EXPECT_EQ(scales, stored.scales);
  }
}

std::vector<QuantisedCase> cases_of_the_cpu() {
  std::vector<QuantisedCase> cases = test::quantised_cases();
  std::erase_if(cases, [](const QuantisedCase& c) { return c.flags.method == "block_wise_fp8"; });
  return cases;
}

class QuantisedGoldensOnCpu : public ::testing::TestWithParam<QuantisedCase> {};
INSTANTIATE_TEST_SUITE_P(All, QuantisedGoldensOnCpu, ::testing::ValuesIn(cases_of_the_cpu()),
                         [](const auto& info) { return test::case_name(info.param); });

// Eight prompts of 1 … 257 tokens, in pieces, while others decode.
TEST_P(QuantisedGoldensOnCpu, LogProbabilities) {
  config::Options options = test::quantised_options(GetParam());
  options.device.cpu_threads = 2;
  auto files = open_model(options.model);
  ASSERT_TRUE(files.ok()) << files.status().message;
  const Status chosen = files->choose(config::Device::cpu, options.quantization);
  ASSERT_TRUE(chosen.ok()) << chosen.message;
  wire::Capacity capacity;
  capacity.kv_blocks = test::quantised_blocks(GetParam());
  capacity.max_slots = 8;
  capacity.max_tokens_per_step = 256;
  capacity.max_model_len = test::kTunedModelLen;
  capacity.vocab_size = files->spec.vocab;
  const auto executor = make_cpu_executor(*files, options, capacity);
  ASSERT_TRUE(executor.ok()) << executor.status().message;
  test::QuantisedReport report;
  test::run_quantised(**executor, GetParam(), "cpu", 100, report);
}

}  // namespace
}  // namespace troupe::model
