// Steps of several ranks, from those of fewer: beside what was measured, and what more ranks cannot change.
#include "model/documented/rank_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "gpu/cards.h"
#include "model/documented/documented_models.h"
#include "model/documented/fit.h"

namespace troupe::model {
namespace {

constexpr const char* kCard = "H200-141G";

/// The answer for a model on one card, or on as many as it needs.
Fit answer(const char* name, const char* method) {
  const auto card = find_card(kCard);
  EXPECT_TRUE(card.ok()) << card.status().message;
  const auto machine = machine_with(*card, 8);
  EXPECT_TRUE(machine.ok()) << machine.status().message;
  const DocumentedModel* const model = find_documented(name);
  config::Options options;
  options.quantization.method = method;
  return fit_least(question_of(*model, *spec_of(*model), *machine, options), *machine, 8);
}

TEST(RankSteps, OfTwoRanksAreWithinATenthOfWhatWasMeasured) {
  int compared = 0;
  for (const RankStep& step : answer("ERNIE-4.5-21B-A3B", "").rank_steps) {
    if (step.ranks == 1 || step.measured == nullptr) continue;
    const double measured = std::strtod(std::string(step.measured->ms).c_str(), nullptr);
    // Two ranks of one sequence were measured before experts of a few rows had kernels of their own.
    const double least = step.sequences == 1 ? 0.75 : 0.9;
    EXPECT_GT(step.estimate() / measured, least) << step.sequences << " sequences";
    EXPECT_LT(step.estimate() / measured, 1.1) << step.sequences << " sequences";
    ++compared;
  }
  EXPECT_EQ(compared, 3) << "batches of 1, 32 and 128";
}

TEST(RankSteps, BeginAtTheFewestRanksThatWereMeasured) {
  const auto steps = answer("ERNIE-4.5-300B-A47B", "wint4").rank_steps;
  ASSERT_EQ(steps.size(), 6u) << "2, 4 and 8 ranks of batches of 1 and 128";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].ranks, 2 << i % 3);
    EXPECT_EQ(steps[i].measured != nullptr, i % 3 == 0);
    EXPECT_EQ(steps[i].rest, steps[i / 3 * 3].rest);
    if (i % 3 == 0) {
      EXPECT_NEAR(steps[i].estimate(), std::strtod(std::string(steps[i].measured->ms).c_str(), nullptr),
                  1e-9);
    }
  }
  EXPECT_LT(steps[1].bound, 0.55 * steps[0].bound) << "half of the bytes, without the routers' and norms'";
  EXPECT_LT(steps[1].estimate(), steps[0].estimate());
  EXPECT_GT(steps[2].exchanges, steps[0].exchanges);
  EXPECT_NEAR(static_cast<double>(steps[1].kv_bytes), static_cast<double>(steps[0].kv_bytes) / 2, 1);
}

TEST(RankSteps, NothingIsSaidWhereNothingWasMeasured) {
  EXPECT_TRUE(answer("ERNIE-4.5-300B-A47B", "wint8").rank_steps.empty());
  EXPECT_EQ(exchange_ms(1, 1e6), 0);
  EXPECT_GT(exchange_ms(8, 1e6), exchange_ms(2, 1e6));
  EXPECT_LT(exchange_ms(8, 1e6), 3 * exchange_ms(2, 1e6)) << "in two steps 1.75 copies leave a rank, not 7";
}

}  // namespace
}  // namespace troupe::model
