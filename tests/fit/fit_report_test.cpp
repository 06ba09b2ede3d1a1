#include "cli/fit_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace troupe::cli {
namespace {

using model::Fit, model::FitMachine, model::FitVerdict;

FitMachine two_cards() {
  FitMachine machine;
  machine.name = "A10-24G";
  machine.cards = 2;
  machine.memory_bytes = std::uint64_t{22} << 30;
  return machine;
}

FitRow fitting(int cards) {
  Fit fit{.verdict = FitVerdict::fits, .cards = cards};
  fit.weight_bytes = std::uint64_t{11} << 30;
  fit.kv_bytes = std::uint64_t{3} << 29;
  fit.activation_bytes = std::uint64_t{1} << 30;
  fit.other_bytes = std::uint64_t{1} << 29;
  fit.kv_tokens = 64'000;
  fit.max_model_len = 32'768;
  fit.max_num_seqs = 128;
  fit.sequences_at_full_length = 1;
  fit.speeds = {{1, 2048, 432.4, "2026-11-22"}, {30, 2048, 5000.6, ""}};
  return {"ERNIE-4.5-21B-A3B", "wint4", 43'900'000'000, fit};
}

FitRow refused(FitVerdict verdict, std::string reason) {
  return {
      "ERNIE-4.5-21B-A3B", "", 43'900'000'000, {.verdict = verdict, .reason = std::move(reason), .cards = 1}};
}

TEST(FitText, OfAModelThatFits) {
  EXPECT_EQ(
      fit_text(fitting(2), two_cards(), nullptr),
      "ERNIE-4.5-21B-A3B, wint4, on A10-24G × 2: fits\n"
      "  memory    of each card: weights 11.00 GiB, KV 1.50 GiB, activations 1.00 GiB, kernels and graphs "
      "512 MiB; it has 22.00 GiB\n"
      "  limits    max-model-len 32768, max-num-seqs 128; KV blocks for 64000 tokens, 1 sequence at full "
      "length\n"
      "  download  43.9 GB\n"
      "  speed     1 stream, 2048 tokens of context: 432 tok/s, measured on 2026-11-22\n"
      "  speed     30 streams, 2048 tokens of context: at most 5001 tok/s, computed\n");
}

TEST(FitText, HasStepsOfMoreRanks) {
  FitRow row = fitting(2);
  const model::MeasuredStep measured{.ms = "7.43"};
  row.fit.rank_steps = {{.ranks = 2, .bound = 3.6, .exchanges = 0.4, .rest = 3.43, .measured = &measured},
                        {.ranks = 4, .bound = 1.8, .exchanges = 0.5, .rest = 3.43},
                        {.ranks = 4, .sequences = 64, .bound = 11, .exchanges = 4, .rest = 12}};
  const std::string text = fit_text(row, two_cards(), nullptr);
  EXPECT_NE(
      text.find("  step      1 stream: 2 cards 7.43 ms, measured; 4 cards about 5.73 ms (1.80 for bytes and "
                "operations, 0.50 for exchanges)\n  step      64 streams: 4 cards about 27.00 ms (11.00 for "
                "bytes and operations, 4.00 for exchanges)\n"),
      std::string::npos)
      << text;
  const auto steps = nlohmann::json::parse(fit_json(row, two_cards(), nullptr))["steps"];
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0]["measured_ms"], 7.43);
  EXPECT_TRUE(steps[1]["measured_ms"].is_null());
  EXPECT_EQ(steps[1]["estimate_ms"], 5.73);
  EXPECT_EQ(steps[2]["cards"], 4);
}

TEST(FitText, OfOthers) {
  const Fit larger = fitting(4).fit;
  EXPECT_EQ(fit_text(refused(FitVerdict::does_not_fit, "Too little GPU memory."), two_cards(), &larger),
            "ERNIE-4.5-21B-A3B, bfloat16, on A10-24G × 2: does not fit\n  Too little GPU memory.\n"
            "  It fits on 4 cards.\n");
  EXPECT_EQ(fit_text(refused(FitVerdict::unknown, "wint2 is not offered yet."), two_cards(), nullptr),
            "ERNIE-4.5-21B-A3B, bfloat16, on A10-24G × 2: cannot say\n  wint2 is not offered yet.\n");
}

TEST(FitTable, HasARowForEachAndEachReasonOnce) {
  const std::string text = fit_table({fitting(1), fitting(4), refused(FitVerdict::does_not_fit, "No fp8."),
                                      refused(FitVerdict::does_not_fit, "No fp8.")},
                                     two_cards());
  EXPECT_NE(text.find("A10-24G × 2, 22.00 GiB each"), std::string::npos) << text;
  EXPECT_NE(text.find("needs 4 cards"), std::string::npos) << text;
  EXPECT_NE(text.find("432 (2026-11-22)  ≤ 5001, 30 streams\n"), std::string::npos) << text;
  const std::size_t reason = text.find("No fp8.");
  ASSERT_NE(reason, std::string::npos);
  EXPECT_EQ(text.find("No fp8.", reason + 1), std::string::npos);
}

TEST(FitJson, HasTheWholeAnswer) {
  const auto fits = nlohmann::json::parse(fit_json(fitting(2), two_cards(), nullptr));
  EXPECT_EQ(fits["fits"], true);
  EXPECT_EQ(fits["cards"], 2);
  EXPECT_EQ(fits["needed_cards"], 2);
  EXPECT_TRUE(fits["reason"].is_null());
  EXPECT_EQ(fits["weight_bytes"], std::uint64_t{11} << 30);
  EXPECT_EQ(fits["speeds"][0]["source"], "measured");
  EXPECT_EQ(fits["speeds"][0]["date"], "2026-11-22");
  EXPECT_EQ(fits["speeds"][1]["source"], "computed");
  EXPECT_TRUE(fits["speeds"][1]["date"].is_null());

  const Fit larger = fitting(4).fit;
  const auto refusal = nlohmann::json::parse(
      fit_json(refused(FitVerdict::does_not_fit, "Too little GPU memory."), two_cards(), &larger));
  EXPECT_EQ(refusal["fits"], false);
  EXPECT_EQ(refusal["needed_cards"], 4);
  EXPECT_EQ(refusal["quantization"], "bfloat16");
  EXPECT_FALSE(refusal.contains("weight_bytes"));
  const auto unknown =
      nlohmann::json::parse(fit_json(refused(FitVerdict::unknown, "Not yet."), two_cards(), nullptr));
  EXPECT_TRUE(unknown["fits"].is_null());
  EXPECT_TRUE(unknown["needed_cards"].is_null());
}

TEST(FitJson, OfTheTableSaysWhatNeedsMoreCards) {
  const auto all = nlohmann::json::parse(fit_table_json({fitting(1), fitting(4)}, two_cards()));
  EXPECT_EQ(all["machine"], "A10-24G");
  EXPECT_EQ(all["cards"], 2);
  ASSERT_EQ(all["answers"].size(), 2u);
  EXPECT_EQ(all["answers"][0]["fits"], true);
  EXPECT_EQ(all["answers"][1]["fits"], false);
  EXPECT_EQ(all["answers"][1]["needed_cards"], 4);
}

}  // namespace
}  // namespace troupe::cli
