// The tuned shapes' goldens on the GPU, through the executor that the server uses: its queue, graphs of
// decode steps, prompt chunks in the same steps as decode rows, batches of 1 … 64.
#include <numeric>

#include "gpu/cuda.h"
#include "model/cuda/executor.h"
#include "model/support/tuned_golden.h"

namespace troupe::model {
namespace {

using test::TunedGolden;
using test::TunedPart;
using test::TunedReport;

class CudaTunedGoldens : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    golden = std::make_unique<TunedGolden>(GetParam());
    make_executor({});
  }

  /// `avoided`: kernels to do without.
  void make_executor(const KernelWays& avoided) {
    config::Options options = test::tuned_options(GetParam());
    options.model.dtype = config::DTypeOption::bfloat16;
    options.device.avoided_kernels = to_string(avoided);
    options.device.num_gpu_blocks_override = test::blocks_of(*golden, test::all_of(*golden));
    options.scheduler.max_num_seqs = golden->sequences();
    options.scheduler.max_num_batched_tokens = 1024;
    const auto files = open_model(options.model);
    ASSERT_TRUE(files.ok()) << files.status().message;
    auto made = make_cuda_executor(*files, options);
    ASSERT_TRUE(made.ok()) << made.status().message;
    executor = std::move(*made);
  }

  void judge(const std::string& what) {
    report.print(GetParam() + std::string(" ") + what);
    EXPECT_EQ(report.missing, 0);
    EXPECT_LE(report.outputs.our_rms(), test::kMostOfTheirError * report.outputs.their_rms());
    EXPECT_LE(report.prompts.our_rms(), test::kMostOfTheirError * report.prompts.their_rms());
    EXPECT_GE(report.ours_agree, report.theirs_agree);
  }

  std::unique_ptr<TunedGolden> golden;
  std::unique_ptr<Executor> executor;
  TunedReport report;
};
INSTANTIATE_TEST_SUITE_P(All, CudaTunedGoldens, ::testing::ValuesIn(test::kTunedShapes),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaTunedGoldens, InBatchesOfEverySize) {
  int first = 0;
  for (const int size : {1, 2, 5, 8, 16, 32}) {
    TunedPart part{.sequences = std::vector<int>(static_cast<std::size_t>(size)), .steps = golden->steps};
    std::iota(part.sequences.begin(), part.sequences.end(), first);
    first += size;
    TunedReport batch;
    test::run_tuned(*executor, *golden, part, 1024, 0, batch);
    if (HasFailure()) return;
    batch.print(GetParam() + std::string(" batch ") + std::to_string(size));
    report.add(batch);
  }
  ASSERT_EQ(first, golden->sequences());
  judge("in batches");
}

TEST_P(CudaTunedGoldens, AllTogetherInChunks) {
  test::run_tuned(*executor, *golden, test::all_of(*golden), 192, 2, report);
  if (HasFailure()) return;
  judge("all together");
}

// What a server does on a card that computes these wrongly (troupe check-gpu).
TEST_P(CudaTunedGoldens, WithoutKernelsThatAreWrongOnTheCard) {
  const KernelWays products{KernelWay::product_strips, KernelWay::product_slabs, KernelWay::product_wgmma,
                            KernelWay::attention_flash, KernelWay::sample_resident};
  KernelWays all;
  for (int i = 0; i < kKernelWays; ++i) all.add(static_cast<KernelWay>(i));
  for (const KernelWays& avoided : {products, all}) {
    executor.reset();
    make_executor(avoided);
    if (HasFailure()) return;
    report = {};
    test::run_tuned(*executor, *golden, test::all_of(*golden), 192, 2, report);
    if (HasFailure()) return;
    judge("without " + to_string(avoided));
  }
}

}  // namespace
}  // namespace troupe::model
