// SCHEDULER and CACHE MANAGER together, between a session host and a worker link that the test plays.
#include "actors/scheduler/scheduler_actor.h"

#include "actors/cache/cache_actor.h"
#include "support/actor_world.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

struct Heard {
  std::vector<Bytes> plans;
  std::vector<Bytes> commands;
  std::vector<StepTokens> tokens;
  std::vector<GrammarStep> grammar;
  std::string order;             ///< of plans (p) and masks (m) at WORKER LINK
  std::vector<StepStats> stats;  ///< of steps
  StepStats gauges;              ///< what METRICS was told last, by a step or without one
};

workers_actor::behavior_type fake_link(workers_actor::pointer, Heard* heard) {
  return {[heard](const SendPlan& plan) {
            heard->plans.push_back(plan.record);
            heard->order += 'p';
          },
          [heard](const SendMasks&) { heard->order += 'm'; },
          [heard](const SendCacheCommand& command) { heard->commands.push_back(command.record); }};
}

/// Answers rows at once.
grammar_actor::behavior_type fake_grammar(grammar_actor::pointer self, Heard* heard, workers_actor link) {
  return {answer_beat, [](const Compile&) { return Compiled{}; }, [](const CancelCompile&) {},
          [](const WatchGrammar&) { return Status(); },
          [](const ReleaseGrammar&) {},
          [=](const GrammarStep& step) {
            heard->grammar.push_back(step);
            if (!step.rows.empty()) self->send(link, SendMasks{});
          },
          [](const FormReady&) {}, [](const TakeMade&) {}};
}

metrics_actor::behavior_type fake_metrics(metrics_actor::pointer, Heard* heard) {
  return {answer_beat, [heard](const StepStats& stats) {
            if (stats.generated_tokens > 0) heard->stats.push_back(stats);
            heard->gauges = stats;
          },
          [](const RequestStats&) {},
          [](const HttpStats&) {}, [](const DoorStats&) {}, [](const ProcessReports&) {},
          [](caf::get_atom) { return std::string(); }};
}

/// Submits what it is told to and keeps what it hears.
class SchedulerActorTest : public testing::ActorWorld {
 protected:
  SchedulerActorTest() {
    wire::Capacity& c = up_.capacity;
    up_.epoch = 1;
    c.kv_blocks = 50;
    c.block_tokens = 4;
    c.max_slots = 4;
    c.max_tokens_per_step = 64;
    c.max_model_len = 100;
    c.vocab_size = 100;
    run();
  }

  void link_up(std::uint32_t epoch) {
    up_.epoch = epoch;
    self_->send(cache_, up_);
    self_->send(scheduler_, up_);
    run();
  }
  static SequenceSpec spec(std::uint64_t key, std::int32_t max_output, std::uint64_t parent = 0) {
    SequenceSpec spec;
    spec.key = {1, key};
    spec.host = 1;
    spec.max_output_tokens = max_output;
    spec.prompt_tokens = 6;
    if (parent == 0) spec.prompt = {1, 2, 3, 4, 5, 6};
    if (parent != 0) spec.parent = {1, parent};
    return spec;
  }
  Status submit(std::vector<SequenceSpec> sequences) {
    return ask<Status>(scheduler_, Submit{std::move(sequences)});
  }

  /// Answers the plan with the given index: token 7 for every row that samples.
  Bytes result(std::size_t index) {
    wire::RecordView view;
    EXPECT_TRUE(wire::RecordView::open(std::as_bytes(std::span(heard_.plans.at(index))), view));
    const wire::StepPlan& plan = *view.as<wire::StepPlan>();
    std::vector<wire::ResultRow> rows;
    std::vector<TokenId> tokens;
    for (const wire::PlanRow& row : view.array(plan.rows)) {
      if ((row.flags & wire::kSamples) == 0) continue;
      rows.push_back({row.slot, static_cast<std::int32_t>(tokens.size()), 1, wire::RowError::none, 0});
      tokens.push_back(7);
    }
    wire::RecordWriter<wire::StepResult> writer;
    writer.begin(plan.header.epoch);
    const auto row_span = writer.array(rows);
    const auto token_span = writer.array(tokens);
    writer.record().step = plan.step;
    writer.record().rows = row_span;
    writer.record().tokens = token_span;
    const std::span<const std::byte> bytes = writer.finish();
    return {reinterpret_cast<const char*>(bytes.data()),
            reinterpret_cast<const char*>(bytes.data()) + bytes.size()};
  }
  void step_done(std::size_t index) {
    self_->send(scheduler_, StepDone{result(index)});
    run();
  }
  /// What the session host, which is the test itself, was told since the last call.
  std::vector<StepTokens> hear() {
    std::vector<StepTokens> all;
    self_->receive_while([this] { return self_->has_next_message(); })(
        [&](const StepTokens& tokens) { all.push_back(tokens); });
    return all;
  }

