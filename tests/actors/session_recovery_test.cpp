// What a SESSION HOST does when engines come and go.
#include "actors/session_host_rig.h"

namespace troupe {
namespace {

using SessionRecoveryTest = testing::SessionHostRig;

TEST_F(SessionRecoveryTest, AStreamGoesOnInTheNextEngine) {
  open(true);
  tokens("a", Finish::none);
  down(1);
  tokens("b", Finish::none);  // was on its way when the engine died
  up(2);
  ASSERT_EQ(submits_.size(), 2u);
  EXPECT_EQ(submits_[1].attempt, 1u);
  EXPECT_EQ(submits_[1].sequences[0].output, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(submits_[1].sequences[0].key, submits_[0].sequences[0].key);
  tokens("c", Finish::length);
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  const std::string stream = bytes_of(3);
  for (const char* text : {R"("content":"a")", R"("content":"b")", R"("content":"c")"}) {
    EXPECT_NE(stream.find(text), std::string::npos) << text << " in " << stream;
  }
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(cancels_.empty());
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].output_tokens, 3);
}

TEST_F(SessionRecoveryTest, RequestsWaitForAnEngine) {
  slow_tokenizer_ = true;
  open(false, 3);
  down(1);
  self_->send_exit(tokenizer_, caf::exit_reason::user_shutdown);  // encoded while no engine runs
  run();
  slow_tokenizer_ = false;
  open(false, 4);
  EXPECT_TRUE(submits_.empty());
  EXPECT_TRUE(answers_.empty());
  up(2);
  ASSERT_EQ(submits_.size(), 2u);
  EXPECT_EQ(submits_[0].exchange, 3u);
  EXPECT_EQ(submits_[1].exchange, 4u);
  EXPECT_EQ(submits_[0].attempt, 0u);
  down(1);  // is told again, late
  up(2);
  EXPECT_EQ(submits_.size(), 2u);
}

TEST_F(SessionRecoveryTest, WithdrawnWhileNoEngineRuns) {
  open(true);
  down(1);
  withdraw();
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
  up(2);
  EXPECT_EQ(submits_.size(), 1u);
  EXPECT_TRUE(cancels_.empty());
}

TEST_F(SessionRecoveryTest, ATimeoutOrAShutdownDoesNotWaitForAnEngine) {
  open(false, 3, 100, std::chrono::nanoseconds(1));
  open(false, 4);
  down(1);
  ActorWorld::scheduler_.advance_time(std::chrono::seconds(1));
  run();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].exchange_id, 3u);
  EXPECT_EQ(answers_[0].status, 504);
  self_->send(host_, Abandon{});
  run();
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[1].status, 503);
  EXPECT_EQ(closed_, (std::vector<std::uint64_t>{3, 4}));
}

TEST_F(SessionRecoveryTest, ARefusalOfAnEngineThatHasDiedIsNone) {
  open();
  down(1);
  up(2);
  self_->send(host_, Refused{3, 0, failure(Code::overloaded, "full")});
  run();
  EXPECT_TRUE(answers_.empty());
  self_->send(host_, Refused{3, 1, invalid("too long", "prompt")});
  run();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].status, 400);
}

TEST_F(SessionRecoveryTest, AFormIsCompiledAgainInTheNextEngine) {
  const http::AnswerForm form{http::AnswerForm::Kind::regex, "a+", "guided_regex"};
  // Its engine dies while the form is compiled: GRAMMAR's answer says so, is an error, or comes late.
  for (const int way : {0, 1, 2}) {
    open(false, 3, 100, std::chrono::hours(1), form);
    const auto index = compiles_.size() - 1;
    const auto epoch = static_cast<std::uint32_t>(way + 1);
    grammar_lost_ = way == 1;
    const Compiled lost{{Code::unavailable, "the engine was lost", {}, kEngineLost}, 0};
    if (way != 2) compiled(index, lost);
    grammar_lost_ = false;
    EXPECT_TRUE(answers_.empty()) << way;
    down(epoch);
    up(epoch + 1);
    ASSERT_EQ(compiles_.size(), index + 2) << way;
    EXPECT_EQ(compiles_.back().form.value, R"("a+")");
    if (way == 2) compiled(index, {{}, 60});
    EXPECT_TRUE(submits_.empty()) << "60 is a number of the engine before";
    EXPECT_TRUE(released_.empty());
    compiled(index + 1, {{}, 61});
    ASSERT_EQ(submits_.size(), 1u) << way;
    EXPECT_EQ(submits_[0].sequences[0].grammar, 61u);
    EXPECT_EQ(submits_[0].attempt, 0u);
    withdraw();
    EXPECT_EQ(std::exchange(released_, {}), std::vector<std::uint64_t>{61});
    submits_.clear();
    cancels_.clear();
  }
  EXPECT_TRUE(cancelled_compiles_.empty());
}

