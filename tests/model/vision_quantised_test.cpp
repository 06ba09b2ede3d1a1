// A quantised vision-language model on the CPU beside the numpy reference
// (tools/generate/make_quantised_vision_goldens.py): both kinds of experts are quantised, and an answer
// differs by what rounding activations costs, whether weights are quantised at the load or by `troupe
// quantize`, and on two ranks.
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "model/quantised_copy.h"
#include "model/support/quantised_golden.h"
#include "model/support/vision_model.h"
#include "model/support/vision_twin.h"

namespace troupe::model {
namespace {

using test::VisionGolden, test::VisionModel;

struct QuantisedVision {
  const char* name;
  config::QuantizationOptions flags;
};

ModelFiles files_of(const std::filesystem::path& directory, const config::QuantizationOptions& flags) {
  auto files = open_model({.directory = directory.string(), .dtype = config::DTypeOption::bfloat16});
  if (!files.ok()) throw std::runtime_error(files.status().message);
  if (const Status s = files->choose(config::Device::cpu, flags); !s.ok())
    throw std::runtime_error(s.message);
  return std::move(*files);
}

/// The logits of all prompts with their greedy tokens, one after the other.
std::vector<float> logits_of(VisionModel& model, const test::QuantisedFile& file) {
  std::vector<float> all;
  for (const std::string prompt : {"mixed", "long", "text"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    model.place(golden);
    const auto ids = file.read<std::int32_t>(prompt + ".ids");
    const auto some = model.logits(golden, ids, 0, static_cast<int>(ids.size()));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

/// Sums of squares of the errors of the rows, without the largest tenth: there the rounding has chosen
/// another expert, in numpy as well, though not always in the same rows. Returns the rms.
double usual_rms(std::vector<double> squares, std::size_t of_row) {
  std::ranges::sort(squares);
  squares.resize(squares.size() * 9 / 10);
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0) /
                   static_cast<double>(squares.size() * of_row));
}

/// Ranks round other parts of a row together than one rank, which numpy has: of so few rows another sample of
/// the same noise.
constexpr double kMostOfRanks = 1.3;

/// Expects the error to be at most `most` times that of numpy with the device's rounding.
void check(const std::vector<float>& logits, const std::string& name, const test::QuantisedFile& file,
           int vocab, double most = test::kMostOfRounding) {
  std::vector<double> our_rows, their_rows;
  std::size_t kept = 0;
  for (const std::string prompt : {"mixed", "long", "text"}) {
    const std::string at = name + "." + prompt + ".";
    const auto top = file.read<std::int32_t>(at + "top_ids");
    const auto exact = file.read<float>(at + "reference"), rounded = file.read<float>(at + "cpu");
    kept = top.size() / file.read<std::int32_t>(prompt + ".ids").size();
    for (std::size_t i = 0; i < top.size();) {
      test::SquaredErrors errors;
      for (std::size_t k = 0; k < kept; ++k, ++i) {
        const float ours =
            logits.at(our_rows.size() * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(top[i]));
        ASSERT_TRUE(std::isfinite(ours));
        errors.add(exact[i], ours, rounded[i]);
      }
      our_rows.push_back(errors.ours);
      their_rows.push_back(errors.theirs);
    }
  }
  ASSERT_EQ(our_rows.size() * static_cast<std::size_t>(vocab), logits.size());
  const double ours = usual_rms(our_rows, kept), theirs = usual_rms(their_rows, kept);
  std::printf("%s: %zu rows, rms error %.4f, of rounding alone %.4f, ratio %.3f\n", name.c_str(),
              our_rows.size(), ours, theirs, ours / theirs);
  EXPECT_LE(ours, most * theirs);
}

class QuantisedVisionGoldens : public ::testing::TestWithParam<QuantisedVision> {
 protected:
  test::QuantisedFile file{"vision_small"};
  test::TempDirectory directory;
};
INSTANTIATE_TEST_SUITE_P(All, QuantisedVisionGoldens,
                         ::testing::Values(QuantisedVision{"wint8", {.method = "wint8"}},
                                           QuantisedVision{"wint4", {.method = "wint4"}},
                                           QuantisedVision{"wint4_group32", {.method = "wint4", .group = 32}},
                                           QuantisedVision{
                                               "wint8_kv_fp8",
                                               {.method = "wint8", .kv_cache = config::KvCacheDType::fp8}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(QuantisedVisionGoldens, Logits) {
  const auto& [name, flags] = GetParam();
  for (const char* checkpoint : {"vision_small", "vision_nested"}) {
    SCOPED_TRACE(checkpoint);
    Cpu device({.threads = 2, .pin = false});
    const ModelFiles files = files_of(test::golden_directory(checkpoint), flags);
    VisionModel model(device, files, files.formats);
    check(logits_of(model, file), name, file, files.spec.vocab);
  }
}

TEST_P(QuantisedVisionGoldens, ACopyHasTheSameBits) {
  const auto& [name, flags] = GetParam();
  const auto original = test::golden_directory("vision_small");
  const ModelFiles files = files_of(original, flags);
  if (flags.group == 32) return;  // two shared experts of 24 inputs are no whole groups side by side
  const Status written = write_quantised_copy(files, {original, "config.json", directory.path() / "copy"});
  ASSERT_TRUE(written.ok()) << written.message;
  const ModelFiles copied = files_of(directory.path() / "copy", {.kv_cache = flags.kv_cache});
  EXPECT_EQ(copied.formats, files.formats);
  Cpu device({.threads = 2, .pin = false});
  VisionModel one(device, files, files.formats), other(device, copied, copied.formats);
  EXPECT_EQ(logits_of(one, file), logits_of(other, file));
}

/// The logits of two ranks, which have to be equal.
std::vector<float> logits_of_ranks(const ModelFiles& files, bool expert_parallel,
                                   const test::QuantisedFile& file) {
  const auto memory = create_rank_memory(2);
  EXPECT_TRUE(memory.ok());
  std::vector<float> logits[2];
  {
    std::vector<std::jthread> ranks;
    for (int r = 0; r < 2; ++r) {
      ranks.emplace_back([&, r] {
        Cpu device({.threads = 1, .pin = false});
        const Shard shard{r, 2, expert_parallel};
        ASSERT_TRUE(check_ranks(files, shard).ok()) << check_ranks(files, shard).message;
        auto collective = Collective<Cpu>::attach(*memory, shard);
        ASSERT_TRUE(collective.ok());
        VisionModel model(device, files, files.formats, shard, collective->get());
        logits[r] = logits_of(model, file);
      });
    }
  }
  ::close(*memory);
  EXPECT_EQ(logits[1], logits[0]);
  return logits[0];
}

TEST_P(QuantisedVisionGoldens, TwoRanksAnswerAsOneAlsoFromACopy) {
  const auto& [name, flags] = GetParam();
  const std::filesystem::path original = directory.path() / "model", copy = directory.path() / "copy";
  std::filesystem::create_directory(original);
  test::write_vision_twin("vision_small", original);
  const ModelFiles files = files_of(original, flags);
  for (const bool expert_parallel : {false, true}) {
    SCOPED_TRACE(expert_parallel);
    if (flags.group == 32 && !expert_parallel) {  // a half is 12 wide
      EXPECT_NE(check_ranks(files, {0, 2}).message.find("which is no multiple of the 32 that share a scale"),
                std::string::npos);
      continue;
    }
    const std::vector<float> logits = logits_of_ranks(files, expert_parallel, file);
    check(logits, name, file, files.spec.vocab, kMostOfRanks);
    if (flags.group == 32) continue;  // see ACopyHasTheSameBits
    std::filesystem::remove_all(copy);
    const Status written = write_quantised_copy(files, {original, "config.json", copy});
    ASSERT_TRUE(written.ok()) << written.message;
    EXPECT_EQ(logits_of_ranks(files_of(copy, {.kv_cache = flags.kv_cache}), expert_parallel, file), logits);
  }
}

TEST(QuantisedVision, WeightsOfBothKindsOfExpertsAreCounted) {
  const auto bytes = [](const config::QuantizationOptions& flags, int vision_width) {
    ModelFiles files = files_of(test::golden_directory("vision_small"), flags);
    files.spec.hidden = 512;  // rows of many whole pieces
    files.spec.vision->expert_intermediate = vision_width;
    return WeightLayout::make(files.spec, files.formats, files.tied, {}).bytes;
  };
  const auto more = [&](const char* method) {
    return static_cast<double>(bytes({.method = method}, 1024) - bytes({.method = method}, 512));
  };
  const double elements =
      2 * 6 * 3 * 512 * 512;  // of six experts in two layers: gate, up and down, 512 columns wider
  EXPECT_NEAR(more("") / elements, 2, 0.1);
  EXPECT_NEAR(more("wint8") / elements, 1, 0.1);
  EXPECT_NEAR(more("wint4") / elements, 0.5, 0.1);
}

// The tower and the resampler keep the activations' type.
TEST(QuantisedVision, TheTowerIsNotQuantised) {
  for (const char* method : {"wint8", "wint4"}) {
    const ModelFiles files = files_of(test::golden_directory("vision_small"), {.method = method});
    const WeightLayout layout = WeightLayout::make(files.spec, files.formats, files.tied, {});
    EXPECT_EQ(layout.vision.patch.format, kernels::WeightFormat(DType::bf16));
    EXPECT_EQ(layout.vision.blocks[0].qkv.weight.format, kernels::WeightFormat(DType::bf16));
    EXPECT_TRUE(layout.layers[1].vision.gate_up.first.format.quantised());
    EXPECT_EQ(layout.layers[1].vision.gate_up.first.format, layout.layers[1].expert_gate_up.first.format);
    EXPECT_FALSE(layout.layers[1].vision.router.format.quantised());
  }
}

TEST(QuantisedVision, Fp8IsRefusedOnTheCpu) {
  auto files = open_model({.directory = test::golden_directory("vision_small").string()});
  ASSERT_TRUE(files.ok());
  const Status refused = files->choose(config::Device::cpu, {.method = "block_wise_fp8"});
  EXPECT_EQ(refused.code, Code::unsupported);
  EXPECT_NE(
      refused.message.find("needs an Ada or Hopper GPU; on the CPU --quantization wint8 and wint4 work"),
      std::string::npos);
}

}  // namespace
}  // namespace troupe::model
