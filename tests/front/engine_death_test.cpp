// What sessions do when engines die: who is submitted again, with what, in which order, and who is suspected.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "actors/session/session_book.h"
#include "support/byte_tokenizer.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;
using Exchanges = std::vector<std::uint64_t>;

class EngineDeathTest : public ::testing::Test {
 protected:
  EngineDeathTest() { up(book_); }

  static Ask ask(std::uint64_t exchange, std::int32_t choices = 1) {
    Ask out;
    out.exchange = exchange;
    out.request_id = "r" + std::to_string(exchange);
    out.arrived_ns = static_cast<std::int64_t>(1000 + exchange);
    out.timeout_ns = 1'000'000;
    out.generation.choices = out.generation.best_of = choices;
    out.generation.sampling.seed = 17;
    return out;
  }

  /// Opens an exchange and keeps what it submits.
  void open(SessionBook& book, Ask request, std::vector<std::vector<TokenId>> prompts = {{'a', 'b'}}) {
    const std::uint64_t exchange = request.exchange;
    book.open(std::move(request));
    encode(book, exchange, std::move(prompts));
  }
  void encode(SessionBook& book, std::uint64_t exchange,
              std::vector<std::vector<TokenId>> prompts = {{'a', 'b'}}) {
    Encoded encoded;
    encoded.prompts = std::move(prompts);
    keep(book.encoded(exchange, std::move(encoded), 10, effects_));
  }
  void keep(Submit submit) {
    if (!submit.sequences.empty()) last_[submit.exchange] = std::move(submit);
  }

  /// The next engine: returns who was submitted to it, in this order.
  Exchanges up(SessionBook& book) {
    epoch_ = book.process_of(0) ? epoch_ : epoch_ + 1;
    return up(book, epoch_);
  }
  Exchanges up(SessionBook& book, std::uint32_t epoch) {
    Exchanges out;
    for (const std::uint64_t exchange : book.engine_up({0, epoch}, 10, effects_)) submit(book, exchange, out);
    return out;
  }
  Exchanges retry(SessionBook& book) {
    Exchanges out;
    for (const std::uint64_t exchange : book.waiting()) submit(book, exchange, out);
    return out;
  }
  void submit(SessionBook& book, std::uint64_t exchange, Exchanges& submitted) {
    Submit one = book.submit(exchange, 10, effects_);
    if (one.sequences.empty()) return;
    submitted.push_back(one.exchange);
    keep(std::move(one));
  }
  void down(SessionBook& book) { book.engine_down({0, epoch_}, 10, effects_); }
  Exchanges next_engine() {
    down(book_);
    return up(book_);
  }

  /// An entry about a sequence, as the engine that was last given it would send it.
  static SequenceTokens entry(const Submit& submit, std::size_t sequence, Finish finish = Finish::none) {
    SequenceTokens out;
    out.key = submit.sequences.at(sequence).key;
    out.attempt = submit.attempt;
    out.position = static_cast<std::int32_t>(submit.sequences.at(sequence).output.size());
    out.finish = finish;
    return out;
  }
  /// Tokens that follow those of the last submission.
  void tokens(SessionBook& book, std::uint64_t exchange, const std::string& text,
              Finish finish = Finish::none, std::size_t sequence = 0) {
    send(book, entry(last_.at(exchange), sequence, finish), text);
    std::vector<TokenId>& output = last_.at(exchange).sequences.at(sequence).output;
    output.insert(output.end(), text.begin(), text.end());
  }
  void send(SessionBook& book, SequenceTokens entry, const std::string& text) {
    StepTokens step;
    step.tokens.assign(text.begin(), text.end());
    entry.tokens = static_cast<std::int32_t>(text.size());
    step.sequences.push_back(entry);
    book.take(step, 20, Slice(), effects_);
  }

  json answer() const { return json::parse(effects_.outputs.at(0).body); }

  std::shared_ptr<const SessionContext> context_ = std::make_shared<SessionContext>(
      SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, 64, 258});
  std::shared_ptr<Quarantine> quarantine_ = std::make_shared<Quarantine>();
  SessionBook book_{context_, KeySource({1, 0}), {}, quarantine_};
  Effects effects_;
  std::map<std::uint64_t, Submit> last_;  ///< by exchange
  std::uint32_t epoch_ = 0;
};