  Heard heard_;
  LinkUp up_;
  workers_actor link_ = keep(system_.spawn(fake_link, &heard_));
  metrics_actor metrics_ = keep(system_.spawn(fake_metrics, &heard_));
  cache_actor cache_ = keep(system_.spawn(cache_behavior, CacheParts{link_, {}}));
  scheduler_actor scheduler_ =
      keep(system_.spawn(scheduler_behavior, SchedulerParts{{}, {}, cache_, link_, metrics_, {}, {}}));
};

TEST_F(SchedulerActorTest, AGrammarIsRefusedWhereNoneRuns) {
  link_up(1);
  SequenceSpec held = spec(1, 3);
  held.grammar = 5;
  const Status status = submit({spec(2, 3), held});
  EXPECT_EQ(status.code, Code::invalid_argument);
  EXPECT_EQ(status.param, "response_format");
  EXPECT_TRUE(heard_.plans.empty());
  EXPECT_TRUE(submit({spec(2, 3)}).ok());
}

TEST_F(SchedulerActorTest, MasksComeBehindTheirPlanAndTokensAreToldAheadOfTheNext) {
  scheduler_ = keep(system_.spawn(
      scheduler_behavior,
      SchedulerParts{{}, {}, cache_, link_, metrics_, {}, {}, keep(system_.spawn(fake_grammar, &heard_, link_))}));
  link_up(1);
  heard_.order.clear();
  SequenceSpec held = spec(1, 3);
  held.grammar = 5;
  held.gated_from = 1;
  ASSERT_TRUE(submit({held}).ok());
  EXPECT_EQ(heard_.order, "ppm") << "a free row; a gated one, whose mask is behind its plan";
  ASSERT_EQ(heard_.grammar.size(), 2u);
  EXPECT_EQ(heard_.grammar[0].starts.size(), 1u);
  EXPECT_EQ(heard_.grammar[1].step, 2u);
  step_done(0);
  EXPECT_EQ(heard_.order, "ppmpm");
  ASSERT_EQ(heard_.grammar.size(), 4u);
  EXPECT_EQ(heard_.grammar[2].tokens, std::vector<TokenId>{7});
  EXPECT_TRUE(heard_.grammar[2].rows.empty()) << "tokens do not wait for the next plan";
  EXPECT_EQ(heard_.grammar[3].rows.at(0).output_tokens, 2);
  EXPECT_EQ(heard_.grammar[3].step, 3u);
  self_->send(scheduler_, LinkDown{"killed"});
  run();
  self_->send(scheduler_, Cancel{{{1, 1}}});
  run();
  ASSERT_EQ(heard_.grammar.size(), 5u);
  EXPECT_EQ(heard_.grammar[4].ends.size(), 1u) << "while no worker is there";
}

TEST_F(SchedulerActorTest, RefusesBeforeAWorkerIsThere) {
  EXPECT_EQ(submit({spec(1, 3)}).code, Code::unavailable);
}

TEST_F(SchedulerActorTest, TwoPlansLeaveBeforeAnyResultAndEveryTokenReachesItsHost) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 3)}).ok());
  ASSERT_EQ(heard_.plans.size(), 2u);
  step_done(0);
  EXPECT_EQ(heard_.plans.size(), 3u);
  step_done(1);
  step_done(2);
  EXPECT_EQ(heard_.plans.size(), 3u) << "its end by length is foreseen";
  const std::vector<StepTokens> tokens = hear();
  ASSERT_EQ(tokens.size(), 3u);
  for (const StepTokens& step : tokens) EXPECT_EQ(step.tokens, std::vector<TokenId>{7});
  EXPECT_GT(tokens[0].sequences.at(0).scheduled_ns, 0);
  EXPECT_EQ(tokens[2].sequences.at(0).finish, Finish::length);
  ASSERT_EQ(heard_.stats.size(), 3u);
  EXPECT_EQ(heard_.stats[0].prompt_tokens, 6);
  EXPECT_EQ(heard_.stats[0].kv.total, 50);
  const CacheStatus blocks = ask<CacheStatus>(cache_, caf::get_atom::value);
  EXPECT_EQ(blocks.cached, 2) << "8 of the 9 tokens are in full blocks, and 8 positions were run";
  EXPECT_EQ(blocks.free + blocks.cached, 50);
}

TEST_F(SchedulerActorTest, ChoicesForkTheirPromptByACommandThatThePlanNames) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 9), spec(2, 9, 1)}).ok());
  EXPECT_TRUE(heard_.commands.empty());
  step_done(0);
  ASSERT_EQ(heard_.commands.size(), 1u);
  EXPECT_EQ(ask<CacheStatus>(cache_, caf::get_atom::value).moving, 1);
  step_done(1);
  wire::RecordView view;
  ASSERT_TRUE(wire::RecordView::open(std::as_bytes(std::span(heard_.plans.back())), view));
  EXPECT_EQ(view.as<wire::StepPlan>()->after_cache_command, 1u);
  EXPECT_EQ(view.as<wire::StepPlan>()->rows.count, 2u);

  wire::RecordWriter<wire::CacheDone> writer;
  writer.begin(1);
  writer.record().id = 1;
  const std::span<const std::byte> bytes = writer.finish();
  const char* first = reinterpret_cast<const char*>(bytes.data());
  self_->send(cache_, CacheReport{Bytes(first, first + bytes.size())});
  run();
  EXPECT_EQ(ask<CacheStatus>(cache_, caf::get_atom::value).moving, 0);
}

