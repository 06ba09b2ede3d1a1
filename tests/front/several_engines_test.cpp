// The sessions of a front with several engines: each is one engine's until that has been gone for long.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/session_book.h"
#include "support/byte_tokenizer.h"

namespace troupe {
namespace {

using testing::ByteTokenizer;
using Exchanges = std::vector<std::uint64_t>;

class SeveralEnginesTest : public ::testing::Test {
 protected:
  SeveralEnginesTest() {
    EngineRouter::Setup setup;
    setup.policy = config::RoutingPolicy::round_robin;
    router_ = std::make_shared<EngineRouter>(setup);
    book_ = std::make_unique<SessionBook>(context(), KeySource(), Log(), quarantine_, router_);
    up(0, 1);
    up(1, 1);
  }

  static std::shared_ptr<const SessionContext> context() {
    return std::make_shared<SessionContext>(
        SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, 64, 258});
  }

  /// Opens an exchange; returns the engine that it was submitted to.
  std::optional<std::uint32_t> open(std::uint64_t exchange, http::AnswerForm form = {}) {
    Ask ask;
    ask.exchange = exchange;
    ask.request_id = "r" + std::to_string(exchange);
    ask.arrived_ns = static_cast<std::int64_t>(1000 + exchange);
    ask.timeout_ns = 1'000'000;
    ask.generation.form = std::move(form);
    book_->open(std::move(ask));
    Encoded encoded;
    encoded.prompts = {{'a', 'b'}};
    keep(book_->encoded(exchange, std::move(encoded), 10, effects_));
    return engine_of(exchange);
  }
  std::optional<std::uint32_t> engine_of(std::uint64_t exchange) const {
    const auto process = book_->engine_of(exchange);
    return process ? std::optional(process->engine) : std::nullopt;
  }
  void keep(Submit submit) {
    if (!submit.sequences.empty()) last_[submit.exchange] = std::move(submit);
  }
  Exchanges submit(const Exchanges& exchanges) {
    Exchanges submitted;
    for (const std::uint64_t exchange : exchanges) {
      Submit one = book_->submit(exchange, 10, effects_);
      if (one.sequences.empty()) continue;
      submitted.push_back(exchange);
      keep(std::move(one));
    }
    return submitted;
  }
  Exchanges up(std::uint32_t engine, std::uint32_t epoch) {
    return submit(book_->engine_up({engine, epoch}, 10, effects_));
  }
  void down(std::uint32_t engine, std::uint32_t epoch) { book_->engine_down({engine, epoch}, 10, effects_); }
  /// The engine has no room.
  bool refuse(std::uint64_t exchange, Code code = Code::overloaded) {
    return book_->refused({exchange, last_.at(exchange).attempt, failure(code, "full")}, 10, effects_);
  }
  void token(std::uint64_t exchange, Finish finish = Finish::none) {
    Submit& submit = last_.at(exchange);
    std::vector<TokenId>& output = submit.sequences.at(0).output;
    StepTokens step;
    SequenceTokens entry;
    entry.key = submit.sequences.at(0).key;
    entry.attempt = submit.attempt;
    entry.position = static_cast<std::int32_t>(output.size());
    entry.tokens = 1;
    entry.finish = finish;
    step.sequences.push_back(entry);
    step.tokens.push_back('x');
    output.push_back('x');
    book_->take(step, 10, Slice(), effects_);
  }

  std::shared_ptr<Quarantine> quarantine_ = std::make_shared<Quarantine>();
  std::shared_ptr<EngineRouter> router_;
  std::unique_ptr<SessionBook> book_;
  std::map<std::uint64_t, Submit> last_;
  Effects effects_;
};

TEST_F(SeveralEnginesTest, ADeathTouchesTheSessionsOfItsEngineAlone) {
  ASSERT_EQ(open(3), 0u);
  ASSERT_EQ(open(4), 1u);
  down(1, 2);
  EXPECT_EQ(engine_of(3), 0u);
  EXPECT_EQ(engine_of(4), std::nullopt);
  token(3);
  EXPECT_EQ(book_->dropped(), 0u);
  EXPECT_EQ(up(1, 2), Exchanges{4});
  EXPECT_EQ(engine_of(4), 1u);
  EXPECT_EQ(last_.at(4).attempt, 1u);
  EXPECT_EQ(last_.at(3).attempt, 0u);
}

TEST_F(SeveralEnginesTest, WhatHasWaitedLongForAnEngineIsGivenToAnother) {
  open(3);
  ASSERT_EQ(open(4), 1u);
  token(4);
  down(1, 2);
  EXPECT_EQ(submit({4}), Exchanges{}) << "it waits for its engine";
  EXPECT_EQ(submit(book_->stop_waiting({1, 2})), Exchanges{4});
  EXPECT_EQ(engine_of(4), 0u);
  EXPECT_EQ(last_.at(4).sequences.at(0).output, std::vector<TokenId>{'x'});
  EXPECT_EQ(up(1, 2), Exchanges{}) << "it is another's by now";
}

TEST_F(SeveralEnginesTest, AWaitThatIsOverTooLateChangesNothing) {
  open(3);
  open(4);
  down(1, 2);
  up(1, 2);
  EXPECT_EQ(book_->stop_waiting({1, 2}), Exchanges{});
  down(1, 3);
  EXPECT_EQ(book_->stop_waiting({1, 2}), Exchanges{}) << "the wait for the process after that has just begun";
  EXPECT_EQ(book_->stop_waiting({1, 3}), Exchanges{4});
}

TEST_F(SeveralEnginesTest, WithoutAnyEngineTheFirstThatComesIsGivenAll) {
  open(3);
  open(4);
  down(0, 2);
  down(1, 2);
  EXPECT_EQ(open(5), std::nullopt);
  EXPECT_EQ(submit(book_->stop_waiting({0, 2})), Exchanges{});
  EXPECT_EQ(up(1, 2), (Exchanges{3, 4, 5}));
}

TEST_F(SeveralEnginesTest, AnEngineWithoutRoomIsNotTheLast) {
  ASSERT_EQ(open(3), 0u);
  EXPECT_TRUE(refuse(3));
  EXPECT_EQ(submit({3}), Exchanges{3});
  EXPECT_EQ(engine_of(3), 1u);
  EXPECT_EQ(last_.at(3).attempt, 0u) << "limits of the queue hold there too";
  EXPECT_TRUE(effects_.outputs.empty());
  EXPECT_FALSE(refuse(3));
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 429);
}

