// Requests that the scheduler refuses, and the limits of its queue and of every record.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

TEST(SchedulerLimits, RefusesWhatCanNeverRunAndSaysWhy) {
  Rig rig({.blocks = 10, .block_tokens = 4, .max_length = 60, .vocab = 50});
  const Status too_long = rig.submit(1, 40, 5);
  EXPECT_EQ(too_long.code, Code::invalid_argument);
  EXPECT_EQ(too_long.reason, "context_length_exceeded");
  EXPECT_NE(too_long.message.find("40"), std::string::npos);
  EXPECT_TRUE(rig.submit(1, 39, 5).ok()) << "room for one token is enough; max_output_tokens is reduced";
  EXPECT_EQ(rig.submit(1, 3, 5).param, "key");
  EXPECT_EQ(rig.submit(2, 0, 5).param, "prompt");
  EXPECT_EQ(rig.submit(2, 3, 0).param, "max_tokens");
  EXPECT_EQ(rig.submit(3, 3, 5, 2).param, "parent");
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 5};
  spec.prompt = {50};
  spec.prompt_tokens = spec.max_output_tokens = 1;
  EXPECT_EQ(rig.scheduler.submit(request).param, "prompt");
  spec.prompt = {49};
  spec.logit_bias.assign(40'000, {1, 0.5f});
  EXPECT_EQ(rig.scheduler.submit(request).param, "logit_bias");
}

TEST(SchedulerLimits, BoundsItsQueueInRequestsAndInTokens) {
  config::SchedulerOptions options;
  options.max_num_seqs = 1;
  options.max_queued_requests = 3;
  options.max_queued_tokens = 50;
  Rig rig({.blocks = 100}, options);
  ASSERT_TRUE(rig.submit(1, 5, 50).ok());
  for (std::uint64_t k : {2, 3, 4}) ASSERT_TRUE(rig.submit(k, 5, 5).ok());
  const Status full = rig.submit(5, 5, 5);
  EXPECT_EQ(full.code, Code::overloaded);
  rig.scheduler.cancel({1, 4});
  EXPECT_EQ(rig.submit(6, 45, 5).code, Code::overloaded);
  EXPECT_TRUE(rig.submit(7, 40, 5).ok());
  EXPECT_EQ(rig.scheduler.waiting(), 3);
}

TEST(SchedulerLimits, ARequestLargerThanTheQueueIsRefusedForGood) {
  config::SchedulerOptions options;
  options.max_queued_tokens = 40;
  options.max_queued_requests = 4;
  Rig rig({.blocks = 100}, options);
  for (const bool empty : {true, false}) {  // "try again later" would be said for ever
    const Status large = rig.submit(1, 41, 5);
    EXPECT_EQ(large.code, Code::invalid_argument) << "an empty queue: " << empty;
    EXPECT_EQ(large.param, "prompt");
    EXPECT_NE(large.message.find("41 prompt tokens"), std::string::npos) << large.message;
    EXPECT_NE(large.message.find("at most 40 may wait (--max-queued-tokens)"), std::string::npos)
        << large.message;
    Submit many;
    for (std::uint64_t k = 1; k <= 5; ++k) {
      SequenceSpec& spec = many.sequences.emplace_back();
      spec.key = {2, k};
      if (k == 1) spec.prompt = {1};
      if (k > 1) spec.parent = {2, 1};
      spec.prompt_tokens = spec.max_output_tokens = 1;
    }
    const Status choices = rig.scheduler.submit(many);
    EXPECT_EQ(choices.code, Code::invalid_argument);
    EXPECT_EQ(choices.param, "n");
    EXPECT_NE(choices.message.find("5 sequences"), std::string::npos) << choices.message;
    EXPECT_NE(choices.message.find("at most 4 may wait (--max-queued-requests)"), std::string::npos)
        << choices.message;
    if (empty) {
      ASSERT_TRUE(rig.submit(3, 40, 5).ok());
    }
  }
}

