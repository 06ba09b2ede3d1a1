// Vision tower, resampler and decoder on the CPU, compared with transformers.
#include "model/support/vision_model.h"

namespace troupe::model {
namespace {

using test::VisionGolden, test::VisionModel;

class VisionGoldens : public ::testing::TestWithParam<std::tuple<const char*, DType, Isa>> {
 protected:
  void SetUp() override {
    if (!usable(isa())) GTEST_SKIP() << "this machine has no " << to_string(isa());
    device_ = std::make_unique<Cpu>(CpuOptions{.threads = 2, .pin = false, .isa = isa()});
    const auto files = open_model({.directory = test::golden_directory(std::get<0>(GetParam())).string()});
    ASSERT_TRUE(files.ok()) << files.status().message;
    model_ = std::make_unique<VisionModel>(*device_, *files, dtype());
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  Isa isa() const { return std::get<2>(GetParam()); }
  double tolerance() const { return test::kTolerance[static_cast<int>(dtype())]; }
  VisionModel& model() { return *model_; }

 private:
  std::unique_ptr<Cpu> device_;
  std::unique_ptr<VisionModel> model_;
};

TEST_P(VisionGoldens, TowerAndResampler) {
  for (const char* prompt : {"mixed", "long"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    std::vector<float> towers;
    model().encode(golden, &towers);
    EXPECT_LE(test::relative_error(towers, golden.tower), tolerance()) << prompt;
    EXPECT_LE(test::relative_error(model().embeddings(golden), golden.embeddings), tolerance()) << prompt;
  }
}

TEST_P(VisionGoldens, Logits) {
  for (const char* prompt : {"mixed", "long", "text"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    model().encode(golden);
    const int tokens = static_cast<int>(golden.ids.size());
    const auto whole = model().logits(golden, golden.ids, 0, tokens);
    EXPECT_LE(test::relative_error(whole, golden.logits), tolerance()) << prompt;

    // A prompt cut anywhere, also within an item, gives the same bits.
    std::vector<float> cut;
    for (int first = 0; first < tokens; first += 7) {
      const auto some = model().logits(golden, golden.ids, first, std::min(7, tokens - first));
      cut.insert(cut.end(), some.begin(), some.end());
    }
    EXPECT_EQ(cut, whole) << prompt;
  }
}

// Rows of text alone, which the last layer finishes without the others, and one of an item among them.
TEST_P(VisionGoldens, TheLastRowAloneHasTheSameLogits) {
  const VisionGolden golden = test::load_vision_golden("mixed");
  model().encode(golden);
  const int tokens = static_cast<int>(golden.ids.size()), vocab = model().spec().vocab;
  const auto whole = model().logits(golden, golden.ids, 0, tokens);
  const auto of_item =
      static_cast<std::int32_t>(std::ranges::find(golden.kinds, kVisionRow) - golden.kinds.begin());
  ASSERT_TRUE(of_item < tokens && golden.kinds.back() == kTextRow);
  for (const std::vector<std::int32_t>& reads : {std::vector{tokens - 1}, std::vector{of_item, tokens - 1}}) {
    std::vector<float> expected;
    for (const std::int32_t row : reads)
      expected.insert(expected.end(), whole.begin() + row * vocab, whole.begin() + (row + 1) * vocab);
    EXPECT_EQ(model().logits(golden, golden.ids, 0, tokens, reads), expected) << reads.size() << " rows";
  }
}

TEST_P(VisionGoldens, GreedySteps) {
  for (const char* prompt : {"mixed", "long", "text"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    model().encode(golden);
    std::vector<TokenId> ids = golden.ids;
    const int tokens = static_cast<int>(ids.size()), vocab = model().spec().vocab;
    auto logits = model().logits(golden, ids, 0, tokens);
    for (const TokenId expected : golden.greedy) {
      const auto last = logits.end() - vocab;
      const auto best = static_cast<TokenId>(std::max_element(last, logits.end()) - last);
      if (dtype() == DType::f32) {
        ASSERT_EQ(best, expected) << prompt << " at " << ids.size();
      }
      ids.push_back(expected);
      logits = model().logits(golden, ids, static_cast<int>(ids.size()) - 1, 1);
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<VisionGoldens::ParamType>& info) {
  const auto [which, dtype, isa] = info.param;
  return std::string(which) + "_" + to_string(dtype) + "_" + to_string(isa);
}

INSTANTIATE_TEST_SUITE_P(All, VisionGoldens,
                         ::testing::Combine(::testing::Values("vision_small", "vision_nested"),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(Isa::baseline, Isa::avx2, Isa::avx512,
                                                              Isa::avx512_bf16, Isa::amx)),
                         name_of);

// The pure functions of a prompt give what the references were computed with.
TEST(VisionGolden, PositionsAndKindsFollowFromIdsAndItems) {
  const auto spec = read_spec(test::golden_directory("vision_small"));
  ASSERT_TRUE(spec.ok());
  for (const char* prompt : {"mixed", "long", "text"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    std::vector<MediaGrid> grids;
    for (const MediaItem& item : golden.items) grids.push_back({item.kind, item.grid});
    const auto located = locate_media(golden.ids, spec->vision->patch, grids);
    ASSERT_TRUE(located.ok()) << located.status().message;
    EXPECT_EQ(*located, golden.items);
    const MediaPositions positions(*located);
    for (std::size_t i = 0; i < golden.ids.size(); ++i) {
      EXPECT_EQ(positions.at(static_cast<std::int32_t>(i)), golden.positions[i]) << prompt << " " << i;
      const bool vision = golden.ids[i] == spec->vision->patch || spec->vision->is_boundary(golden.ids[i]);
      EXPECT_EQ(vision, golden.kinds[i] == kVisionRow) << prompt << " " << i;
    }
  }
}

TEST(VisionTower, RefusesGridsThatCannotBe) {
  Cpu device({.threads = 1, .pin = false});
  const auto files = open_model({.directory = test::golden_directory("vision_small").string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  VisionModel model(device, *files, DType::f32);
  std::vector<std::uint8_t> patches(64 * kPatchBytes);
  const auto begin = [&](MediaKind kind, PatchGrid grid, int count) {
    float out[8 * 64];
    return model.tower()
        .begin(kind, grid, std::span(patches).first(static_cast<std::size_t>(count) * kPatchBytes), out)
        .message;
  };
  EXPECT_NE(begin(MediaKind::image, {1, 3, 4}, 12).find("1 × 3 × 4 patches"), std::string::npos);
  EXPECT_NE(begin(MediaKind::image, {2, 2, 2}, 8).find("one frame of an image"), std::string::npos);
  EXPECT_NE(begin(MediaKind::video, {3, 2, 2}, 12).find("an even number of a video"), std::string::npos);
  EXPECT_NE(begin(MediaKind::image, {1, 0, 2}, 0).find("1 × 0 × 2"), std::string::npos);
  EXPECT_NE(begin(MediaKind::image, {1, 6, 6}, 36).find("a frame may have 24"), std::string::npos);
  EXPECT_NE(begin(MediaKind::image, {1, 2, 2}, 3).find("came with 1764 bytes; it has 2352"),
            std::string::npos);
  EXPECT_EQ(begin(MediaKind::image, {1, 2, 2}, 4), "");
}

}  // namespace
}  // namespace troupe::model
