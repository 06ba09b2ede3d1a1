// SCHEDULER and CACHE MANAGER together, between fronts and a worker link that the test plays.
#include "actors/scheduler/scheduler_actor.h"

#include <array>

#include "actors/cache/cache_actor.h"
#include "actors/record_bytes.h"
#include "support/actor_world.h"
#include "support/heard_front.h"
#include "support/heard_log.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

struct Heard {
  std::vector<Bytes> plans;
  std::vector<Bytes> commands;
  std::vector<GrammarStep> grammar;
  std::string order;  ///< of plans (p), masks (m), SequenceMedia (s) and EncodeMedia (e) at WORKER LINK
};

workers_actor::behavior_type fake_link(workers_actor::pointer, Heard* heard) {
  return {[heard](const SendPlan& plan) {
            heard->plans.push_back(plan.record);
            heard->order += 'p';
          },
          [heard](const SendMedia& media) {
            wire::RecordView view;
            EXPECT_TRUE(wire::RecordView::open(std::as_bytes(std::span(media.record)), view));
            heard->order += view.as<wire::SequenceMedia>() != nullptr ? 's' : 'e';
          },
          [heard](const SendMasks&) { heard->order += 'm'; },
          [heard](const SendCacheCommand& command) { heard->commands.push_back(command.record); }};
}

/// Answers rows at once.
grammar_actor::behavior_type fake_grammar(grammar_actor::pointer self, Heard* heard, workers_actor link) {
  return {answer_beat,
          [](const Compile&) { return Compiled{}; },
          [](const CancelCompile&) {},
          [](const ReleaseGrammar&) {},
          [=](const GrammarStep& step) {
            heard->grammar.push_back(step);
            if (!step.rows.empty()) self->send(link, SendMasks{});
          },
          [](const FormReady&) {},
          [](const TakeMade&) {}};
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
  /// What the front hears of it: ok when it is not refused.
  Status submit(std::vector<SequenceSpec> sequences, std::uint32_t front = 0) {
    self_->send(scheduler_, FrontSubmit{front, Submit{std::move(sequences)}});
    run();
    const auto refused = fronts_[front]->take_refused();
    return refused.empty() ? Status() : refused.front().status;
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
  /// What a front was given since the last call.
  std::vector<StepTokens> hear(std::uint32_t front = 0) { return fronts_[front]->take_tokens(); }
  /// What METRICS was told last, by a step or without one.
  StepStats gauges() {
    const auto all = fronts_[0]->take_stats();
    if (!all.empty()) gauges_ = all.back();
    return gauges_;
  }
  SchedulerParts parts(grammar_actor grammar = {}) const {
    return {{},
            {},
            cache_,
            link_,
            {fronts_[0], fronts_[1]},
            testing::log_of("scheduler", log_),
            std::move(grammar)};
  }

  Heard heard_;
  LinkUp up_;
  workers_actor link_ = keep(system_.spawn(fake_link, &heard_));
  const std::array<std::shared_ptr<testing::HeardFront>, 2> fronts_{std::make_shared<testing::HeardFront>(),
                                                                    std::make_shared<testing::HeardFront>()};
  StepStats gauges_;
  std::shared_ptr<testing::HeardLog> log_ = std::make_shared<testing::HeardLog>();
  cache_actor cache_ = keep(system_.spawn(cache_behavior, CacheParts{link_, {}}));
  scheduler_actor scheduler_ = keep(system_.spawn(scheduler_behavior, parts()));
};

TEST_F(SchedulerActorTest, ImagesAreSentBeforeThePlanAndTheirEndMakesTheNext) {
  up_.capacity.media_tokens = 50;
  link_up(1);
  SequenceSpec sees = spec(1, 3);
  sees.prompt = {1, 2, 3, 3, 4, 5};
  sees.media = {{{MediaKind::image, {1, 2, 4}, 2}, {7, 7}, {4096, 1}}};
  ASSERT_TRUE(submit({sees}).ok());
  EXPECT_EQ(heard_.order, "sep");
  wire::RecordWriter<wire::MediaDone> done;
  done.begin(1);
  done.record().slot = {0, 1};
  const Bytes record = to_bytes(done.finish());
  self_->send(scheduler_, MediaReport{record});
  run();
  EXPECT_EQ(heard_.order, "sepp");
  step_done(0);
  EXPECT_EQ(gauges().encoded, 1);
  step_done(1);
  EXPECT_EQ(gauges().encoded, 0);
  // Nobody asked for that: the engine ends.
  self_->monitor(scheduler_);
  self_->send(scheduler_, MediaReport{record});
  run();
  bool ended = false;
  self_->receive([&](const caf::down_msg&) { ended = true; });
  EXPECT_TRUE(ended);
}

// A client that leaves takes its patches along: that is nothing to warn of.
TEST_F(SchedulerActorTest, PatchesThatAreMissedAreWarnedOf) {
  up_.capacity.media_tokens = 50;
  link_up(1);
  const auto sees = [](std::uint64_t key) {
    SequenceSpec spec = SchedulerActorTest::spec(key, 3);
    spec.prompt = {1, 2, 3, 3, 4, 5};
    spec.media = {{{MediaKind::image, {1, 2, 4}, 2}, {7, 7}, {4096, 1}}};
    return spec;
  };
  const auto gone = [this](SlotRef slot) {
    wire::RecordWriter<wire::MediaDone> done;
    done.begin(1);
    done.record().slot = slot;
    done.record().failed = 1;
    self_->send(scheduler_, MediaReport{to_bytes(done.finish())});
    run();
  };
  ASSERT_TRUE(submit({sees(1)}).ok());
  ASSERT_TRUE(submit({sees(2)}).ok());
  self_->send(scheduler_, Cancel{{{1, 1}}});
  run();
  gone({0, 1});
  EXPECT_FALSE(log_->has("patches_gone")) << log_->lines.back();
  gone({1, 1});
  EXPECT_TRUE(log_->has("scheduler patches_gone"));
}

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
  scheduler_ =
      keep(system_.spawn(scheduler_behavior, parts(keep(system_.spawn(fake_grammar, &heard_, link_)))));
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
  EXPECT_EQ(heard_.grammar[3].rows.at(0).updates, 2);
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
  std::vector<StepStats> stats = fronts_[0]->take_stats();
  std::erase_if(stats, [](const StepStats& one) { return one.generated_tokens == 0; });
  ASSERT_EQ(stats.size(), 3u);
  EXPECT_EQ(stats[0].prompt_tokens, 6);
  EXPECT_EQ(stats[0].kv.total, 50);
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

TEST_F(SchedulerActorTest, EachFrontGetsItsOwnTokensAndAGoneOneLeavesNothing) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}).ok());
  ASSERT_TRUE(submit({spec(2, 50)}, 1).ok());
  for (std::size_t i = 0; i < 4; ++i) step_done(i);
  for (std::uint32_t front = 0; front < 2; ++front) {
    const auto tokens = hear(front);
    ASSERT_FALSE(tokens.empty());
    for (const StepTokens& step : tokens) {
      for (const SequenceTokens& s : step.sequences) EXPECT_EQ(s.key, (RequestKey{1, front + 1}));
    }
    for (const std::uint32_t host : fronts_[front]->take_hosts()) EXPECT_EQ(host, 1u);
  }
  self_->send(scheduler_, FrontLost{1});
  run();
  for (std::size_t i = 4; i < 10; ++i) step_done(i);
  EXPECT_TRUE(hear(1).empty());
  EXPECT_FALSE(hear(0).empty());
  EXPECT_EQ(ask<SchedulerStatus>(scheduler_, caf::get_atom::value).running, 1);
}

