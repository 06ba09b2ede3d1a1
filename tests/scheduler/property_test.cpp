// Random operations on the scheduler and the cache manager together. The worker model checks every step,
// block counts are checked after every answer of the cache manager, and every text is compared with a
// reference that computes one token at a time.
#include <gtest/gtest.h>

#include "tests/scheduler/simulation.h"

namespace troupe::test {
namespace {

/// A random request; lengths near the boundaries of blocks and budgets are more likely.
void submit_any(Simulation& sim, const Setting& setting) {
  const std::int32_t longest = std::min(setting.max_length, setting.blocks * setting.block_tokens);
  std::int32_t prompt = 1 + sim.below(sim.chance(0.1) ? longest - 1 : std::max(2, longest / 3));
  if (sim.chance(0.3))
    prompt = std::max(1, prompt / setting.block_tokens * setting.block_tokens + sim.below(2));
  SequenceSpec spec = sim.spec(std::min(prompt, longest - 1), 1 + sim.below(sim.chance(0.2) ? 2 : longest));
  for (int n = sim.below(3); n > 0; --n) spec.stop_ids.push_back(sim.below(setting.vocab));
  if (sim.chance(0.2)) spec.sampling.logprobs = 2;
  if (sim.chance(0.1)) spec.sampling.prompt_logprobs = 0;
  if (setting.grammars && sim.chance(0.7)) {
    spec.grammar = 1 + static_cast<std::uint64_t>(sim.below(3));
    spec.gated_from = sim.chance(0.5) ? 0 : sim.below(6);
  }
  sim.prefix.enabled = !sim.chance(0.1);
  sim.prefix.salt = sim.chance(0.1) ? "other" : "";
  sim.submit(spec, sim.chance(0.25) ? 2 + sim.below(4) : 1);
}

void random_operation(Simulation& sim, const Setting& setting) {
  if (setting.grammars && sim.chance(0.4)) sim.serve_grammar();
  if (setting.media_tokens > 0 && sim.chance(0.3)) sim.chance(0.5) ? sim.encode() : sim.take_encoded();
  switch (sim.below(32)) {
    case 0:
    case 1: submit_any(sim, setting); break;
    case 2:
      if (sim.chance(0.3)) sim.cancel_any();
      break;
    case 3:
      if (sim.chance(0.2)) sim.commit_invalid();
      break;
    case 4:
      if (sim.chance(0.003)) sim.reset_prefixes();
      if (sim.chance(0.003)) sim.lose_worker(sim.chance(0.5) ? Orphans::fail : Orphans::requeue);
      if (sim.chance(0.003)) sim.lose_engine(0.1);
      if (sim.chance(0.003)) sim.drop_front(static_cast<std::uint32_t>(sim.below(2)));
      if (sim.chance(0.1)) sim.hold(static_cast<std::uint32_t>(sim.below(2)), sim.chance(0.1));
      break;
    case 5:
    case 6: sim.run_command(); break;
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
    case 12: sim.serve_cache(); break;
    case 13:
    case 14:
    case 15:
    case 16:
    case 17:
    case 18: sim.grant(); break;
    case 19:
    case 20:
    case 21:
    case 22:
    case 23: sim.plan(); break;
    case 24:
    case 25:
    case 26:
    case 27: sim.run_worker(); break;
    default: sim.commit(); break;
  }
}

struct Named {
  const char* name;
  Setting setting;
};

class Properties : public ::testing::TestWithParam<Named> {};

TEST_P(Properties, HoldUnderRandomOperations) {
  constexpr int kOperations = 1'000'000;
  const Setting setting = GetParam().setting;
  Simulation sim(setting, 20261121);
  sim.fronts = 2;
  for (int i = 0; i < kOperations; ++i) {
    random_operation(sim, setting);
    ASSERT_EQ(sim.complaint, "") << "at operation " << i;
  }
  for (const std::uint32_t front : {0u, 1u}) sim.hold(front, false);
  ASSERT_TRUE(sim.drain(100'000)) << "sequences are still running";
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
  EXPECT_GT(sim.clients().finished, 500);
  EXPECT_GT(sim.engine_deaths, 50);
  EXPECT_GT(sim.totals().discarded_tokens, setting.in_flight > 1 ? 10u : 0u);
  EXPECT_GT(sim.worker().rows_run(), 0);
  EXPECT_EQ(sim.totals().cached_tokens > 0, setting.caching.prompts);
  EXPECT_EQ(sim.totals().encoded > 1000, setting.media_tokens > 0);
  EXPECT_EQ(sim.totals().fetches > 1000, setting.swap_blocks > 0);
  if (setting.swap_failures > 0) {
    EXPECT_GT(sim.totals().failed_fetches, 10u);
  }
  EXPECT_EQ(sim.grammar().answered() > 1000 && sim.grammar().answered_late() > 100, setting.grammars);
  EXPECT_EQ(sim.grammar().in_vain() > 1000, setting.late > 0);
  if (setting.drafts > 0 && setting.grammars) {
    EXPECT_EQ(sim.worker().accepted_behind_masks() > 200, setting.proposes);
  }
  if (!setting.preempts) {
    EXPECT_EQ(sim.totals().preempted, 0u);
  }
  std::printf(
      "%-12s finished %lld failed %lld tokens %lld scores %lld cached %lld of %lld evicted %lld preempted "
      "%llu "
      "stalled %llu steps %llu fetches %llu (%llu failed)\n",
      GetParam().name, static_cast<long long>(sim.clients().finished),
      static_cast<long long>(sim.clients().failed), static_cast<long long>(sim.clients().tokens),
      static_cast<long long>(sim.clients().scores), static_cast<long long>(sim.totals().cached_tokens),
      static_cast<long long>(sim.totals().prompt_tokens),
      static_cast<long long>(sim.cache().status().evicted),
      static_cast<unsigned long long>(sim.totals().preempted),
      static_cast<unsigned long long>(sim.totals().stalled_rows),
      static_cast<unsigned long long>(sim.totals().steps),
      static_cast<unsigned long long>(sim.totals().fetches),
      static_cast<unsigned long long>(sim.totals().failed_fetches));
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Properties,
    ::testing::Values(
        Named{"roomy", {.blocks = 200, .poison = 0.0005}},
        Named{"starving", {.blocks = 16, .block_tokens = 4, .slots = 6, .budget = 16, .max_length = 60}},
        Named{"one_sequence_fits",
              {.blocks = 8, .block_tokens = 4, .slots = 4, .budget = 7, .max_length = 60}},
        Named{"no_prefix_cache", {.blocks = 24, .caching = {false, false, {}}}},
        Named{"prompts_only", {.blocks = 24, .caching = {true, false, {1, 2}}, .repeats = 0.9}},
        Named{"reserving", {.blocks = 40, .preempts = false, .ratio = 0.5}},
        Named{"reserving_for_one", {.blocks = 16, .preempts = false, .ratio = 0.3}},
        Named{"no_overlap", {.blocks = 30, .in_flight = 1}},
        Named{"few_prompt_tokens", {.blocks = 60, .budget = 24, .prefill_share = 0.1}},
        Named{"steps_within_a_time",
              {.blocks = 90,
               .slots = 8,
               .budget = 80,
               .max_length = 200,
               .long_prompt = 60,
               .step_ms = 5,
               .token_ns = 100'000}},
        Named{"three_in_flight", {.blocks = 30, .budget = 9, .in_flight = 3, .poison = 0.001}},
        Named{"few_ids_a_plan",
              {.blocks = 48, .block_tokens = 8, .slots = 8, .budget = 64, .max_length = 90, .max_ids = 11}},
        Named{"swap", {.blocks = 24, .swap_blocks = 60, .swap_failures = 0.01, .poison = 0.0005}},
        Named{
            "swap_starving",
            {.blocks = 16, .block_tokens = 4, .slots = 6, .budget = 16, .max_length = 60, .swap_blocks = 9}},
        Named{"swap_without_prefix_cache",
              {.blocks = 20, .swap_blocks = 40, .caching = {false, false, {3, 4}}}},
        Named{"batches", {.blocks = 40, .step_ms = 5, .token_ns = 1'000'000, .batches = 0.7}},
        Named{"batches_starving", {.blocks = 16, .in_flight = 3, .swap_blocks = 9, .batches = 0.5}},
        Named{"batches_reserving", {.blocks = 30, .preempts = false, .ratio = 0.5, .batches = 0.5}},
        Named{"swap_prompts_only",
              {.blocks = 20, .swap_blocks = 100, .swap_failures = 0.05, .caching = {true, false, {5, 6}}}},
        Named{"grammars", {.blocks = 24, .poison = 0.001, .grammars = true}},
        Named{"late_masks", {.blocks = 24, .poison = 0.001, .grammars = true, .late = 0.2}},
        Named{"late_masks_three_in_flight",
              {.blocks = 30, .budget = 9, .in_flight = 3, .swap_blocks = 30, .grammars = true, .late = 0.4}},
        Named{"images", {.blocks = 40, .media_tokens = 12}},
        Named{"images_starving",
              {.blocks = 20,
               .swap_blocks = 30,
               .swap_failures = 0.01,
               .media_tokens = 5,
               .media_failures = 0.01}},
        Named{"images_three_in_flight",
              {.blocks = 30,
               .budget = 9,
               .in_flight = 3,
               .poison = 0.0005,
               .grammars = true,
               .media_tokens = 9}},
        Named{"drafts", {.blocks = 60, .budget = 32, .poison = 0.0005, .drafts = 4, .drafted_rows = 20}},
        Named{"drafts_starving",
              {.blocks = 16, .block_tokens = 4, .slots = 6, .budget = 16, .max_length = 60, .drafts = 8}},
        Named{"drafts_no_overlap", {.blocks = 30, .in_flight = 1, .drafts = 1}},
        Named{"drafts_of_one", {.blocks = 8, .slots = 4, .budget = 7, .max_length = 30, .drafts = 3}},
        Named{"drafts_reserving", {.blocks = 40, .preempts = false, .ratio = 0.5, .drafts = 5}},
        Named{"drafts_three_in_flight",
              {.blocks = 30,
               .budget = 40,
               .in_flight = 3,
               .swap_blocks = 60,
               .swap_failures = 0.02,
               .poison = 0.001,
               .media_tokens = 9,
               .drafts = 6,
               .drafted_rows = 30}},
        Named{"drafts_with_grammars",
              {.blocks = 60,
               .budget = 40,
               .poison = 0.0005,
               .grammars = true,
               .drafts = 5,
               .drafted_rows = 30}},
        Named{"drafts_beside_grammars",
              {.blocks = 60,
               .budget = 40,
               .poison = 0.0005,
               .grammars = true,
               .drafts = 5,
               .drafted_rows = 30,
               .proposes = false,
               .late = 0.1}},
        Named{"drafts_with_grammars_starving",
              {.blocks = 16,
               .block_tokens = 4,
               .slots = 6,
               .budget = 16,
               .max_length = 60,
               .grammars = true,
               .drafts = 8}},
        Named{"drafts_with_late_masks",
              {.blocks = 30,
               .budget = 40,
               .poison = 0.0005,
               .grammars = true,
               .drafts = 4,
               .drafted_rows = 30,
               .late = 0.2}},
        Named{"drafts_with_late_masks_three_in_flight",
              {.blocks = 30,
               .budget = 40,
               .in_flight = 3,
               .grammars = true,
               .media_tokens = 9,
               .drafts = 6,
               .drafted_rows = 30,
               .late = 0.4}},
        Named{"grammars_three_in_flight",
              {.blocks = 30, .budget = 9, .in_flight = 3, .swap_blocks = 30, .grammars = true}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace troupe::test