TEST(SchedulerLimits, ThePromptOfSeveralChoicesCountsOnce) {
  config::SchedulerOptions options;
  options.max_num_seqs = 1;
  options.max_queued_tokens = 50;
  Rig rig({.blocks = 100}, options);
  ASSERT_TRUE(rig.submit(9, 5, 50).ok());  // runs
  Submit request;
  for (std::uint64_t k = 1; k <= 8; ++k) {
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {2, k};
    if (k == 1) spec.prompt.assign(40, 1);
    if (k > 1) spec.parent = {2, 1};
    spec.prompt_tokens = 40;
    spec.max_output_tokens = 5;
  }
  EXPECT_TRUE(rig.scheduler.submit(request).ok());
  EXPECT_EQ(rig.submit(3, 11, 5).code, Code::overloaded);
  EXPECT_TRUE(rig.submit(4, 10, 5).ok());
  for (std::uint64_t k = 1; k <= 8; ++k) rig.scheduler.cancel({2, k});
  EXPECT_TRUE(rig.submit(5, 40, 5).ok()) << "the count is back at what the others hold";
  EXPECT_EQ(rig.submit(6, 1, 5).code, Code::overloaded);
}

TEST(SchedulerLimits, RefusesEverythingWithoutAWorker) {
  Scheduler scheduler({});
  Submit request;
  EXPECT_EQ(scheduler.submit(request).code, Code::unavailable);
}

TEST(SchedulerLimits, ARequestIsAcceptedWholeOrNotAtAll) {
  Rig rig;
  Submit request;
  for (std::uint64_t k : {1, 2}) {
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, k};
    spec.prompt = {1};
    spec.prompt_tokens = 1;
    spec.max_output_tokens = k == 1 ? 5 : 0;
  }
  EXPECT_FALSE(rig.scheduler.submit(request).ok());
  EXPECT_TRUE(rig.scheduler.idle());
}

TEST(SchedulerLimits, AParentPrecedesItsChoicesAndIsNotOneOfThem) {
  Rig rig;
  const auto refused = [&](std::vector<std::pair<std::uint64_t, std::uint64_t>> keys_and_parents) {
    Submit request;
    for (const auto& [key, parent] : keys_and_parents) {
      SequenceSpec& spec = request.sequences.emplace_back();
      spec.key = {1, key};
      if (parent != 0) spec.parent = {1, parent};
      if (parent == 0) spec.prompt = {1};
      spec.prompt_tokens = spec.max_output_tokens = 1;
    }
    return rig.scheduler.submit(request).param;
  };
  EXPECT_EQ(refused({{2, 1}, {1, 0}}), "parent");
  EXPECT_EQ(refused({{1, 1}}), "parent");
  EXPECT_EQ(refused({{1, 0}, {2, 1}, {3, 2}}), "parent");
  EXPECT_EQ(refused({{1, 0}, {2, 1}, {2, 1}}), "key");
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(refused({{1, 0}, {2, 1}, {4, 0}, {3, 1}}), "");
}

TEST(SchedulerLimits, AFinishedSequenceHoldsNoMemory) {
  ScheduledSequences table;
  const std::uint32_t at = table.create({1, 1});
  const auto given = std::make_shared<const std::vector<TokenId>>(1000, 1);
  table[at].tokens = KnownTokens(given);
  table[at].tokens.push_back(1);
  table[at].stop_ids = StopIds(std::vector<TokenId>(1000, 1));
  table[at].logit_bias.assign(1000, {});
  table.erase(at);
  EXPECT_EQ(table[at].tokens.size() + table[at].stop_ids.list().capacity() + table[at].logit_bias.capacity(),
            0u);
  EXPECT_EQ(given.use_count(), 1);
}

TEST(SchedulerLimits, PromptLogprobsOfOneStepFitOneResult) {
  constexpr std::int32_t kTokens = 30'000;
  Rig rig({.blocks = 4000,
           .block_tokens = 64,
           .slots = 4,
           .budget = 65'536,
           .max_length = 40'000,
           .in_flight = 1});
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 1};
  spec.prompt.assign(kTokens, 3);
  spec.prompt_tokens = kTokens;
  spec.max_output_tokens = 1;
  spec.sampling.prompt_logprobs = spec.sampling.logprobs = 20;
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  rig.exchange();
  constexpr std::size_t kScore = sizeof(wire::TokenLogprobs) + 20 * sizeof(wire::Logprob);
  std::int32_t run = 0;
  for (int i = 0; i < 20 && rig.plan(); ++i) {
    ASSERT_EQ(rig.rows().size(), 1u);
    const std::int32_t tokens = rig.rows()[0].tokens;
    EXPECT_LE(static_cast<std::size_t>(tokens) * kScore + sizeof(wire::StepResult), wire::kMaxResultBytes);
    run += tokens;
    rig.commit(5);
  }
  EXPECT_EQ(run, kTokens);
}