TEST_F(EngineDeathTest, SequencesGoOnBehindTheirTokens) {
  Ask request = ask(5, 3);
  request.api = Api::completions;
  request.prefix.salt = "s";
  request.priority = -2;
  request.generation.max_tokens = 9;
  request.generation.sampling.min_tokens = 2;
  open(book_, request, {{'a', 'b'}, {'c'}});
  const Submit first = last_.at(5);
  EXPECT_EQ(first.exchange, 5u);
  EXPECT_EQ(first.arrived_ns, 1005);
  EXPECT_EQ(first.attempt, 0u);
  ASSERT_EQ(first.sequences.size(), 6u);
  tokens(book_, 5, "x", Finish::length, 0);
  tokens(book_, 5, "yz", Finish::none, 2);
  EXPECT_EQ(next_engine(), Exchanges{5});
  const Submit& second = last_.at(5);
  EXPECT_EQ(second.request_id, "r5");
  EXPECT_EQ(second.prefix.salt, "s");
  EXPECT_EQ(second.priority, -2);
  EXPECT_EQ(second.arrived_ns, 1005);
  EXPECT_EQ(second.attempt, 1u);
  EXPECT_FALSE(second.alone);
  ASSERT_EQ(second.sequences.size(), 5u) << "one has ended";
  for (std::size_t i = 0; i < 5; ++i) {
    const SequenceSpec &before = first.sequences[i + 1], &now = second.sequences[i];
    EXPECT_EQ(now.key, before.key);
    EXPECT_EQ(now.prompt_tokens, before.prompt_tokens);
    EXPECT_EQ(now.max_output_tokens, 9);
    EXPECT_EQ(now.sampling.min_tokens, 2);
    EXPECT_EQ(now.sampling.seed, 17u);
    EXPECT_EQ(now.sampling.choice, before.sampling.choice);
    EXPECT_EQ(now.stop_ids, before.stop_ids);
  }
  EXPECT_EQ(second.sequences[0].prompt, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(second.sequences[0].parent, RequestKey{});
  EXPECT_TRUE(second.sequences[0].output.empty());
  EXPECT_TRUE(second.sequences[1].prompt.empty());
  EXPECT_EQ(second.sequences[1].parent, second.sequences[0].key);
  EXPECT_EQ(second.sequences[1].output, (std::vector<TokenId>{'y', 'z'}));
  EXPECT_EQ(second.sequences[2].prompt, std::vector<TokenId>{'c'});
  EXPECT_EQ(second.sequences[3].parent, second.sequences[2].key);
  EXPECT_EQ(next_engine(), Exchanges{5});
  EXPECT_EQ(last_.at(5).attempt, 2u);
}

TEST_F(EngineDeathTest, TheNextEngineGetsRequestsInOrderOfArrival) {
  const Exchanges order{9, 2, 7, 4};
  for (std::size_t i = 0; i < order.size(); ++i) {
    Ask request = ask(order[i]);
    request.arrived_ns = static_cast<std::int64_t>(i);
    open(book_, request);
  }
  EXPECT_EQ(next_engine(), order);
  for (const std::uint64_t exchange : order)
    tokens(book_, exchange, "x", exchange == 7 ? Finish::length : Finish::none);
  EXPECT_EQ(next_engine(), (Exchanges{9, 2, 4}));
}

TEST_F(EngineDeathTest, WhatIsEncodedWhileNoEngineRunsWaits) {
  book_.open(ask(3));
  book_.open(ask(4));
  down(book_);
  encode(book_, 3);
  EXPECT_TRUE(last_.empty());
  EXPECT_EQ(up(book_), Exchanges{3});
  EXPECT_EQ(last_.at(3).attempt, 0u) << "no engine had it";
  encode(book_, 4);
  EXPECT_EQ(last_.count(4), 1u);
}

TEST_F(EngineDeathTest, TheSameEngineIsNotGivenARequestTwice) {
  open(book_, ask(3));
  EXPECT_EQ(up(book_, epoch_), Exchanges{});
  book_.engine_down({0, epoch_ - 1}, 10, effects_);
  EXPECT_TRUE(book_.submit(3, 10, effects_).sequences.empty());
  EXPECT_EQ(up(book_, epoch_ + 4), Exchanges{3}) << "the death before it was not told";
  EXPECT_EQ(up(book_, epoch_ + 1), Exchanges{}) << "an engine of before";
}

TEST_F(EngineDeathTest, EntriesThatDoNotGoOnAreDropped) {
  open(book_, ask(3));
  const Submit first = last_.at(3);
  tokens(book_, 3, "ab");
  next_engine();
  SequenceTokens late = entry(first, 0);
  late.position = 2;
  send(book_, late, "X");
  late.finish = Finish::error;
  send(book_, late, "");
  EXPECT_EQ(book_.dropped(), 2u) << "of an older attempt";
  SequenceTokens next = entry(last_.at(3), 0);
  next.position = 3;
  send(book_, next, "Y");
  next.position = 1;
  send(book_, next, "Z");
  EXPECT_EQ(book_.dropped(), 4u) << "one skips a position, one comes again";
  tokens(book_, 3, "c", Finish::length);
  EXPECT_EQ(answer()["choices"][0]["message"]["content"], "abc");
  EXPECT_EQ(answer()["usage"]["completion_tokens"], 3);
  EXPECT_EQ(book_.dropped(), 4u);
}

TEST_F(EngineDeathTest, ScoresThatSkipAPositionAreDropped) {
  Ask request = ask(3);
  request.generation.sampling.prompt_logprobs = 0;
  open(book_, request, {{'a', 'b', 'c', 'd'}});
  StepTokens step;
  step.scores = {{2, {'c', -1.0f}, 0, 0}};
  SequenceTokens one = entry(last_.at(3), 0);
  one.scores = 1;
  step.sequences = {one};
  book_.take(step, 20, Slice(), effects_);
  EXPECT_EQ(book_.dropped(), 1u);
  step.scores[0].position = 1;
  book_.take(step, 20, Slice(), effects_);
  EXPECT_EQ(book_.dropped(), 1u);
  next_engine();
  EXPECT_EQ(last_.at(3).sequences[0].scored, 2);
}

TEST_F(EngineDeathTest, ScoresThatComeAgainAreTakenOnce) {
  Ask request = ask(3);
  request.generation.sampling.prompt_logprobs = 0;
  open(book_, request, {{'a', 'b', 'c', 'd'}});
  StepTokens step;
  step.scores = {{1, {'b', -1.0f}, 0, 0}, {2, {'c', -2.0f}, 0, 0}};
  SequenceTokens one = entry(last_.at(3), 0);
  one.scores = 2;
  step.sequences = {one};
  book_.take(step, 20, Slice(), effects_);
  next_engine();
  step.scores = {{2, {'c', -2.0f}, 0, 0}, {3, {'d', -3.0f}, 0, 0}};
  step.tokens = {'x'};
  one.attempt = 1;
  one.tokens = 1;
  one.finish = Finish::length;
  step.sequences = {one};
  book_.take(step, 20, Slice(), effects_);
  EXPECT_EQ(answer()["choices"][0]["prompt_logprobs"].size(), 4u) << effects_.outputs.at(0).body;
}

TEST_F(EngineDeathTest, NothingIsCancelledAtAnEngineThatDoesNotHaveIt) {
  open(book_, ask(3));
  open(book_, ask(4));
  down(book_);
  book_.withdraw(3, 20, effects_);
  EXPECT_EQ(book_.take_closed(), Exchanges{3});
  EXPECT_EQ(up(book_), Exchanges{4});
  EXPECT_TRUE(effects_.cancel.empty());
  book_.withdraw(4, 20, effects_);
  EXPECT_EQ(effects_.cancel, (std::vector<CancelledSequence>{{0, last_.at(4).sequences[0].key}}));
}

TEST_F(EngineDeathTest, ChoicesThatAStopStringHasEndedAreNotSubmittedAgain) {
  Ask request = ask(3, 2);
  request.generation.stop = {"."};
  open(book_, request);
  tokens(book_, 3, "one.");
  EXPECT_EQ(effects_.cancel.size(), 1u);
  EXPECT_EQ(next_engine(), Exchanges{3});
  ASSERT_EQ(last_.at(3).sequences.size(), 1u);
  EXPECT_EQ(last_.at(3).sequences[0].sampling.choice, 1u);
  EXPECT_EQ(last_.at(3).sequences[0].prompt.size(), 2u);
  tokens(book_, 3, "two.");
  EXPECT_EQ(answer()["choices"][0]["message"]["content"], "one");
  EXPECT_EQ(answer()["choices"][1]["message"]["content"], "two");
}

TEST_F(EngineDeathTest, ATimeoutBetweenTwoEnginesEndsTheRequest) {
  open(book_, ask(3));
  open(book_, ask(4));
  tokens(book_, 4, "ab");
  down(book_);
  book_.expire(3, 30, Slice(), effects_);
  EXPECT_EQ(effects_.outputs.at(0).status, 504);
  book_.expire(4, 30, Slice(), effects_);
  EXPECT_EQ(json::parse(effects_.outputs.at(1).body)["choices"][0]["finish_reason"], "timeout");
  EXPECT_EQ(up(book_), Exchanges{});
  EXPECT_TRUE(effects_.cancel.empty());
}

TEST_F(EngineDeathTest, ARefusalOfAnotherAttemptIsNone) {
  open(book_, ask(3));
  next_engine();
  const Status full = failure(Code::overloaded, "full");
  book_.refused({3, 0, full}, 20, effects_);
  EXPECT_TRUE(effects_.outputs.empty());
  book_.refused({3, 1, full}, 20, effects_);
  EXPECT_EQ(effects_.outputs.at(0).status, 429);
  EXPECT_TRUE(effects_.cancel.empty()) << "the engine does not have it";
}

TEST_F(EngineDeathTest, AFormIsCompiledAgainInEachEngine) {
  Ask request = ask(3);
  request.generation.form = {http::AnswerForm::Kind::regex, "a+", "guided_regex"};
  open(book_, request);
  EXPECT_TRUE(last_.empty());
  ASSERT_TRUE(book_.take_compile(3).has_value());
  EXPECT_FALSE(book_.take_compile(3).has_value()) << "it is being compiled";
  down(book_);
  EXPECT_FALSE(book_.take_compile(3).has_value());
  EXPECT_EQ(up(book_), Exchanges{});
  const auto job = book_.take_compile(3);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->form.value, R"("a+")");
  keep(book_.compiled(3, {0, epoch_}, {{}, 70}, 20, effects_));
  EXPECT_EQ(last_.at(3).attempt, 0u);
  tokens(book_, 3, "aa");
  EXPECT_EQ(next_engine(), Exchanges{});
  ASSERT_TRUE(book_.take_compile(3).has_value());
  keep(book_.compiled(3, {0, epoch_}, {{}, 71}, 20, effects_));
  EXPECT_EQ(last_.at(3).attempt, 1u);
  EXPECT_EQ(last_.at(3).sequences[0].grammar, 71u);
  EXPECT_EQ(last_.at(3).sequences[0].output.size(), 2u);
  down(book_);
  EXPECT_TRUE(effects_.grammars.empty());
  book_.withdraw(3, 30, effects_);
  EXPECT_TRUE(effects_.grammars.empty()) << "the next engine may call another grammar so";
}

