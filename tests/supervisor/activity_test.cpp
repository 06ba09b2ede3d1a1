// The lines that serve shows: what they say, and that they fit.
#include "actors/supervisor/activity.h"

#include <gtest/gtest.h>

#include "actors/supervisor/console.h"

namespace troupe::supervisor {
namespace {

using namespace std::chrono_literals;

TEST(Fitting, DropsPartsFromTheEndAndNeverExceedsTheColumns) {
  const std::vector<std::string> parts = {"3 running", "12 waiting", "5 prompt tokens/s"};
  EXPECT_EQ(fitting(parts, 80), "3 running  12 waiting  5 prompt tokens/s");
  EXPECT_EQ(fitting(parts, 39), "3 running  12 waiting");
  EXPECT_EQ(fitting(parts, 20), "3 running");
  EXPECT_EQ(fitting(parts, 4), "3 ru");
  EXPECT_EQ(fitting({}, 80), "");
}

TEST(Loading, ShowsShareRateAndRest) {
  EXPECT_EQ(loading_parts({}), std::vector<std::string>{"starting"});
  const auto parts = loading_parts({.done_bytes = 1'000'000'000, .total_bytes = 4'000'000'000, .seconds = 2});
  EXPECT_EQ(parts,
            (std::vector<std::string>{"weights 25 %", "[#####...............]", "0.50 GB/s", "6 s left"}));
  EXPECT_EQ(loading_parts({.done_bytes = 9, .total_bytes = 9, .seconds = 2}),
            std::vector<std::string>{"memory and warm-up"});
}

TEST(TokenRates, AreOfTheLastSecondsAndStartAnewWithTheEngine) {
  TokenRates rates;
  const TimePoint start{};
  rates.sample(start, {100, 10});
  EXPECT_EQ(rates.rates().generated_per_s, 0);
  rates.sample(start + 1s, {300, 60});
  EXPECT_EQ(rates.rates().prompt_per_s, 200);
  EXPECT_EQ(rates.rates().generated_per_s, 50);
  for (int i = 2; i <= 20; ++i) rates.sample(start + i * 1s, {300, 60});
  EXPECT_EQ(rates.rates().generated_per_s, 0);
  rates.sample(start + 21s, {0, 5});
  EXPECT_EQ(rates.rates().generated_per_s, 0);
  rates.sample(start + 22s, {0, 12});
  EXPECT_EQ(rates.rates().generated_per_s, 7);
}

TEST(Load, NumbersAgreeWithTheirNouns) {
  StatusPage page;
  page.queues = {{"running", 3, 32}, {"waiting", 0, 64}};
  page.kv_blocks = {.total = 10, .leased = 4};
  page.prefix_cache = {.prompt_tokens = 100, .cached_tokens = 25};
  page.processes = {{"engine", 1, 1, 0, "ready", ""}, {"worker-0", 2, 1, 1, "ready", "why"}};
  EXPECT_TRUE(is_busy(page));
  EXPECT_EQ(fitting(load_parts(page), 200),
            "3 running  0 waiting  0 prompt tokens/s  0 output tokens/s  KV 40 %  hits 25 %  1 restart");
  page.processes[1].restarts = 2;
  EXPECT_EQ(load_parts(page).back(), "2 restarts");
}

}  // namespace
}  // namespace troupe::supervisor
