// `troupe fit` against the tables of FastDeploy's best-practice pages: how many cards each checkpoint needs.
#include "model/documented/fit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model/documented/configs.h"
#include "model/documented/documented_models.h"

namespace troupe::model {
namespace {

constexpr const char* kFp8 = "block_wise_fp8";

FitMachine machine(std::string_view card, int count) {
  const auto found = find_card(card);
  EXPECT_TRUE(found.ok()) << found.status().message;
  auto made = machine_with(*found, count);
  EXPECT_TRUE(made.ok()) << made.status().message;
  return *std::move(made);
}

FitQuestion question(std::string_view name, std::string method, const FitMachine& on,
                     config::Options options = {}) {
  const DocumentedModel* model = find_documented(name);
  EXPECT_NE(model, nullptr) << name;
  options.quantization.method = std::move(method);
  return question_of(*model, *spec_of(*model), on, std::move(options));
}

/// A cell of a page's table: the least number of cards.
struct Cell {
  const char* model;
  const char* card;
  const char* method;
  int cards;
};

// The pages by the names of their files in FastDeploy's docs/best_practices.
constexpr Cell kCells[] = {
    // ERNIE-4.5-21B-A3B-Paddle.md, 1.1.
    {"ERNIE-4.5-21B-A3B", "H800 80GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B", "H800 80GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B", "H800 80GB", kFp8, 1},
    {"ERNIE-4.5-21B-A3B", "A800 80GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B", "A800 80GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B", "H20 96GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B", "H20 96GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B", "H20 96GB", kFp8, 1},
    {"ERNIE-4.5-21B-A3B", "L20 48GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B", "L20 48GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B", "L20 48GB", kFp8, 1},
    {"ERNIE-4.5-21B-A3B", "A30 40GB", "wint8", 2},
    {"ERNIE-4.5-21B-A3B", "A30 40GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B", "A10 24GB", "wint8", 2},
    {"ERNIE-4.5-21B-A3B", "A10 24GB", "wint4", 1},
    // ERNIE-4.5-0.3B-Paddle.md, 1.1.
    {"ERNIE-4.5-0.3B", "H800 80GB", "wint8", 1},
    {"ERNIE-4.5-0.3B", "H800 80GB", "wint4", 1},
    {"ERNIE-4.5-0.3B", "H800 80GB", kFp8, 1},
    {"ERNIE-4.5-0.3B", "A800 80GB", "wint8", 1},
    {"ERNIE-4.5-0.3B", "A800 80GB", "wint4", 1},
    {"ERNIE-4.5-0.3B", "H20 96GB", "wint8", 1},
    {"ERNIE-4.5-0.3B", "H20 96GB", "wint4", 1},
    {"ERNIE-4.5-0.3B", "H20 96GB", kFp8, 1},
    {"ERNIE-4.5-0.3B", "L20 48GB", "wint8", 1},
    {"ERNIE-4.5-0.3B", "L20 48GB", "wint4", 1},
    {"ERNIE-4.5-0.3B", "L20 48GB", kFp8, 1},
    {"ERNIE-4.5-0.3B", "A30 40GB", "wint8", 1},
    {"ERNIE-4.5-0.3B", "A30 40GB", "wint4", 1},
    {"ERNIE-4.5-0.3B", "A10 24GB", "wint8", 1},
    {"ERNIE-4.5-0.3B", "A10 24GB", "wint4", 1},
    // ERNIE-4.5-300B-A47B-Paddle.md, 1.1. WINT2 and W4A8 are below.
    {"ERNIE-4.5-300B-A47B", "H800 80GB", "wint8", 8},
    {"ERNIE-4.5-300B-A47B", "H800 80GB", "wint4", 4},
    {"ERNIE-4.5-300B-A47B", "H800 80GB", kFp8, 8},
    {"ERNIE-4.5-300B-A47B", "A800 80GB", "wint8", 8},
    {"ERNIE-4.5-300B-A47B", "A800 80GB", "wint4", 4},
    // ERNIE-4.5-21B-A3B-Thinking.md, 1.1.
    {"ERNIE-4.5-21B-A3B-Thinking", "H800 80GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "H800 80GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "H800 80GB", kFp8, 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "A800 80GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "A800 80GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "H20 96GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "H20 96GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "H20 96GB", kFp8, 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "L20 48GB", "wint8", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "L20 48GB", "wint4", 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "L20 48GB", kFp8, 1},
    {"ERNIE-4.5-21B-A3B-Thinking", "A30 40GB", "wint8", 2},
    {"ERNIE-4.5-21B-A3B-Thinking", "A30 40GB", "wint4", 1},
    // ERNIE-4.5-VL-28B-A3B-Thinking.md, 1.1.
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "A30 [24G]", "wint4", 2},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "A30 [24G]", "wint8", 2},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "A30 [24G]", "", 4},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "L20 [48G]", "wint4", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "L20 [48G]", "wint8", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "L20 [48G]", "", 2},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "H20 [144G]", "wint4", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "H20 [144G]", "wint8", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "H20 [144G]", "", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "A100 [80G]", "wint4", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "A100 [80G]", "wint8", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "A100 [80G]", "", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "H800 [80G]", "wint4", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "H800 [80G]", "wint8", 1},
    {"ERNIE-4.5-VL-28B-A3B-Thinking", "H800 [80G]", "", 1},
};

