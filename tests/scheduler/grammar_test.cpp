// Sequences with a grammar: which rows are gated, and what GRAMMAR is told, call by call.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

SequenceSpec held(std::uint64_t key, std::int32_t prompt, std::int32_t max_output,
                  std::int32_t gated_from = 0) {
  SequenceSpec spec;
  spec.key = {1, key};
  spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
  spec.prompt_tokens = prompt;
  spec.max_output_tokens = max_output;
  spec.stop_ids = {Rig::kStop};
  spec.grammar = 40 + key;
  spec.gated_from = gated_from;
  return spec;
}

struct GrammarRig : Rig {
  using Rig::Rig;

  void submit(std::vector<SequenceSpec> sequences, std::uint32_t attempt = 0) {
    Submit request;
    request.attempt = attempt;
    request.sequences = std::move(sequences);
    const Status status = scheduler.submit(request);
    EXPECT_TRUE(status.ok()) << status.message;
    exchange();
  }
  /// The update for GRAMMAR; empty when there is none.
  GrammarStep update() {
    GrammarStep got;
    scheduler.take_grammar(got);
    return got;
  }
  std::vector<std::uint32_t> flags() const {
    std::vector<std::uint32_t> all;
    for (const wire::PlanRow& row : rows()) all.push_back(row.flags);
    return all;
  }
};

using Flags = std::vector<std::uint32_t>;
constexpr std::uint32_t kBoth = wire::kSamples | wire::kGated;

TEST(SchedulerGrammar, ALostFormEndsItsSequenceBeforeTheTokensOfTheStepThatRuns) {
  GrammarRig rig({.budget = 8});
  rig.submit({held(1, 5, 3)});
  rig.update();
  ASSERT_TRUE(rig.plan());
  StepOutput out;
  rig.scheduler.form_lost({{1, 1}, true, ""}, out);
  ASSERT_EQ(out.hosts.size(), 1u);
  ASSERT_EQ(out.hosts[0].step.sequences.size(), 1u);
  EXPECT_EQ(out.hosts[0].step.sequences[0].key, (RequestKey{1, 1}));
  EXPECT_EQ(out.hosts[0].step.sequences[0].finish, Finish::too_complex);
  EXPECT_EQ(rig.update().ends, (std::vector<RequestKey>{{1, 1}}));
  rig.scheduler.form_lost({{1, 1}, false, "again"}, out);
  rig.scheduler.form_lost({{1, 9}, false, "unknown"}, out);
  for (const HostTokens& host : out.hosts) EXPECT_TRUE(host.step.sequences.empty());
  rig.commit(Rig::kStop);
  EXPECT_TRUE(rig.events().empty()) << "it has ended";
  EXPECT_TRUE(rig.scheduler.idle());
}

TEST(SchedulerGrammar, TheRowThatSamplesIsGatedAndItsTokensAreTold) {
  GrammarRig rig({.budget = 8});
  rig.submit({held(1, 12, 3)});
  GrammarStep update = rig.update();
  ASSERT_EQ(update.starts.size(), 1u);
  EXPECT_EQ(update.starts[0].grammar, 41u);
  EXPECT_EQ(update.epoch, 1u);
  EXPECT_TRUE(update.sequences.empty()) << "no output is known";

  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), Flags{0}) << "the first chunk of the prompt samples nothing";
  EXPECT_FALSE(rig.scheduler.take_grammar(update));
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), Flags{kBoth});
  update = rig.update();
  EXPECT_EQ(update.step, 2u);
  ASSERT_EQ(update.rows.size(), 1u);
  EXPECT_EQ(update.rows[0].key, (RequestKey{1, 1}));
  EXPECT_EQ(update.rows[0].slot, rig.rows()[0].slot);
  EXPECT_EQ(update.rows[0].updates, 0);

  rig.commit(5);
  EXPECT_FALSE(rig.scheduler.take_grammar(update)) << "the first chunk has no token";
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.update().rows.at(0).updates, 1) << "planned before its first token is known";
  rig.commit(5);
  update = rig.update();
  EXPECT_EQ(update.tokens, std::vector<TokenId>{5});
  EXPECT_EQ(update.sequences.at(0).count, 1);
  EXPECT_TRUE(update.rows.empty());
}

TEST(SchedulerGrammar, RowsBeforeGatedFromAreFreeButTheirTokensAreTold) {
  GrammarRig rig({.in_flight = 1});
  rig.submit({held(1, 4, 9, 2)});
  rig.update();
  for (const std::uint32_t expected :
       {std::uint32_t{wire::kSamples}, std::uint32_t{wire::kSamples}, kBoth, kBoth}) {
    ASSERT_TRUE(rig.plan());
    EXPECT_EQ(rig.flags(), Flags{expected});
    EXPECT_EQ(rig.update().rows.size(), expected == kBoth ? 1u : 0u);
    rig.commit(5);
    EXPECT_EQ(rig.update().tokens.size(), 1u);
  }
}