TEST_F(SchedulerActorTest, CancelFreesSlotAndBlocksAndReportsNothingMore) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}).ok());
  self_->send(scheduler_, Cancel{{{1, 1}}});
  run();
  step_done(0);
  step_done(1);
  EXPECT_TRUE(hear().empty());
  EXPECT_EQ(heard_.plans.size(), 2u);
  const CacheStatus blocks = ask<CacheStatus>(cache_, caf::get_atom::value);
  EXPECT_EQ(blocks.free + blocks.cached, 50);
  EXPECT_EQ(ask<SchedulerStatus>(scheduler_, caf::get_atom::value).running, 0);
}

TEST_F(SchedulerActorTest, SequencesOfALostWorkerGoOnWithTheNextOne) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 3)}).ok());
  step_done(0);
  self_->send(scheduler_, LinkDown{"killed"});
  run();
  ASSERT_EQ(hear().size(), 1u) << "the token from before";
  EXPECT_TRUE(submit({spec(2, 5)}).ok()) << "it waits for the next worker";
  const std::size_t before = heard_.plans.size();
  self_->send(scheduler_, StepDone{result(1)});  // of the dead worker
  run();
  EXPECT_TRUE(hear().empty());
  EXPECT_EQ(heard_.plans.size(), before);
  link_up(2);
  ASSERT_EQ(heard_.plans.size(), before + 2);
  wire::RecordView view;
  ASSERT_TRUE(wire::RecordView::open(std::as_bytes(std::span(heard_.plans[before])), view));
  const wire::StepPlan& plan = *view.as<wire::StepPlan>();
  ASSERT_EQ(plan.started.count, 2u);
  EXPECT_EQ(view.array(plan.started)[0].known_tokens, 7) << "with the token that the client has";
  step_done(before);
  step_done(before + 1);
  int of_the_first = 0;
  for (const StepTokens& step : hear()) {
    for (const SequenceTokens& s : step.sequences) of_the_first += s.key == RequestKey{1, 1} ? s.tokens : 0;
  }
  EXPECT_EQ(of_the_first, 2) << "none missing, none twice";
}

TEST_F(SchedulerActorTest, MetricsShowTheRestAfterTheLastStep) {
  link_up(1);
  EXPECT_EQ(heard_.gauges.kv.total, 50);
  EXPECT_EQ(heard_.gauges.kv.free, 50);
  ASSERT_TRUE(submit({spec(1, 2)}).ok());
  step_done(0);
  EXPECT_EQ(heard_.gauges.kv.leased, 2);
  EXPECT_EQ(heard_.gauges.running, 1);
  step_done(1);
  EXPECT_EQ(heard_.gauges.kv.free + heard_.gauges.kv.cached, 50);
  EXPECT_EQ(heard_.gauges.kv.leased, 0);
  EXPECT_EQ(heard_.gauges.running, 0);
}

TEST_F(SchedulerActorTest, MetricsShowNobodyAfterTheWorkersDeath) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}).ok());
  step_done(0);
  EXPECT_EQ(heard_.gauges.running, 1);
  self_->send(scheduler_, LinkDown{"killed"});
  run();
  EXPECT_EQ(heard_.gauges.running, 0);
  EXPECT_EQ(heard_.gauges.kv.leased, 0);
}

TEST_F(SchedulerActorTest, AResultThatContradictsItsPlanEndsTheActor) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}).ok());
  self_->monitor(scheduler_);
  Bytes bad = result(0);
  bad.resize(bad.size() - 8);
  self_->send(scheduler_, StepDone{bad});
  run();
  bool down = false;
  self_->receive([&](const caf::down_msg& message) { down = static_cast<bool>(message.reason); });
  EXPECT_TRUE(down);
}

TEST_F(SchedulerActorTest, AFailedCopyEndsTheCacheManager) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 9), spec(2, 9, 1)}).ok());
  step_done(0);
  hear();
  self_->monitor(cache_);
  wire::RecordWriter<wire::CacheDone> writer;
  writer.begin(1);
  writer.record().id = 1;
  writer.record().failed = 1;
  const std::span<const std::byte> bytes = writer.finish();
  const char* first = reinterpret_cast<const char*>(bytes.data());
  self_->send(cache_, CacheReport{Bytes(first, first + bytes.size())});
  run();
  bool down = false;
  self_->receive([&](const caf::down_msg& message) { down = static_cast<bool>(message.reason); });
  EXPECT_TRUE(down);
}

TEST_F(SchedulerActorTest, AFaultInASubmissionRefusesItAlone) {
  link_up(1);
  {
    const testing::ThrownFault fault("submission");
    EXPECT_EQ(submit({spec(1, 3)}).code, Code::internal);
  }
  EXPECT_TRUE(submit({spec(1, 3)}).ok()) << "nothing of it was kept";
}

}  // namespace
}  // namespace troupe
