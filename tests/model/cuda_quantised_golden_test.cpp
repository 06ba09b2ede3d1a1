// Quantised formats on the GPU beside the numpy reference, through the executor that the server uses.
#include <algorithm>
#include <bit>

#include "gpu/buffer.h"
#include "gpu/cuda.h"
#include "kernels/fill_random.h"
#include "model/cuda/executor.h"
#include "model/support/quantised_golden.h"
#include "model/support/quantised_sums.h"

namespace troupe::model {
namespace {

using test::QuantisedCase;

class CudaQuantisedGoldens : public ::testing::TestWithParam<QuantisedCase> {};
INSTANTIATE_TEST_SUITE_P(All, CudaQuantisedGoldens, ::testing::ValuesIn(test::quantised_cases()),
                         [](const auto& info) { return test::case_name(info.param); });

// Chunks of 100 tokens beside decode rows; a chunk of 1024: whole prompts.
TEST_P(CudaQuantisedGoldens, LogProbabilities) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  config::Options options = test::quantised_options(GetParam());
  options.device.num_gpu_blocks_override = std::max(
      test::quantised_blocks(GetParam()), options.scheduler.max_model_len / kernels::kBlockTokens + 1);
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_batched_tokens = 1024;
  auto files = open_model(options.model);
  ASSERT_TRUE(files.ok()) << files.status().message;
  const Status chosen = files->choose(config::Device::cuda, options.quantization);
  if (chosen.code == Code::unsupported) GTEST_SKIP() << chosen.message;
  ASSERT_TRUE(chosen.ok()) << chosen.message;
  const auto executor = make_cuda_executor(*files, options);
  ASSERT_TRUE(executor.ok()) << executor.status().message;
  for (const int chunk : {100, 1024}) {
    test::QuantisedReport report;
    test::run_quantised(**executor, GetParam(), "cuda", chunk, report);
  }
}

class CudaQuantisedSums : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, CudaQuantisedSums, ::testing::ValuesIn(test::kTunedShapes),
                         [](const auto& info) { return std::string(info.param); });

// fp8 weights are drawn and quantised on the GPU. The order of the other formats' codes: codes_test.cpp.
TEST_P(CudaQuantisedSums, Fp8CodesAndScalesAreTheReferences) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const test::QuantisedFile file(GetParam());
  const auto spec = read_spec(test::tuned_directory(GetParam()));
  ASSERT_TRUE(spec.ok()) << spec.status().message;
  Cuda device;
  int checked = 0;
  for (const test::StoredSums& stored : test::stored_sums(file)) {
    if (stored.format != "fp8") continue;
    SCOPED_TRACE(stored.weight);
    const kernels::WeightFormat format = test::format_named(stored.format);
    const auto [outputs, inputs] = test::shape_of(*spec, stored.weight);
    auto memory = Buffer<Cuda>::make(device, kernels::matrix_bytes(format, outputs, inputs), "a matrix");
    ASSERT_TRUE(memory.ok()) << memory.status().message;
    const kernels::Matrix into{memory->data(), format, outputs, inputs};
    kernels::run(device, kernels::FillRandom{.into = into,
                                             .outputs = outputs,
                                             .seed = test::seed_of(stored.weight),
                                             .deviation = spec->initializer_range});
    std::vector<std::byte> bytes(memory->bytes());
    device.download(bytes.data(), into.data, bytes.size());
    device.sync();
    const auto width = std::size_t(kernels::padded_inputs(format, inputs)),
               blocks = width / kernels::kFp8Block,
               eights = std::size_t(kernels::padded(outputs)) / kernels::kFp8ScaleOutputs;
    const auto* scales =
        reinterpret_cast<const float*>(bytes.data() + kernels::weight_bytes(format, outputs, inputs));
    std::int64_t codes = 0, sum = 0;
    for (std::size_t o = 0; o < std::size_t(outputs); ++o) {
      for (std::size_t i = 0; i < std::size_t(inputs); ++i)
        codes += test::weighted(std::to_integer<int>(bytes[o * width + i]), std::int64_t(o), std::int64_t(i));
      for (std::size_t b = 0; b < blocks; ++b) {
        const float scale = scales[b * eights + o / kernels::kFp8ScaleOutputs];
        ASSERT_EQ(
            scale,
            scales[b * eights + o / kernels::kFp8Block * (kernels::kFp8Block / kernels::kFp8ScaleOutputs)]);
        if (o % kernels::kFp8Block == 0)
          sum += test::weighted(std::bit_cast<std::uint32_t>(scale), std::int64_t(o / kernels::kFp8Block),
                                std::int64_t(b));
      }
    }
    EXPECT_EQ(codes, stored.codes);
    EXPECT_EQ(sum, stored.scales);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace troupe::model
