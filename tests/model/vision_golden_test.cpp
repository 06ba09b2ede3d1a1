// Vision tower, resampler and decoder on the CPU, compared with transformers.
#include "model/support/vision_golden.h"

#include "gpu/cpu.h"
#include "model/vision/tower.h"

namespace troupe::model {
namespace {

using test::VisionGolden;

constexpr int kFramePatches = 24;  // of the largest frame among the prompts

/// A model with its tower, and encoded items.
class VisionModel {
 public:
  VisionModel(Cpu& device, const std::string& checkpoint, DType dtype) : device_(device), dtype_(dtype) {
    const auto files = open_model({.directory = test::golden_directory(checkpoint).string()});
    if (!files.ok()) throw std::runtime_error(files.status().message);
    spec_ = files->spec;
    auto weights = Weights<Cpu>::load(device, spec_, dtype, files->map);
    if (!weights.ok()) throw std::runtime_error(weights.status().message);
    auto decoder = Decoder<Cpu>::make(device, spec_, dtype, std::move(*weights), test::kGoldenLimits);
    decoder_ = std::move(*decoder);
    auto tower = VisionTower<Cpu>::make(device, *spec_.vision, spec_.hidden, spec_.rms_norm_eps, dtype,
                                        decoder_->vision_weights(), kFramePatches);
    tower_ = std::make_unique<VisionTower<Cpu>>(std::move(*tower));
  }

  std::vector<float> rows(const void* from, int count, int columns) const {
    std::vector<float> out;
    for (int r = 0; r < count; ++r) {
      for (int c = 0; c < columns; ++c)
        out.push_back(load_element(from, dtype_, static_cast<std::size_t>(r * kernels::padded(columns) + c)));
    }
    return out;
  }

  /// Encodes all items; what the tower gave is added to `towers`.
  void encode(const VisionGolden& golden, std::vector<float>* towers = nullptr) {
    embeddings_.clear();
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const MediaItem& item = golden.items[i];
      const auto bytes = static_cast<std::size_t>(item.grid.tokens()) *
                         static_cast<std::size_t>(kernels::padded(spec_.hidden)) * size_of(dtype_);
      embeddings_.push_back(*Buffer<Cpu>::make(device_, bytes, "embeddings"));
      const Status begun =
          tower_->begin(item.kind, item.grid, golden.patches_of(i), embeddings_.back().data());
      ASSERT_TRUE(begun.ok()) << begun.message;
      while (true) {
        const bool more = tower_->advance();
        if (towers != nullptr && tower_->frame_has_ended()) {
          const auto frame =
              rows(tower_->frame_output(), item.grid.rows * item.grid.columns, spec_.vision->width);
          towers->insert(towers->end(), frame.begin(), frame.end());
        }
        if (!more) break;
      }
    }
  }

  /// Tokens [first, first + count) of the prompt and its continuation as a step.
  StepBatch step(const VisionGolden& golden, std::span<const TokenId> ids, int first, int count) const {
    const MediaPositions positions(golden.items);
    StepBatch batch;
    batch.sequences = {{kBlocks.data(), first, count, 0}};
    for (int i = first; i < first + count; ++i) {
      batch.tokens.push_back(ids[static_cast<std::size_t>(i)]);
      batch.sample_rows.push_back(i - first);
      if (golden.items.empty()) continue;
      batch.positions.push_back(positions.at(i));
      batch.kinds.push_back(
          i < static_cast<int>(golden.kinds.size()) ? golden.kinds[static_cast<std::size_t>(i)] : kTextRow);
    }
    if (std::ranges::count(batch.kinds, kVisionRow) == 0) batch.kinds.clear();
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const MediaItem& item = golden.items[i];
      const int begin = std::max(item.first, first), end = std::min(item.end(), first + count);
      if (begin >= end) continue;
      const std::size_t row = static_cast<std::size_t>(kernels::padded(spec_.hidden)) * size_of(dtype_);
      batch.embedded.push_back({.item = static_cast<int>(i),
                                .first = begin - item.first,
                                .row = begin - first,
                                .count = end - begin,
                                .rows = static_cast<const std::byte*>(embeddings_[i].data()) +
                                        static_cast<std::size_t>(begin - item.first) * row});
    }
    return batch;
  }

  std::vector<float> logits(const VisionGolden& golden, std::span<const TokenId> ids, int first, int count) {
    std::vector<float> out(static_cast<std::size_t>(count * spec_.vocab));
    decoder_->logits(step(golden, ids, first, count), out);
    return out;
  }

  const ModelSpec& spec() const { return spec_; }
  VisionTower<Cpu>& tower() { return *tower_; }
  std::vector<float> embeddings(const VisionGolden& golden) const {
    std::vector<float> all;
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const auto some =
          rows(embeddings_[i].data(), static_cast<int>(golden.items[i].grid.tokens()), spec_.hidden);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

 private:
  inline static const std::vector<BlockId> kBlocks{6, 0, 3};
  Cpu& device_;
  DType dtype_;
  ModelSpec spec_;
  std::unique_ptr<Decoder<Cpu>> decoder_;
  std::unique_ptr<VisionTower<Cpu>> tower_;
  std::vector<Buffer<Cpu>> embeddings_;
};

class VisionGoldens : public ::testing::TestWithParam<std::tuple<const char*, DType, Isa>> {
 protected:
  void SetUp() override {
    if (isa() > cpu_features().best) GTEST_SKIP() << "this machine has no " << to_string(isa());
    device_ = std::make_unique<Cpu>(CpuOptions{.threads = 2, .pin = false, .isa = isa()});
    model_ = std::make_unique<VisionModel>(*device_, std::get<0>(GetParam()), dtype());
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
                                                              Isa::avx512_bf16)),
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
  VisionModel model(device, "vision_small", DType::f32);
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
