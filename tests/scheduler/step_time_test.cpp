// The model of a step's time and the budget that is kept by it, driven by modelled devices.
#include "actors/scheduler/step_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "actors/scheduler/step_budget.h"

namespace troupe {
namespace {

/// Seconds of a step with this work on some device.
using DeviceTime = double (*)(const StepWork&);

/// 21B on a GPU: few tokens take almost as long as hundreds, since all experts are read.
double gpu_s(const StepWork& w) {
  const double t = static_cast<double>(w.tokens);
  const double layers_ms = t <= 128 ? 8 + 0.055 * t : t <= 1024 ? 14 + 0.0094 * t : 11.4 + 0.0119 * t;
  return 1e-3 * layers_ms + 13e-9 * static_cast<double>(w.context) + 0.455e-9 * static_cast<double>(w.pairs);
}

/// A small model on two cores: a step reads the weights once, tokens cost 2 ms each.
double cpu_s(const StepWork& w) {
  return 6e-3 + 2e-3 * static_cast<double>(w.tokens) + 0.1e-6 * static_cast<double>(w.context) +
         0.35e-6 * static_cast<double>(w.pairs);
}

StepWork work_of(std::int32_t decodes, std::int32_t context, std::int32_t position, std::int32_t chunk) {
  StepWork w;
  for (std::int32_t i = 0; i < decodes; ++i) w.add(context - 1, 1);
  w.add(position, chunk);
  return w;
}

struct Chunks {
  std::vector<std::int32_t> tokens;
  std::vector<double> seconds;
};

/// Runs one prompt alone, or beside `decodes`.
Chunks run_prompt(StepBudget& budget, DeviceTime device, std::int32_t length, std::int32_t decodes = 0) {
  Chunks out;
  for (std::int32_t at = 0; at < length;) {
    budget.begin(false);
    for (std::int32_t i = 0; i < decodes; ++i) budget.add(1999, 1);
    const std::int32_t chunk = budget.chunk(at, length - at, length, budget.end_s(), true);
    if (chunk <= 0) break;
    budget.add(at, chunk);
    out.tokens.push_back(chunk);
    out.seconds.push_back(device(budget.work()));
    budget.learn(budget.work(), budget.predicted_s(), out.seconds.back());
    at += chunk;
  }
  return out;
}

double sum(const std::vector<double>& values) {
  double all = 0;
  for (double value : values) all += value;
  return all;
}

TEST(StepTime, FindsWhatStepsCost) {
  for (const DeviceTime device : {gpu_s, cpu_s}) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<> share(0, 1);
    StepTimeModel model;
    model.reset(1e-3);
    const auto any = [&] {
      return work_of(static_cast<std::int32_t>(60 * share(random)),
                     100 + static_cast<std::int32_t>(4000 * share(random)),
                     static_cast<std::int32_t>(8000 * share(random)),
                     1100 + static_cast<std::int32_t>(2000 * share(random)));
    };
    for (int i = 0; i < 80; ++i) {
      const StepWork work = any();
      model.learn(work, device(work));
    }
    for (int i = 0; i < 50; ++i) {
      const StepWork work = any();
      EXPECT_NEAR(model.predict_s(work) / device(work), 1, 0.05);
    }
  }
}

TEST(StepTime, OneSlowStepChangesLittleAndIsForgotten) {
  StepTimeModel model;
  model.reset(1e-3);
  for (std::int32_t i = 0; i < 40; ++i) {
    const StepWork work = work_of(0, 0, 100 * i, 90 + i % 3 * 10);
    model.learn(work, cpu_s(work));
  }
  const StepWork next = work_of(0, 0, 4000, 100);
  const double usual = cpu_s(next);
  ASSERT_NEAR(model.predict_s(next), usual, 0.03 * usual);
  model.learn(next, 50 * usual);
  EXPECT_LT(model.predict_s(next), 1.2 * usual);
  for (int i = 0; i < 20; ++i) model.learn(next, usual);
  EXPECT_NEAR(model.predict_s(next), usual, 0.05 * usual);
  model.learn(next, usual / 50);
  EXPECT_GT(model.predict_s(next), 0.8 * usual);
}

TEST(StepTime, FollowsADeviceThatBecomesSlower) {
  StepTimeModel model;
  model.reset(1e-3);
  const StepWork work = work_of(4, 1000, 2000, 100);
  for (int i = 0; i < 40; ++i) model.learn(work, cpu_s(work));
  int steps = 0;
  while (model.predict_s(work) < 0.85 * 3 * cpu_s(work) && steps < 100) {
    model.learn(work, 3 * cpu_s(work));
    ++steps;
  }
  EXPECT_LE(steps, 25);
}

TEST(StepTime, NeverPredictsLessForMoreWorkWhateverItWasTold) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<> noise(0, 2);
  StepTimeModel model;
  model.reset(1e-3);
  for (int i = 0; i < 2000; ++i) {
    const StepWork work =
        work_of(static_cast<std::int32_t>(random() % 30), 1 + static_cast<std::int32_t>(random() % 9000),
                static_cast<std::int32_t>(random() % 9000), 2 + static_cast<std::int32_t>(random() % 600));
    model.learn(work, 1e-4 * noise(random));
    StepWork more = work;
    more.add(50, 1);
    more.add(100, 300);
    ASSERT_GE(model.predict_s(more), model.predict_s(work));
    ASSERT_TRUE(std::isfinite(model.predict_s(more)));
    const double limit_s = 1.5 * model.predict_s(work);
    const std::int32_t fits = model.most_tokens(work, 500, limit_s, 100'000);
    ASSERT_GE(fits, 0);
    ASSERT_LE(fits, 100'000);
    more = work;
    more.add(500, fits + 2);
    if (fits > 2 && fits < 100'000) {
      ASSERT_GT(model.predict_s(more), limit_s);
    }
    more = work;
    more.add(500, std::max(2, fits));
    if (fits >= 2) {
      ASSERT_LE(model.predict_s(more), limit_s * (1 + 1e-9));
    }
  }
}

TEST(StepTime, WithoutADurationNothingIsLearnt) {
  StepTimeModel model;
  model.reset(1e-3);
  const StepWork work = work_of(0, 0, 0, 100);
  model.learn(work, 0);
  model.learn(work, -1);
  model.learn({}, 1);
  EXPECT_DOUBLE_EQ(model.predict_s(work), 0.1);
}

TEST(StepBudget, APromptOfAFreshServerBeginsWithShortStepsThatGrow) {
  struct Case {
    DeviceTime device;
    double limit_s;
    std::int32_t step_tokens, prompt;
  };
  for (const Case& c : {Case{gpu_s, 0.06, 8192, 32'000}, Case{cpu_s, 0.25, 512, 8000}}) {
    StepBudget budget;
    budget.attach(c.limit_s, c.step_tokens, 1);
    const Chunks run = run_prompt(budget, c.device, c.prompt);
    EXPECT_EQ(run.tokens.front(), c.step_tokens / 16);
    for (std::size_t i = 0; i < run.seconds.size(); ++i) EXPECT_LE(run.seconds[i], 1.15 * c.limit_s) << i;
    EXPECT_GT(run.seconds[4], 0.75 * c.limit_s) << "a few steps suffice";
  }
}

TEST(StepBudget, EveryStepOfALongPromptKeepsToTheLimitAndUsesIt) {
  struct Case {
    DeviceTime device;
    double limit_s;
    std::int32_t step_tokens, prompt, decodes;
  };
  for (const Case& c : {Case{gpu_s, 0.06, 8192, 32'000, 0}, Case{gpu_s, 0.06, 8192, 131'000, 0},
                        Case{gpu_s, 0.06, 8192, 32'000, 64}, Case{cpu_s, 0.25, 512, 8000, 0},
                        Case{cpu_s, 0.25, 512, 8000, 8}}) {
    StepBudget budget;
    budget.attach(c.limit_s, c.step_tokens, 1);
    run_prompt(budget, c.device, c.prompt, c.decodes);  // what was learnt stays
    const Chunks run = run_prompt(budget, c.device, c.prompt, c.decodes);
    std::int32_t tokens = 0;
    for (std::size_t i = 0; i < run.seconds.size(); ++i) {
      tokens += run.tokens[i];
      EXPECT_LE(run.seconds[i], 1.1 * c.limit_s) << "step " << i << " of " << run.tokens[i] << " tokens";
    }
    EXPECT_EQ(tokens, c.prompt);
    EXPECT_GT(sum(run.seconds) / static_cast<double>(run.seconds.size()), 0.8 * c.limit_s);
    EXPECT_GE(2 * run.tokens.back(), run.tokens[run.tokens.size() - 2])
        << "what is left at the end is no tiny chunk";
  }
}

TEST(StepBudget, ChunksAreWholeTiles) {
  StepBudget budget;
  budget.attach(0.06, 8192, 1);
  const Chunks run = run_prompt(budget, gpu_s, 32'001);
  for (std::size_t i = 0; i + 1 < run.tokens.size(); ++i) {
    EXPECT_EQ(
        run.tokens[i] % (run.tokens[i] < StepBudget::kShortChunk ? StepBudget::kFineTile : StepBudget::kTile),
        0);
  }
}

TEST(StepBudget, APromptGoesOnWhereNoStepKeepsToTheLimit) {
  const DeviceTime slow = [](const StepWork& w) { return 1.0 + static_cast<double>(w.tokens); };
  StepBudget budget;
  budget.attach(0.06, 8192, 1);
  const Chunks run = run_prompt(budget, slow, 5000);
  std::int32_t tokens = 0;
  for (const std::int32_t chunk : run.tokens) tokens += chunk;
  EXPECT_EQ(tokens, 5000);
  EXPECT_EQ(run.tokens.back() % 128, 5000 % 128);
  EXPECT_EQ(run.tokens[run.tokens.size() / 2], 128) << "the least chunk";
}

TEST(StepBudget, PromptsHaveASixthOfTheLimitWhereDecodesTakeAllOfIt) {
  StepBudget budget;
  budget.attach(0.06, 8192, 1);
  run_prompt(budget, gpu_s, 32'000, 64);
  budget.begin(false);
  for (int i = 0; i < 4000; ++i) budget.add(1999, 1);
  ASSERT_GT(budget.predicted_s(), 0.06);
  EXPECT_NEAR(budget.end_s() - budget.predicted_s(), 0.01, 1e-9);
}

TEST(StepBudget, WithoutALimitChunksAreAsLongAsAsked) {
  StepBudget budget;
  budget.attach(0, 512, 1);
  EXPECT_FALSE(budget.limits());
  EXPECT_EQ(budget.chunk(0, 8000, 512, budget.end_s(), false), 512);
  EXPECT_EQ(budget.chunk(0, 100, 512, budget.end_s(), false), 100);
  EXPECT_FALSE(budget.is_slow(0, 100'000));
}

TEST(StepBudget, KeepsWhatItLearntForAWorkerWithTheSameModelOnly) {
  StepBudget budget;
  budget.attach(0.25, 512, 1);
  run_prompt(budget, cpu_s, 8000);
  budget.begin(false);
  const std::int32_t learnt = budget.chunk(0, 8000, 8000, budget.end_s(), true);
  EXPECT_GT(learnt, 80);
  budget.attach(0.25, 512, 1);
  EXPECT_EQ(budget.chunk(0, 8000, 8000, budget.end_s(), true), learnt);
  budget.attach(0.25, 512, 2);
  EXPECT_EQ(budget.chunk(0, 8000, 8000, budget.end_s(), true), 32);
}

}  // namespace
}  // namespace troupe
