// The small models that see on the GPU, compared with transformers; and a tower with the released models'
// heads and enough patches for the tensor cores, compared with the CPU.
#include "gpu/cuda.h"
#include "model/support/random_tower.h"
#include "model/support/vision_model.h"

namespace troupe::model {
namespace {

using test::RandomTower, test::VisionGolden;

class CudaVision : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

class CudaVisionGoldens : public CudaVision,
                          public ::testing::WithParamInterface<std::tuple<const char*, DType, bool>> {};

TEST_P(CudaVisionGoldens, EqualTheReference) {
  const auto [which, dtype, invariant] = GetParam();
  Cuda device({.batch_invariant = invariant});
  const auto files = open_model({.directory = test::golden_directory(which).string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  test::VisionModelOn<Cuda> model(device, *files, dtype);
  const double tolerance = test::kTolerance[static_cast<int>(dtype)];
  for (const char* prompt : {"mixed", "long", "text"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    std::vector<float> towers;
    model.encode(golden, &towers);
    if (!golden.items.empty()) {
      EXPECT_LE(test::relative_error(towers, golden.tower), tolerance) << prompt << ": tower";
      EXPECT_LE(test::relative_error(model.embeddings(golden), golden.embeddings), tolerance)
          << prompt << ": resampler";
      model.place(golden);  // so that what follows says something about the decoder alone
    }
    const int tokens = static_cast<int>(golden.ids.size());
    const auto whole = model.logits(golden, golden.ids, 0, tokens);
    EXPECT_LE(test::relative_error(whole, golden.logits), tolerance) << prompt << ": logits";
    std::vector<float> cut;
    for (int first = 0; first < tokens; first += 7) {
      const auto some = model.logits(golden, golden.ids, first, std::min(7, tokens - first));
      cut.insert(cut.end(), some.begin(), some.end());
    }
    EXPECT_LE(test::relative_error(cut, golden.logits), tolerance) << prompt << ": in chunks";
    if (invariant) {
      EXPECT_EQ(cut, whole) << prompt;
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<CudaVisionGoldens::ParamType>& info) {
  const auto [which, dtype, invariant] = info.param;
  return std::string(which) + "_" + to_string(dtype) + (invariant ? "_invariant" : "");
}

INSTANTIATE_TEST_SUITE_P(All, CudaVisionGoldens,
                         ::testing::Combine(::testing::Values("vision_small", "vision_nested"),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Bool()),
                         name_of);

TEST_F(CudaVision, TheTowerOnTensorCoresIsTheCpus) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    Cpu cpu({.threads = 2, .pin = false});
    Cuda cuda;
    constexpr int kPatches = 26 * 22;
    RandomTower<Cpu> expected(cpu, dtype, kPatches);
    RandomTower<Cuda> tower(cuda, dtype, kPatches);
    struct Item {
      MediaKind kind;
      PatchGrid grid;
    };
    // The largest frame twice, and small ones after it: nothing of another item's may be seen.
    for (const auto& [kind, grid] : {Item{MediaKind::image, {1, 26, 22}}, Item{MediaKind::image, {1, 2, 2}},
                                     Item{MediaKind::video, {4, 12, 10}}, Item{MediaKind::image, {1, 26, 22}},
                                     Item{MediaKind::image, {1, 4, 100}}}) {
      const auto right = expected.encode(kind, grid);
      tower.tower().limit_attention(std::numeric_limits<double>::infinity());
      const auto whole = tower.encode(kind, grid);
      EXPECT_LE(test::relative_error(whole, right), test::kTolerance[static_cast<int>(dtype)])
          << to_string(dtype) << " " << grid.rows << " × " << grid.columns;
      tower.tower().limit_attention(1);  // so few queries at a time as there may be
      EXPECT_EQ(tower.encode(kind, grid), whole) << "in pieces";
    }
  }
}

}  // namespace
}  // namespace troupe::model
