// Quantised formats on the GPU beside the numpy reference, through the executor that the server uses.
#include <algorithm>

#include "gpu/cuda.h"
#include "model/cuda/executor.h"
#include "model/support/quantised_golden.h"

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
  options.device.num_gpu_blocks_override =
      std::max(test::quantised_blocks(GetParam()), options.scheduler.max_model_len / kernels::kBlockTokens + 1);
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

}  // namespace
}  // namespace troupe::model