TEST_F(EngineDeathTest, ThreeDeathsWithoutATokenAreThePoisonOfOne) {
  Ask request = ask(3);
  request.answer.stream = false;
  open(book_, request);
  next_engine();
  EXPECT_FALSE(last_.at(3).alone);
  next_engine();
  EXPECT_TRUE(last_.at(3).alone);
  EXPECT_EQ(next_engine(), Exchanges{});
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 500);
  EXPECT_EQ(answer()["error"]["code"], "poison_request");
  EXPECT_EQ(effects_.poisonous, std::vector<std::string>{"r3"});
  EXPECT_EQ(book_.take_closed(), Exchanges{3});
}

TEST_F(EngineDeathTest, ATokenClearsARequest) {
  open(book_, ask(3));
  next_engine();
  next_engine();
  tokens(book_, 3, "a");
  for (int i = 0; i < 3; ++i) {
    next_engine();
    EXPECT_EQ(last_.at(3).alone, i == 2) << i;
  }
  EXPECT_TRUE(effects_.outputs.empty());
}

TEST_F(EngineDeathTest, DeathsOfEnginesThatDoNotHaveTheRequestDoNotCount) {
  book_.open(ask(3));
  for (int i = 0; i < 5; ++i) next_engine();
  encode(book_, 3);
  EXPECT_FALSE(last_.at(3).alone);
}