TEST_F(SchedulerActorTest, AFrontThatWasLostIsSettledWhenItsStepsHaveEnded) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}, 1).ok());
  const auto settled = [&] { return ask<bool>(scheduler_, FrontSettled{1}); };
  EXPECT_FALSE(settled());
  self_->send(scheduler_, FrontLost{1});
  run();
  EXPECT_FALSE(settled()) << "a plan names its sequence";
  EXPECT_FALSE(submit({spec(1, 50)}, 1).ok()) << "the key is in use";
  for (std::size_t i = 0; i < heard_.plans.size(); ++i) step_done(i);
  EXPECT_TRUE(settled());
  EXPECT_TRUE(submit({spec(1, 50)}, 1).ok());
}

TEST_F(SchedulerActorTest, NothingIsPlannedForAFrontThatIsBehind) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}).ok());
  fronts_[0]->is_behind = true;
  step_done(0);
  const std::size_t plans = heard_.plans.size();
  EXPECT_LE(plans, 3u) << "at most those in flight";
  for (std::size_t i = 1; i < plans; ++i) step_done(i);
  EXPECT_EQ(heard_.plans.size(), plans);
  fronts_[0]->is_behind = false;
  self_->send(scheduler_, FrontReady{0});
  run();
  EXPECT_GT(heard_.plans.size(), plans);
}

TEST_F(SchedulerActorTest, MetricsShowTheRestAfterTheLastStep) {
  link_up(1);
  EXPECT_EQ(gauges().kv.total, 50);
  EXPECT_EQ(gauges().kv.free, 50);
  ASSERT_TRUE(submit({spec(1, 2)}).ok());
  step_done(0);
  EXPECT_EQ(gauges().kv.leased, 2);
  EXPECT_EQ(gauges().running, 1);
  step_done(1);
  EXPECT_EQ(gauges().kv.free + gauges().kv.cached, 50);
  EXPECT_EQ(gauges().kv.leased, 0);
  EXPECT_EQ(gauges().running, 0);
}

TEST_F(SchedulerActorTest, MetricsShowNobodyAfterTheWorkersDeath) {
  link_up(1);
  ASSERT_TRUE(submit({spec(1, 50)}).ok());
  step_done(0);
  EXPECT_EQ(gauges().running, 1);
  self_->send(scheduler_, LinkDown{"killed"});
  run();
  EXPECT_EQ(gauges().running, 0);
  EXPECT_EQ(gauges().kv.leased, 0);
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