TEST(SchedulerGrammar, OutputThatIsGivenIsToldAtTheStart) {
  GrammarRig rig;
  SequenceSpec spec = held(1, 4, 9, 3);
  spec.output = {21, 22};
  rig.submit({spec}, 1);
  EXPECT_EQ(rig.update().tokens, (std::vector<TokenId>{21, 22}));
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), Flags{wire::kSamples}) << "the third output token is free";
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.update().rows.at(0).updates, 2) << "those that are given, and the third";
}

TEST(SchedulerGrammar, FreeSequencesBesideItTellNothing) {
  GrammarRig rig;
  rig.add(7, 5, 9);
  GrammarStep update;
  EXPECT_FALSE(rig.scheduler.take_grammar(update));
  rig.submit({held(1, 5, 9)});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), (Flags{wire::kSamples, kBoth}));
  EXPECT_EQ(rig.update().rows.size(), 1u);
  rig.commit(5);
  EXPECT_EQ(rig.update().sequences.size(), 1u);
}

TEST(SchedulerGrammar, EveryWayOfEndingIsToldOnce) {
  GrammarRig rig({.in_flight = 2});
  rig.submit({held(1, 4, 9), held(2, 4, 1), held(3, 4, 9), held(4, 4, 9)});
  EXPECT_EQ(rig.update().starts.size(), 4u);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.update().rows.size(), 4u);
  rig.scheduler.cancel({1, 3});
  EXPECT_EQ(rig.update().ends, (std::vector<RequestKey>{{1, 3}}));
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.update().rows.size(), 2u) << "the second ends by length, the third is gone";
  rig.commit(Rig::kStop, wire::RowError::not_finite);  // of the first row
  const GrammarStep update = rig.update();
  EXPECT_EQ(update.ends, (std::vector<RequestKey>{{1, 1}, {1, 2}, {1, 4}}))
      << "by an error, by length, by a stop id";
  EXPECT_EQ(update.sequences.size(), 2u) << "a row that failed has no token";
  rig.commit(5);
  GrammarStep none;
  EXPECT_FALSE(rig.scheduler.take_grammar(none)) << "tokens sampled after the end are discarded";
  EXPECT_EQ(rig.scheduler.totals().discarded_tokens, 2u + 1u);
}

TEST(SchedulerGrammar, EachChoiceStartsByItself) {
  GrammarRig rig({.blocks = 60, .in_flight = 1});
  SequenceSpec child = held(2, 4, 9);
  child.parent = {1, 1};
  child.prompt.clear();
  child.grammar = 41;
  rig.submit({held(1, 4, 9), child});
  const GrammarStep update = rig.update();
  ASSERT_EQ(update.starts.size(), 2u);
  EXPECT_EQ(update.starts[0].grammar, update.starts[1].grammar);
  ASSERT_TRUE(rig.plan());
  rig.update();
  rig.commit(5);
  rig.update();
  ASSERT_TRUE(rig.plan());
  std::vector<std::int32_t> outputs;
  for (const MaskAsk& row : rig.update().rows) outputs.push_back(row.updates);
  EXPECT_EQ(outputs, (std::vector<std::int32_t>{1, 0})) << "the fork samples a first token of its own";
}

TEST(SchedulerGrammar, AWorkersDeathAsksAgainAndTellsNoTokenTwice) {
  GrammarRig rig({.in_flight = 2});
  rig.submit({held(1, 4, 9)});
  rig.update();
  ASSERT_TRUE(rig.plan());
  rig.commit(5);
  EXPECT_EQ(rig.update().tokens.size(), 1u);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.update().rows.at(0).updates, 1);
  rig.scheduler.detach(Orphans::requeue, "", rig.out);
  GrammarStep update;
  EXPECT_FALSE(rig.scheduler.take_grammar(update)) << "it has not ended";
  rig.attach(2);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows()[0].tokens, 5) << "with the token that is known";
  update = rig.update();
  EXPECT_EQ(update.epoch, 2u);
  EXPECT_EQ(update.step, 1u);
  EXPECT_TRUE(update.starts.empty() && update.tokens.empty());
  EXPECT_EQ(update.rows.at(0).updates, 1);
}

TEST(SchedulerGrammar, ALateSequenceSitsOutAndSamplesTheSamePositionAgain) {
  GrammarRig rig({.in_flight = 2});
  rig.submit({held(1, 4, 9)});
  rig.add(7, 5, 9);  // a neighbour without a form
  rig.update();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.plan());
    EXPECT_EQ(rig.update().rows.size(), 1u);
  }
  rig.commit(5);
  EXPECT_EQ(rig.update().tokens, (std::vector<TokenId>{5}));
  rig.scheduler.masks_late({1, {{1, 1}}});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 1u) << "the neighbour goes on";
  rig.commit(6);  // what the late row has sampled is dropped
  GrammarStep update;
  EXPECT_FALSE(rig.scheduler.take_grammar(update));
  rig.scheduler.masks_made({{{1, 1}}});
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 2u);
  const wire::PlanRow& again = rig.rows()[0];
  EXPECT_EQ(again.position, 4) << "its last known token";
  EXPECT_EQ(again.flags, kBoth | wire::kAgain);
  EXPECT_EQ(rig.update().rows.at(0).updates, 1);
  rig.commit(5);
  rig.commit(5);
  EXPECT_EQ(rig.update().tokens.size(), 1u);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), (Flags{kBoth, wire::kSamples}));
}