TEST(FitTable, EveryCellOfThePagesFitsOnAtMostTheirCards) {
  for (const Cell& cell : kCells) {
    const FitMachine on = machine(cell.card, cell.cards);
    const Fit fit = fit_least(question(cell.model, cell.method, on), on, cell.cards);
    EXPECT_EQ(fit.verdict, FitVerdict::fits)
        << cell.model << " " << cell.method << " on " << cell.cards << " " << cell.card << ": " << fit.reason;
    EXPECT_LE(fit.cards, cell.cards);
    EXPECT_GE(fit.sequences_at_full_length, 1);
    EXPECT_GE(fit.max_num_seqs, find_documented(cell.model)->max_num_seqs);
    EXPECT_LE(fit.weight_bytes + fit.kv_bytes + fit.activation_bytes + fit.other_bytes,
              on.memory_bytes / 10 * 9)
        << cell.model << " on " << cell.card;
  }
}

// Cells with a slash.
TEST(FitTable, NoFp8BeforeAda) {
  for (const char* card : {"A800 80GB", "A30 40GB", "A10 24GB"}) {
    const FitMachine on = machine(card, 1);
    const Fit answer = fit(question("ERNIE-4.5-0.3B", kFp8, on), on, 1);
    EXPECT_EQ(answer.verdict, FitVerdict::does_not_fit) << card;
    EXPECT_NE(answer.reason.find("8.9 or above; this one has 8."), std::string::npos) << answer.reason;
  }
}

// The pages' W4A8 300B runs on four cards.
TEST(FitTable, FourBitsBesideEightOfTheLargestModelFitFourCards) {
  for (const char* card : {"H800 80GB", "A800 80GB"}) {
    const FitMachine on = machine(card, 4);
    const Fit answer = fit(question("ERNIE-4.5-300B-A47B", "w4a8c8", on), on, 4);
    EXPECT_EQ(answer.verdict, FitVerdict::fits) << answer.reason;
    EXPECT_NE(fit(question("ERNIE-4.5-300B-A47B", "w4a8c8", on), on, 2).verdict, FitVerdict::fits);
  }
}

// The pages' 2-bit 300B runs on two cards.
TEST(FitTable, TwoBitsOfTheLargestModelFitTwoCards) {
  const FitMachine on = machine("H800 80GB", 2);
  EXPECT_EQ(fit(question("ERNIE-4.5-300B-A47B", "wint2", on), on, 2).verdict, FitVerdict::fits);
  EXPECT_EQ(fit(question("ERNIE-4.5-300B-A47B", "wint4", on), on, 2).verdict, FitVerdict::does_not_fit);
}

config::Options example_of_the_vision_page(int model_len, int seqs) {
  config::Options options;
  options.scheduler.max_model_len = model_len;
  options.scheduler.max_num_seqs = seqs;
  options.scheduler.max_num_batched_tokens = 16'384;
  options.media.processor_kwargs = R"({"image_max_pixels": 12845056})";
  return options;
}