// A result holds one position's whole vocabulary or two: the other positions and sequences wait for a later
// step.
TEST(SchedulerLimits, WholeVocabulariesAreSharedOutAmongSteps) {
  constexpr std::int32_t kPrompt = 5, kOutput = 3;
  for (const std::int32_t vocab : {103'424, 150'000, wire::kMostTopLogprobs}) {
    Rig rig({.blocks = 100,
             .block_tokens = 64,
             .slots = 4,
             .budget = 512,
             .max_length = 1000,
             .vocab = vocab,
             .in_flight = 1,
             .max_logprobs = vocab});
    for (std::uint64_t key = 1; key <= 4; ++key) {
      Submit request;
      SequenceSpec& spec = request.sequences.emplace_back();
      spec.key = {1, key};
      spec.prompt.assign(kPrompt, 3);
      spec.prompt_tokens = kPrompt;
      spec.max_output_tokens = kOutput;
      spec.sampling.logprobs = vocab;
      if (key % 2 == 0) spec.sampling.prompt_logprobs = vocab;
      ASSERT_TRUE(rig.scheduler.submit(request).ok());
      rig.exchange();
    }
    const std::size_t each =
        sizeof(wire::TokenLogprobs) + static_cast<std::size_t>(vocab) * sizeof(wire::Logprob);
    std::int64_t positions = 0;
    for (int i = 0; i < 200 && rig.plan(); ++i) {
      std::size_t scored = 0;
      for (const wire::PlanRow& row : rig.rows()) {
        positions += row.tokens;
        // Slots were given in the order of the keys.
        if (row.slot.slot % 2 == 1)
          scored += static_cast<std::size_t>(std::clamp(kPrompt - 1 - row.position, 0, row.tokens));
        scored += (row.flags & wire::kSamples) != 0 ? 1 : 0;
      }
      ASSERT_LE(scored * each + sizeof(wire::StepResult), wire::kMaxResultBytes) << vocab;
      rig.commit(5);
    }
    EXPECT_TRUE(rig.scheduler.idle()) << vocab;
    EXPECT_EQ(positions, 4 * (kPrompt + kOutput - 1)) << vocab;
  }
}

TEST(SchedulerLimits, RefusesSamplingThatTheWorkerWouldRefuse) {
  Rig rig;
  const auto submitted = [&](auto&& change) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, 1};
    spec.prompt = {1};
    spec.prompt_tokens = spec.max_output_tokens = 1;
    change(spec);
    return rig.scheduler.submit(request);
  };
  const auto refused = [&](auto&& change) { return submitted(change).param; };
  EXPECT_EQ(submitted([](SequenceSpec& s) { s.sampling.logprobs = 21; }).message,
            "logprobs is 21; it must be at least -1 and at most 20.");
  EXPECT_EQ(submitted([](SequenceSpec& s) { s.sampling.min_p = 1.1f; }).message,
            "min_p is 1.1; it must be at least 0 and at most 1.");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.sampling.top_p = 0; }), "top_p");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.sampling.temperature = NAN; }), "temperature");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.sampling.logprobs = 21; }), "logprobs");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.stop_ids = {50}; }), "stop_token_ids");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.logit_bias = {{50, 1}}; }), "logit_bias");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.logit_bias = {{1, INFINITY}}; }), "logit_bias");
  EXPECT_EQ(refused([](SequenceSpec&) {}), "");
}

TEST(SchedulerLimits, PromptsLongerThanAPlanAreSplitAndEveryPlanFitsARecord) {
  constexpr std::int32_t kLong = 200'000;
  Rig rig({.blocks = 4000,
           .block_tokens = 64,
           .slots = 4,
           .budget = 1 << 20,
           .max_length = 250'000,
           .in_flight = 1});
  for (std::uint64_t k : {1, 2, 3}) ASSERT_TRUE(rig.submit(k, kLong, 1).ok());
  std::int64_t ids = 0, positions = 0;
  for (int i = 0; i < 20 && rig.plan(); ++i) {
    EXPECT_LE(rig.record.size(), wire::kMaxRecordBytes);
    for (const wire::TokenRun& run : rig.view.array(rig.header().tokens)) ids += run.ids.count;
    for (const wire::PlanRow& row : rig.rows()) positions += row.tokens;
    rig.commit(5);
  }
  EXPECT_EQ(ids, 3 * kLong);
  EXPECT_EQ(positions, 3 * kLong);
  EXPECT_TRUE(rig.scheduler.idle());
}

}  // namespace
}  // namespace troupe::test