TEST_F(SeveralEnginesTest, WhatIsWrongWithARequestIsWrongEverywhere) {
  open(3);
  EXPECT_FALSE(refuse(3, Code::invalid_argument));
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 400);
}

TEST_F(SeveralEnginesTest, AnEngineThatHadNoRoomMayHaveSomeAfterADeath) {
  open(3);
  EXPECT_TRUE(refuse(3));
  submit({3});
  down(1, 2);
  EXPECT_EQ(submit(book_->stop_waiting({1, 2})), Exchanges{3});
  EXPECT_EQ(engine_of(3), 0u);
}

TEST_F(SeveralEnginesTest, CancellationsNameTheEngine) {
  open(3);
  open(4);
  book_->withdraw(4, 20, effects_);
  EXPECT_EQ(effects_.cancel, (std::vector<CancelledSequence>{{1, last_.at(4).sequences.at(0).key}}));
}

TEST_F(SeveralEnginesTest, AGrammarIsOneOfItsEngine) {
  open(3);
  EXPECT_EQ(open(4, {http::AnswerForm::Kind::regex, "a+", "guided_regex"}), std::nullopt);
  EXPECT_TRUE(book_->take_compile(4));
  EXPECT_EQ(engine_of(4), 1u);
  keep(book_->compiled(4, {1, 1}, {{}, 77}, 20, effects_));
  EXPECT_EQ(last_.at(4).sequences.at(0).grammar, 77u);
  EXPECT_TRUE(refuse(4));
  EXPECT_EQ(effects_.grammars, (std::vector<ReleasedGrammar>{{1, 77}}));
  EXPECT_EQ(submit({4}), Exchanges{}) << "the other engine has to compile it too";
  EXPECT_TRUE(book_->take_compile(4));
  EXPECT_EQ(engine_of(4), 0u);
  keep(book_->compiled(4, {0, 1}, {{}, 12}, 20, effects_));
  EXPECT_EQ(last_.at(4).sequences.at(0).grammar, 12u);
}

TEST_F(SeveralEnginesTest, AClosedSessionTakesItsLoadAlong) {
  open(3);
  EXPECT_GT(router_->load(0), 0);
  token(3, Finish::length);
  EXPECT_EQ(router_->load(0), 0);
}

TEST_F(SeveralEnginesTest, DeathsOfDifferentEnginesMakeARequestSuspicious) {
  open(3);
  down(0, 2);
  submit(book_->stop_waiting({0, 2}));
  ASSERT_EQ(engine_of(3), 1u);
  EXPECT_FALSE(last_.at(3).alone);
  up(0, 2);
  down(1, 2);
  submit(book_->stop_waiting({1, 2}));
  ASSERT_EQ(engine_of(3), 0u);
  EXPECT_TRUE(last_.at(3).alone);
  down(0, 3);
  EXPECT_EQ(effects_.poisonous, std::vector<std::string>{"r3"});
}

TEST(Quarantine, TheDeathsOfEnginesAreToldApart) {
  Quarantine quarantine;
  EXPECT_TRUE(quarantine.enter({0, 3}, {1, 5}));
  EXPECT_EQ(quarantine.ended({0, 9}), std::nullopt);
  for (std::uint32_t epoch = 10; epoch < 30; ++epoch) EXPECT_EQ(quarantine.ended({2, epoch}), std::nullopt);
  const std::optional<Quarantine::Request> three = Quarantine::Request{0, 3};
  EXPECT_EQ(quarantine.ended({1, 5}), three);
  EXPECT_EQ(quarantine.ended({1, 5}), three) << "the same for every host";
}

}  // namespace
}  // namespace troupe