// ERNIE-4.5-VL-28B-A3B-Thinking.md, example 2.
TEST(FitTable, AContextOf128KOnTwoH800s) {
  const FitMachine on = machine("H800", 2);
  const config::Options options = example_of_the_vision_page(131'072, 128);
  const Fit answer = fit(question("ERNIE-4.5-VL-28B-A3B-Thinking", "wint4", on, options), on, 2);
  EXPECT_EQ(answer.verdict, FitVerdict::fits) << answer.reason;
  EXPECT_EQ(answer.max_model_len, 131'072);
  EXPECT_EQ(answer.max_num_seqs, 128);
}

// Example 1, one RTX 4090. Its steps and images take more working memory than --gpu-memory-utilization 0.9
// leaves by our estimates; the card itself has room.
TEST(FitTable, AContextOf32KOnAnRtx4090NeedsMoreThan90Percent) {
  const FitMachine on = machine("RTX 4090", 1);
  config::Options options = example_of_the_vision_page(32'768, 32);
  const Fit as_written = fit(question("ERNIE-4.5-VL-28B-A3B-Thinking", "wint4", on, options), on, 1);
  EXPECT_EQ(as_written.verdict, FitVerdict::does_not_fit);
  EXPECT_NE(as_written.reason.find("raise --gpu-memory-utilization"), std::string::npos) << as_written.reason;
  options.device.gpu_memory_utilization = 0.97;
  const Fit raised = fit(question("ERNIE-4.5-VL-28B-A3B-Thinking", "wint4", on, options), on, 1);
  EXPECT_EQ(raised.verdict, FitVerdict::fits) << raised.reason;
}

// A rank of eight would have 448 columns of an expert, which is no multiple of an fp8 block.
TEST(FitTable, TheLargeModelInFp8KeepsItsExpertsWhole) {
  const FitMachine on = machine("H800", 8);
  EXPECT_TRUE(fit(question("ERNIE-4.5-300B-A47B", kFp8, on), on, 8).experts_whole);
  EXPECT_FALSE(fit(question("ERNIE-4.5-300B-A47B", "wint8", on), on, 8).experts_whole);
}

TEST(Fit, DoesNotFitWhereItCannot) {
  const FitMachine one = machine("H800", 1);
  const Fit large = fit(question("ERNIE-4.5-300B-A47B", "wint8", one), one, 1);
  EXPECT_EQ(large.verdict, FitVerdict::does_not_fit);
  EXPECT_NE(large.reason.find("the weights alone need"), std::string::npos) << large.reason;
  const FitMachine a10 = machine("A10", 1);
  EXPECT_EQ(fit(question("ERNIE-4.5-21B-A3B", "", a10), a10, 1).verdict, FitVerdict::does_not_fit);
  EXPECT_EQ(fit_least(question("ERNIE-4.5-21B-A3B", "", a10), a10, 16).cards, 4);
}

TEST(Fit, NeedsANumberOfCardsThatCanShareTheModel) {
  const FitMachine three = machine("H800", 3);
  const Fit answer = fit(question("ERNIE-4.5-21B-A3B", "wint8", three), three, 3);
  EXPECT_EQ(answer.verdict, FitVerdict::does_not_fit);
  EXPECT_NE(answer.reason.find("--tensor-parallel-size"), std::string::npos) << answer.reason;
}

// Sizes of the published checkpoints, from their repositories: 0.3B 0.72 GB; 21B 43.7 GB and 0.25 GB of the
// draft layer; 300B 597 to 599 GB and its draft layer, 8,192 wide.
TEST(Fit, DownloadsAreThePublishedSizes) {
  const auto gb = [](const char* name) {
    return static_cast<double>(published_bytes(*spec_of(*find_documented(name)))) * 1e-9;
  };
  EXPECT_NEAR(gb("ERNIE-4.5-0.3B"), 0.72, 0.01);
  EXPECT_NEAR(gb("ERNIE-4.5-21B-A3B"), 43.7 + 0.25, 0.1);
  EXPECT_EQ(gb("ERNIE-4.5-21B-A3B-Thinking"), gb("ERNIE-4.5-21B-A3B"));
  EXPECT_NEAR(gb("ERNIE-4.5-300B-A47B"), 600.5, 3);
  EXPECT_NEAR(gb("ERNIE-4.5-VL-28B-A3B-Thinking"), 58, 3);
}

TEST(Fit, SizesAreThoseOfADryRun) {
  const FitMachine on = machine("A800", 2);
  for (const char* name : {"ERNIE-4.5-21B-A3B", "ERNIE-4.5-VL-28B-A3B-Thinking"}) {
    const FitQuestion asked = question(name, "wint8", on);
    config::Options options = asked.options;
    const std::filesystem::path root = std::filesystem::path(TROUPE_TEST_DATA) / ".." / "..";
    options.model.directory = (root / "bench" / "models" / asked.shape).string();
    options.model.tokenizer = (root / "CMakeLists.txt").string();  // its presence alone is checked
    options.model.load_choices = config::LoadChoice::dummy;
    options.device.device = config::Device::cuda;
    options.parallel.tensor_parallel_size = 2;
    const auto dry = preflight(options, on.probes);
    ASSERT_TRUE(dry.ok()) << dry.status().message;
    const Fit answer = fit(asked, on, 2);
    EXPECT_EQ(answer.weight_bytes, dry->capacity.weight_bytes);
    EXPECT_EQ(answer.kv_bytes, dry->capacity.kv_bytes);
    EXPECT_EQ(answer.activation_bytes, dry->capacity.arena_bytes);
    EXPECT_EQ(answer.max_model_len, dry->capacity.max_model_len);
  }
}

TEST(Fit, SpeedsAreMeasuredWhereTheyWereAndElseBounds) {
  const FitMachine h200 = machine("H200", 1);
  const Fit measured = fit(question("ERNIE-4.5-21B-A3B", "wint4", h200), h200, 1);
  ASSERT_EQ(measured.speeds.size(), 2u);
  EXPECT_EQ(measured.speeds[0].measured, "2026-11-30");
  EXPECT_NEAR(measured.speeds[0].tokens_per_s, 1 / 1.23e-3, 1);
  EXPECT_EQ(measured.speeds[1].sequences, 128);
  EXPECT_NEAR(measured.speeds[1].tokens_per_s, 128 / 10.6e-3, 1);

  const FitMachine h100 = machine("H100", 1);
  const Fit computed = fit(question("ERNIE-4.5-21B-A3B", "wint4", h100), h100, 1);
  ASSERT_EQ(computed.speeds.size(), 2u);
  EXPECT_EQ(computed.speeds[0].measured, "");
  // By hand: of 28 layers one is dense (3 · 2560 · 12288 bytes in int8), 27 read six of 64 experts in 4 bits
  // and two shared ones (8 · 3 · 2560 · 1536 / 2 bytes) and the router in fp32; attention is int8 with
  // 2 · 2560 · 2560 + 2 · 2560 · 512 bytes a layer; the head is 103,424 · 2,560 in 16 bits; KV has 57,344
  // bytes a token. Scales are a thousandth of that.
  const double bytes = 3.0 * 2560 * 12288 + 27 * (8 * 3.0 * 2560 * 1536 / 2 + 4 * 64 * 2560) +
                       28 * (2.0 * 2560 * 2560 + 2.0 * 2560 * 512) + 2.0 * 103424 * 2560 + 2048 * 57344.0;
  EXPECT_NEAR(computed.speeds[0].tokens_per_s, 3.35e12 / bytes, 0.01 * 3.35e12 / bytes);
}

TEST(Fit, EveryKvFormatButPlainIsComputed) {
  config::Options options;
  options.quantization.kv_cache = config::KvCacheDType::int8;
  const FitMachine on = machine("H200", 1);
  const Fit answer = fit(question("ERNIE-4.5-21B-A3B", "wint4", on, options), on, 1);
  ASSERT_FALSE(answer.speeds.empty());
  EXPECT_EQ(answer.speeds[0].measured, "");
}

TEST(Machines, Refused) {
  EXPECT_EQ(machine_with(*find_card("A10"), 0).status().message,
            "--cards: got 0, expected a whole number from 1 to 64");
  EXPECT_EQ(machine_with(*find_card("A10"), 65).status().code, Code::invalid_argument);
  const auto old = machine_with(*find_card("V100"), 1);
  EXPECT_EQ(old.status().code, Code::unsupported);
  EXPECT_EQ(old.status().message, "The V100-32G has compute capability 7.0; 8.0 or higher is needed.");
}

TEST(DocumentedModels, AreFoundByTheNamesOfTheirRepositories) {
  for (const char* name : {"ERNIE-4.5-21B-A3B", "baidu/ERNIE-4.5-21B-A3B-Paddle", "ernie-4.5-21b-a3b-PT"}) {
    ASSERT_NE(find_documented(name), nullptr) << name;
    EXPECT_EQ(find_documented(name)->name, "ERNIE-4.5-21B-A3B");
  }
  EXPECT_EQ(find_documented("baidu/ERNIE-4.5-21B-A3B-Thinking")->max_model_len, 131'072);
  for (const char* name : {"", "ERNIE", "ERNIE-4.5-21B-A3B-Base", "/models/ERNIE-4.5-21B-A3B"})
    EXPECT_EQ(find_documented(name), nullptr) << name;
}

TEST(DocumentedModels, HaveTheShapesOfBenchModels) {
  for (const DocumentedModel& model : documented_models()) {
    const auto spec = spec_of(model);
    ASSERT_TRUE(spec.ok()) << spec.status().message;
    const auto file = read_spec(std::filesystem::path(TROUPE_TEST_DATA) / ".." / ".." / "bench" / "models" /
                                std::string(model.shape));
    ASSERT_TRUE(file.ok()) << file.status().message;
    EXPECT_EQ(spec_hash(*spec), spec_hash(*file)) << model.name;
  }
  EXPECT_EQ(shape_configs().size(), 4u);
}

}  // namespace
}  // namespace troupe::model