TEST_F(EngineDeathTest, OneSuspectAtATimeRunsAloneOverAllHosts) {
  SessionBook other{context_, KeySource({2, 0}), {}, quarantine_};
  up(other, epoch_);
  open(book_, ask(3));
  open(book_, ask(4));
  Ask request = ask(5);
  request.io = 1;
  open(other, request);
  const auto next = [&] {
    down(book_);
    down(other);
    const Exchanges mine = up(book_), others = up(other, epoch_);
    Exchanges all = mine;
    all.insert(all.end(), others.begin(), others.end());
    return all;
  };
  EXPECT_EQ(next(), (Exchanges{3, 4, 5}));
  EXPECT_EQ(next(), (Exchanges{3})) << "the others wait";
  EXPECT_TRUE(last_.at(3).alone);
  EXPECT_EQ(book_.waiting(), Exchanges{4});
  EXPECT_EQ(other.waiting(), Exchanges{5});
  EXPECT_EQ(retry(book_), Exchanges{});
  tokens(book_, 3, "a");
  EXPECT_EQ(retry(other), Exchanges{5}) << "3 has a token";
  EXPECT_TRUE(last_.at(5).alone);
  EXPECT_EQ(retry(book_), Exchanges{});
  // 5 is the cause. 4 keeps its two deaths, 3 has none.
  const Exchanges after = next();
  EXPECT_EQ(after, (Exchanges{3, 4}));
  EXPECT_EQ(effects_.poisonous, std::vector<std::string>{"r5"});
  EXPECT_FALSE(last_.at(3).alone);
  EXPECT_TRUE(last_.at(4).alone);
  tokens(book_, 4, "done", Finish::length);
  next();
  EXPECT_TRUE(quarantine_->enter({7, 7}, {0, epoch_})) << "nobody has the place";
}