TEST_F(SessionRecoveryTest, GrammarsOfADeadEngineAreNotReleasedToTheNext) {
  open(false, 3, 100, std::chrono::hours(1), {http::AnswerForm::Kind::regex, "a+", "guided_regex"});
  compiled(0, {{}, 60});
  tokens("a", Finish::none);
  down(1);
  up(2);
  EXPECT_EQ(submits_.size(), 1u);
  withdraw();
  EXPECT_TRUE(released_.empty());
  EXPECT_EQ(cancelled_compiles_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionRecoveryTest, CompilesOfADeadEngineAreNotCancelledAtTheNext) {
  open(false, 3, 100, std::chrono::hours(1), {http::AnswerForm::Kind::regex, "a+", "guided_regex"});
  down(1);
  withdraw();
  up(2);
  EXPECT_TRUE(cancelled_compiles_.empty());
  EXPECT_EQ(closed_, std::vector<std::uint64_t>{3});
}

TEST_F(SessionRecoveryTest, RequestsWaitForTheirEngineForAWhileAndAreThenGivenToAnother) {
  parts_.engines = {std::make_shared<Engine>(*this, 0), std::make_shared<Engine>(*this, 1)};
  parts_.grammars = {grammar_, grammar_};
  const auto wait = parts_.wait_for_engine;
  host_ = keep(system_.spawn(session_host_behavior, std::move(parts_)));
  for (const std::uint32_t engine : {0u, 1u}) self_->send(host_, EngineUp{engine, 1});
  open(true);
  ASSERT_EQ(submitted_to_.size(), 1u);
  const std::uint32_t first = submitted_to_[0];
  tokens("a", Finish::none);
  self_->send(host_, EngineDown{first, 2, "killed"});
  run();
  ActorWorld::scheduler_.advance_time(wait / 2);
  run();
  EXPECT_EQ(submits_.size(), 1u) << "what it has computed may be found there";
  ActorWorld::scheduler_.advance_time(wait / 2 + std::chrono::milliseconds(1));
  run();
  EXPECT_EQ(submitted_to_, (std::vector<std::uint32_t>{first, 1 - first}));
  tokens("b", Finish::length);
  EXPECT_NE(bytes_of(3).find("[DONE]"), std::string::npos);
}

TEST_F(SessionRecoveryTest, SuspectsTakeTurns) {
  parts_.io = 1;
  auto other = keep(system_.spawn(session_host_behavior, std::move(parts_)));
  self_->send(other, EngineUp{0, 1});
  open(false, 3);
  open(false, 4);
  Ask ask;
  ask.io = 1;
  ask.exchange = 5;
  ask.arrived_ns = now_ns();
  ask.timeout_ns = std::chrono::nanoseconds(std::chrono::hours(1)).count();
  keep(system_.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    self->request(other, caf::infinite, ask).then([](const Closed&) {});
    return {[](int) {}};
  }));
  run();
  for (const std::uint32_t epoch : {1u, 2u}) {
    for (const auto& host : {host_, other}) self_->send(host, EngineDown{0, epoch, "killed"});
    run();
    submits_.clear();
    for (const auto& host : {host_, other}) self_->send(host, EngineUp{0, epoch + 1});
    run();
  }
  ASSERT_EQ(submits_.size(), 1u);
  EXPECT_EQ(submits_[0].exchange, 3u);
  EXPECT_TRUE(submits_[0].alone);
  const auto wait = [this] {
    ActorWorld::scheduler_.advance_time(std::chrono::milliseconds(100));
    run();
  };
  wait();
  EXPECT_EQ(submits_.size(), 1u);
  tokens("a", Finish::none);
  wait();
  EXPECT_EQ(submits_.size(), 2u);
  // The second death of 4 and 5 was their last but one: that of the engine which runs one of them is not the
  // other's.
  const std::uint64_t second = submits_.back().exchange;
  for (const auto& host : {host_, other}) self_->send(host, EngineDown{0, 3, "killed"});
  run();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].exchange_id, second);
  EXPECT_EQ(answers_[0].status, 500);
  submits_.clear();
  for (const auto& host : {host_, other}) self_->send(host, EngineUp{0, 4});
  run();
  ASSERT_EQ(submits_.size(), 2u);
  for (const Submit& submit : submits_) EXPECT_EQ(submit.alone, submit.exchange != 3);
}

}  // namespace
}  // namespace troupe