TEST(SchedulerGrammar, AMaskThatIsMadeBeforeTheLateRowsAreBackWaitsForThem) {
  GrammarRig rig({.in_flight = 3});
  rig.submit({held(1, 4, 9)});
  rig.update();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(rig.plan());
    rig.update();
  }
  rig.scheduler.masks_late({7, {{1, 1}}});  // of another epoch: without effect
  rig.commit(5);
  EXPECT_EQ(rig.update().tokens.size(), 1u);
  rig.scheduler.masks_late({1, {{1, 1}, {9, 9}}});
  rig.scheduler.masks_made({{{1, 1}}});
  EXPECT_FALSE(rig.plan());
  rig.commit(6);
  EXPECT_FALSE(rig.plan()) << "a row of it is in flight";
  rig.commit(7);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows()[0].position, 4);
  EXPECT_EQ(rig.scheduler.totals().discarded_tokens, 2u);
}

TEST(SchedulerGrammar, RowsWithDraftTokensAreAskedForByTheResultsBeforeThem) {
  constexpr std::int32_t kFrom = 6;
  GrammarRig rig({.drafts = 3, .drafted_rows = 12});
  rig.submit({held(1, 4, 40, kFrom)});
  rig.update();
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.view.array(rig.header().started)[0].proposes, 3);
  EXPECT_EQ(rig.flags(), Flags{wire::kSamples});
  int told = 0;
  bool mixed = false;
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(rig.plan());
    const wire::PlanRow row = rig.rows()[0];
    const std::int32_t last = row.position + row.tokens - 4;  // output token that it may yield
    const GrammarStep update = rig.update();
    ASSERT_EQ(rig.flags(), Flags{wire::kFromLast | (last >= kFrom ? kBoth : std::uint32_t{wire::kSamples})});
    ASSERT_EQ(update.rows.size(), last >= kFrom ? 1u : 0u);
    if (last >= kFrom) {
      EXPECT_EQ(update.rows[0].updates, told + 1) << "one row is in flight before it";
      EXPECT_EQ(update.rows[0].places, row.tokens);
      EXPECT_EQ(update.rows[0].forced, 1 + 3) << "a row of draft tokens behind the first";
      mixed = mixed || row.position - 4 + 1 < kFrom;
    }
    rig.commit(5);
    EXPECT_EQ(rig.update().tokens.size(), 1u);
    ++told;
  }
  EXPECT_TRUE(mixed) << "some row had a free place and one that is not";
  rig.scheduler.masks_late({1, {{1, 1}}});
  EXPECT_FALSE(rig.plan());
  rig.commit(6);  // dropped
  EXPECT_TRUE(rig.update().sequences.empty());
  rig.scheduler.masks_made({{{1, 1}}});
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), Flags{kBoth | wire::kFromLast | wire::kAgain});
  EXPECT_EQ(rig.rows()[0].position, 4 + told - 1);
  EXPECT_EQ(rig.rows()[0].tokens, 1);
  const GrammarStep update = rig.update();
  EXPECT_EQ(update.rows.at(0).updates, told);
  EXPECT_EQ(update.rows.at(0).places, 1);
}

TEST(SchedulerGrammar, WithoutProposalsRowsStandWhereTheEngineSays) {
  GrammarRig rig({.drafts = 3, .drafted_rows = 12, .proposes = false});
  rig.submit({held(1, 4, 9)});
  rig.update();
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.view.array(rig.header().started)[0].max_tokens, 0);
  EXPECT_EQ(rig.view.array(rig.header().started)[0].proposes, 0);
  EXPECT_EQ(rig.update().rows.at(0).forced, 0);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.flags(), Flags{kBoth});
  EXPECT_EQ(rig.rows()[0].position, 4);
}

TEST(SchedulerGrammar, ThoseThatFailWithTheWorkerAreToldAsEnded) {
  GrammarRig rig;
  rig.submit({held(1, 4, 9), held(2, 4, 9)});
  rig.update();
  rig.scheduler.detach(Orphans::fail, "lost", rig.out);
  EXPECT_EQ(rig.update().ends.size(), 2u);
}

TEST(SchedulerGrammar, ARefusedRequestIsNotTold) {
  GrammarRig rig;
  Submit request;
  request.sequences = {held(1, 4, 9), held(2, 4, 9, -1)};
  const Status status = rig.scheduler.submit(request);
  EXPECT_EQ(status.param, "gated_from");
  GrammarStep update;
  EXPECT_FALSE(rig.scheduler.take_grammar(update));
}

}  // namespace
}  // namespace troupe::test