TEST_F(EngineDeathTest, TheDeathOfASuspectCountsAgainstNoOther) {
  open(book_, ask(3));
  next_engine();
  open(book_, ask(6));
  EXPECT_EQ(next_engine(), (Exchanges{3, 6}));
  EXPECT_TRUE(last_.at(3).alone);
  EXPECT_EQ(next_engine(), Exchanges{6});
  EXPECT_FALSE(last_.at(6).alone) << "it was there at two deaths, but 3 was the cause of one";
  EXPECT_EQ(next_engine(), Exchanges{6});
  EXPECT_TRUE(last_.at(6).alone);
}

TEST_F(EngineDeathTest, ASuspectThatEndsGivesItsPlaceUp) {
  open(book_, ask(3));
  open(book_, ask(4));
  next_engine();
  EXPECT_EQ(next_engine(), Exchanges{3});
  book_.withdraw(4, 20, effects_);
  EXPECT_TRUE(book_.waiting().empty());
  book_.withdraw(3, 20, effects_);
  EXPECT_TRUE(quarantine_->enter({7, 7}, {0, epoch_}));
}

TEST_F(EngineDeathTest, WhichHostHearsOfADeathFirstDoesNotMatter) {
  EXPECT_TRUE(quarantine_->enter({0, 3}, {0, 1}));
  const std::optional<Quarantine::Request> three = Quarantine::Request{0, 3};
  EXPECT_EQ(quarantine_->ended({0, 1}), three);
  EXPECT_TRUE(quarantine_->enter({0, 4}, {0, 2})) << "the first host has the next engine";
  EXPECT_EQ(quarantine_->ended({0, 1}), three) << "the second hears of the death";
  EXPECT_FALSE(quarantine_->enter({1, 5}, {0, 2}));
  EXPECT_EQ(quarantine_->ended({0, 2}), (Quarantine::Request{0, 4}));
  EXPECT_EQ(quarantine_->ended({0, 3}), std::nullopt);
}

TEST_F(EngineDeathTest, EightShortLivesAreSuspicious) {
  open(book_, ask(3));
  for (int life = 1; life <= EngineLives::kShortLives; ++life) {
    tokens(book_, 3, "abc");
    next_engine();
    EXPECT_EQ(last_.at(3).alone, life == EngineLives::kShortLives) << life;
  }
  // It runs alone until it has lived long, and fails when engines go on dying of it.
  tokens(book_, 3, "abc");
  EXPECT_FALSE(quarantine_->enter({7, 7}, {0, epoch_}));
  next_engine();
  EXPECT_TRUE(last_.at(3).alone);
  tokens(book_, 3, "abc");
  next_engine();
  tokens(book_, 3, "abc");
  EXPECT_EQ(next_engine(), Exchanges{});
  EXPECT_EQ(effects_.poisonous, std::vector<std::string>{"r3"});
}

TEST_F(EngineDeathTest, ALongLifeForgivesShortOnes) {
  open(book_, ask(3));
  for (int life = 1; life <= EngineLives::kShortLives; ++life) {
    tokens(book_, 3, "a");
    next_engine();
  }
  EXPECT_TRUE(last_.at(3).alone);
  tokens(book_, 3, "bcdefghi");
  EXPECT_TRUE(quarantine_->enter({7, 7}, {0, epoch_})) << "it has yielded eight";
  next_engine();
  EXPECT_FALSE(last_.at(3).alone);
}

}  // namespace
}  // namespace troupe
