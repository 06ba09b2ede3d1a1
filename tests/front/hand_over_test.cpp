// Requests whose prompts a prefill instance computes: what each engine is given, and that clients are sent
// what an engine alone would have sent them, whoever ends meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/session_book.h"
#include "support/answer_cases.h"
#include "support/parsing_context.h"
#include "support/prefill_router.h"
#include "support/scripted_engine.h"

namespace troupe {
namespace {

using testing::AnswerCase;
using testing::Script;
using testing::ScriptedEngine;

constexpr std::uint32_t kOwn = 0, kPrefill = 1;

/// The events of a record, choice by choice: choices do not wait for one another, so how their events lie
/// beside each other, in one output or several, and what a usage between them counts, is nobody's promise.
std::string by_choice(const std::string& record) {
  std::map<std::string, std::string> choices;
  std::string others;
  for (std::size_t at = 0; at < record.size();) {
    const std::size_t end = std::min(record.find("\n\n", at), record.size() - 2);
    std::string event = record.substr(at, end - at);
    at = end + 2;
    event.erase(0, std::min(event.find("data: "), event.size()));
    const std::string begin = R"("choices":[{"index":)";
    const std::size_t index = event.find(begin);
    if (index == std::string::npos) {
      others += event + "\n";
    } else {
      event.erase(std::min(event.find(R"(,"usage":{)"), event.size()));
      choices[event.substr(index + begin.size(), 2)] += event + "\n";
    }
  }
  std::string out;
  for (const auto& [index, events] : choices) out += events;
  return out + others + record.substr(record.rfind('\n', record.size() - 2));
}

/// A request that is played to its end. `disturb` is called before each step of the engines.
class HandOverPlay {
 public:
  explicit HandOverPlay(const AnswerCase& of) : case_(of) {
    for (const std::string& text : of.lines) {
      Script::Line& line =
          script_.lines.emplace_back(Script::Line{testing::parsing_ids(text), Finish::length});
      if (line.ids.back() == testing::ByteTokenizer::kEos) {
        line.end = Finish::stop;
      } else if (line.ids.size() == 1 && of.ask.generation.max_tokens != 0) {
        line.ids.push_back('!');  // the limit of a sequence that ends with its length is more than a token
      }
    }
  }

  std::string run(const std::function<void(HandOverPlay&, int step)>& disturb = {}) {
    open();
    for (int step = 0; book_.size() > 0 && step < 300; ++step) {
      if (disturb) disturb(*this, step);
      for (const std::uint32_t engine : {kPrefill, kOwn}) {
        if (engines_[engine]) deliver(engine, engines_[engine]->step());
      }
    }
    for (const std::uint32_t engine : {kPrefill, kOwn}) {
      EXPECT_TRUE(!engines_[engine] || engines_[engine]->idle()) << engine;
      EXPECT_TRUE(grammars_[engine].empty()) << engine;
      EXPECT_EQ(router_->load(engine), 0) << engine;
    }
    const std::string record = testing::record(effects_);
    return case_.ask.answer.stream ? by_choice(record) : record;
  }

  void up(std::uint32_t engine) {
    engines_[engine] = std::make_unique<ScriptedEngine>(script_);
    grammars_[engine].clear();
    bring_all(book_.engine_up({engine, ++epochs_[engine]}, 10, effects_));
  }

  /// `late`: what the engine yields in a step more arrives when its end is known. `waits`: what it had waits
  /// for its next process.
  void down(std::uint32_t engine, bool late = false, bool waits = false) {
    const StepTokens last = late ? engines_[engine]->step() : StepTokens();
    engines_[engine].reset();
    grammars_[engine].clear();
    book_.engine_down({engine, epochs_[engine] + 1}, 10, effects_);
    if (!waits) bring_all(book_.stop_waiting({engine, epochs_[engine] + 1}));
    if (late) deliver(engine, last);
  }

  /// The prefill instance gives no sign of life any more, though it has not ended.
  void silence() {
    responds_ = false;
    EXPECT_TRUE(book_.leave_silent(1'000'000'000, effects_).empty());
    EXPECT_TRUE(book_.leave_silent(1'500'000'000, effects_).empty()) << "it may be slow";
    const std::vector<std::uint64_t> left = book_.leave_silent(2'000'000'000, effects_);
    carry_out();
    bring_all(left);
  }

  bool refuses_ = false;  ///< the prefill instance
  /// Of which sequences it yields a failure in place of tokens.
  enum class Fails { none, last, all };
  Fails fails_ = Fails::none;
  bool compiles_ = true;  ///< the prefill instance
  const std::vector<Submit>& submits(std::uint32_t engine) const { return submits_[engine]; }
  const Effects& effects() const { return effects_; }

 private:
  void open() {
    Submit submit = testing::open_case(book_, case_, effects_);
    if (submit.sequences.empty()) return bring();
    give(std::move(submit));
  }

  void bring_all(const std::vector<std::uint64_t>& exchanges) {
    for (const std::uint64_t exchange : exchanges) {
      EXPECT_EQ(exchange, 5u);
      bring();
    }
  }

  void bring() {
    if (book_.take_compile(5)) {
      const EngineProcess process = *book_.engine_of(5);
      if (process.engine == kPrefill && !compiles_) {
        const Status status = failure(Code::unsupported, "it knows no forms");
        EXPECT_TRUE(book_.compiled(5, process, {status, 0}, 10, effects_).sequences.empty());
        return bring();
      }
      const std::uint64_t grammar = ++next_grammar_;
      grammars_[process.engine] = {grammar};
      return give(book_.compiled(5, process, {{}, grammar}, 10, effects_));
    }
    give(book_.submit(5, 10, effects_));
  }

  void give(Submit submit) {
    if (submit.sequences.empty()) return;
    const std::uint32_t engine = book_.engine_of(5)->engine;
    EXPECT_EQ(submit.attempt, attempts_++);
    for (const SequenceSpec& spec : submit.sequences)
      EXPECT_EQ(spec.grammar, grammars_[engine].empty() ? 0 : grammars_[engine].front());
    submits_[engine].push_back(submit);
    if (engine == kPrefill && refuses_) {
      --attempts_;
      if (book_.refused({5, submit.attempt, failure(Code::overloaded, "full")}, 10, effects_)) {
        carry_out();
        bring();
      }
      return;
    }
    engines_[engine]->submit(submit);
  }

  void deliver(std::uint32_t engine, StepTokens step) {
    step.engine = engine;
    const std::size_t failing = engine != kPrefill || fails_ == Fails::none ? 0
                                : fails_ == Fails::last                     ? 1
                                                                            : step.sequences.size();
    const auto failed = std::span(step.sequences).last(std::min(failing, step.sequences.size()));
    for (SequenceTokens& tokens : failed) {
      tokens.tokens = tokens.scores = 0;
      tokens.finish = Finish::aborted;
    }
    book_.take(step, 20, Slice(), effects_);
    for (const SequenceTokens& tokens : failed) {  // a cancellation comes too late for it
      engines_[engine]->forget(tokens.key);
      std::erase(effects_.cancel, CancelledSequence{engine, tokens.key});
    }
    carry_out();
    for (const HandedOver& one : std::exchange(effects_.handed_over, {})) {
      EXPECT_EQ(one.engine, kPrefill);
      EXPECT_EQ(one.failed, fails_ != Fails::none);
      bring();
    }
  }

  void carry_out() {
    for (const CancelledSequence& one : std::exchange(effects_.cancel, {})) {
      if (engines_[one.engine]) engines_[one.engine]->cancel({one.key});
    }
    for (const auto& [engine, grammar] : std::exchange(effects_.grammars, {}))
      EXPECT_EQ(std::erase(grammars_[engine], grammar), 1u);
  }

  const AnswerCase& case_;
  Script script_;
  bool responds_ = true;  // the prefill instance
  std::shared_ptr<EngineRouter> router_ =
      testing::make_prefill_router([this](std::uint32_t engine) { return engine == kOwn || responds_; });
  SessionBook book_{testing::parsing_context(), KeySource({1, 0}), {}, nullptr, router_};
  Effects effects_;
  std::array<std::unique_ptr<ScriptedEngine>, 2> engines_;
  std::array<std::uint32_t, 2> epochs_{};
  std::array<std::vector<std::uint64_t>, 2> grammars_;  ///< that each holds
  std::array<std::vector<Submit>, 2> submits_;
  std::uint64_t next_grammar_ = 0;
  std::uint32_t attempts_ = 0;
};

/// Kinds of answers that end in whole or in part with their first token, beside those of other tests.
std::vector<AnswerCase> all_cases(bool stream) {
  std::vector<AnswerCase> all = testing::answer_cases(stream);
  for (AnswerCase& one : all) {
    // In a stream, events of other choices wait for the scores of the prompt, and are then fewer.
    if (!stream || std::string(one.name) != "echo") continue;
    one.ask.generation.choices = one.ask.generation.best_of = 1;
    one.lines.pop_back();
  }
  const auto add = [&](const char* name, std::vector<std::string> lines) -> Ask& {
    const auto choices = static_cast<std::int32_t>(lines.size());
    AnswerCase one{name, testing::basic_ask(Api::completions, stream), {"abc"}, std::move(lines)};
    one.ask.generation.choices = one.ask.generation.best_of = choices;
    return all.emplace_back(std::move(one)).ask;
  };
  add("one choice stops at once", {testing::kEos, "long" + testing::kEos, "longer"});
  add("all stop at once", {testing::kEos, testing::kEos});
  add("a stop string at once", {".never", "later.never", "no"}).generation.stop = {"."};
  add("one token", {"x", "y"}).generation.max_tokens = 1;
  return all;
}

bool ends_at_once(const AnswerCase& one) {
  return one.ask.generation.max_tokens == 1 || one.ask.generation.max_tokens == 0 ||
         std::string(one.name) == "all stop at once";
}

std::string undisturbed(const AnswerCase& one) {
  HandOverPlay play(one);
  play.up(kOwn);
  return play.run();
}

std::string handed_over(const AnswerCase& one, const std::function<void(HandOverPlay&, int step)>& disturb) {
  HandOverPlay play(one);
  play.up(kOwn);
  play.up(kPrefill);
  return play.run(disturb);
}

class HandOverTest : public ::testing::TestWithParam<bool> {};

TEST_P(HandOverTest, AnAnswerIsWhatOneEngineAloneWouldGive) {
  for (const AnswerCase& one : all_cases(GetParam())) {
    HandOverPlay play(one);
    play.up(kOwn);
    play.up(kPrefill);
    ASSERT_EQ(play.run(), undisturbed(one)) << one.name;
    ASSERT_EQ(play.submits(kPrefill).size(), 1u) << one.name;
    const bool once = ends_at_once(one);
    EXPECT_EQ(play.submits(kOwn).size(), once ? 0u : 1u) << one.name;
    EXPECT_EQ(play.effects().finished[0].stats.handed_over, !once) << one.name;
    EXPECT_FALSE(play.effects().finished[0].stats.given_back) << one.name;
    for (const SequenceSpec& spec : play.submits(kPrefill)[0].sequences)
      EXPECT_EQ(spec.max_output_tokens, 1) << one.name;
    if (once) continue;
    for (const SequenceSpec& spec : play.submits(kOwn)[0].sequences) {
      EXPECT_EQ(spec.output.size(), 1u) << one.name;
      EXPECT_GT(spec.max_output_tokens, 1) << one.name;
    }
  }
}

TEST_P(HandOverTest, APrefillInstanceMayEndAtAnyStep) {
  for (const AnswerCase& one : all_cases(GetParam())) {
    const std::string expected = undisturbed(one);
    for (const bool late : {false, true}) {
      for (int at = 0; at < 6; ++at) {
        const auto disturb = [&](HandOverPlay& play, int step) {
          if (step == at) play.down(kPrefill, late);
        };
        ASSERT_EQ(handed_over(one, disturb), expected) << one.name << " at " << at << (late ? ", late" : "");
      }
    }
  }
}

TEST_P(HandOverTest, APrefillInstanceMayFallSilentAtAnyStep) {
  for (const AnswerCase& one : all_cases(GetParam())) {
    const std::string expected = undisturbed(one);
    for (int at = 0; at < 6; ++at) {
      const auto disturb = [&](HandOverPlay& play, int step) {
        if (step == at) play.silence();
      };
      ASSERT_EQ(handed_over(one, disturb), expected) << one.name << " at " << at;
    }
  }
}

TEST_P(HandOverTest, WithoutAnotherEngineASilentPrefillInstanceIsWaitedFor) {
  const std::vector<AnswerCase> all = all_cases(GetParam());
  HandOverPlay play(all.front());
  play.up(kPrefill);
  EXPECT_EQ(play.run([](HandOverPlay& play, int step) {
    if (step == 1) play.silence();
  }),
            undisturbed(all.front()));
}

TEST_P(HandOverTest, AFormThatAPrefillInstanceCannotCompileIsCompiledHere) {
  int forms = 0;
  for (const AnswerCase& one : all_cases(GetParam())) {
    if (std::string(one.name) != "form" && std::string(one.name) != "thinking budget") continue;
    HandOverPlay play(one);
    play.compiles_ = false;
    play.up(kOwn);
    play.up(kPrefill);
    ASSERT_EQ(play.run(), undisturbed(one)) << one.name;
    EXPECT_TRUE(play.submits(kPrefill).empty());
    ++forms;
  }
  EXPECT_EQ(forms, 2);
}

TEST_P(HandOverTest, AnEngineMayEndAtAnyStepAndComeBack) {
  for (const AnswerCase& one : all_cases(GetParam())) {
    const std::string expected = undisturbed(one);
    for (const bool waits : {false, true}) {
      for (int at = 0; at < 6; ++at) {
        const auto disturb = [&](HandOverPlay& play, int step) {
          if (step == at) play.down(kOwn, false, waits);
          if (step == at + 2) play.up(kOwn);
        };
        ASSERT_EQ(handed_over(one, disturb), expected)
            << one.name << " at " << at << (waits ? ", waits" : "");
      }
    }
  }
}

TEST_P(HandOverTest, WithoutAnotherEngineAPrefillInstanceGoesOn) {
  for (const AnswerCase& one : all_cases(GetParam())) {
    const std::string expected = undisturbed(one);
    ASSERT_EQ(handed_over(one,
                          [](HandOverPlay& play, int step) {
                            if (step == 0) play.down(kOwn);
                          }),
              expected)
        << one.name;
    HandOverPlay play(one);
    play.up(kPrefill);
    ASSERT_EQ(play.run(), expected) << one.name;
    ASSERT_EQ(play.submits(kPrefill).size(), 1u) << one.name << ": it does not hand over";
  }
}

TEST_P(HandOverTest, WhatAPrefillInstanceRefusesOrFailsAtIsComputedHere) {
  for (const AnswerCase& one : all_cases(GetParam())) {
    const std::string expected = undisturbed(one);
    using Fails = HandOverPlay::Fails;
    for (const Fails fails : {Fails::none, Fails::last, Fails::all}) {
      HandOverPlay play(one);
      play.refuses_ = fails == Fails::none;
      play.fails_ = fails;
      play.up(kOwn);
      play.up(kPrefill);
      ASSERT_EQ(play.run(), expected) << one.name << ": " << static_cast<int>(fails);
      EXPECT_EQ(play.submits(kOwn).size(), 1u) << one.name;
      EXPECT_TRUE(play.effects().finished[0].stats.given_back) << one.name;
      EXPECT_FALSE(play.effects().finished[0].stats.handed_over) << one.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(StreamOrWhole, HandOverTest, ::testing::Bool());

class PrefillChoiceTest : public ::testing::Test {
 protected:
  PrefillChoiceTest() {
    for (const std::uint32_t engine : {kOwn, kPrefill}) book_.engine_up({engine, 1}, 10, effects_);
  }

  static Ask ask() { return testing::basic_ask(Api::chat, false); }
  void open(Ask request) {
    book_.open(std::move(request));
    Encoded encoded;
    encoded.prompts = {{'a', 'b', 'c'}};
    submit_ = book_.encoded(5, std::move(encoded), 10, effects_);
  }
  std::optional<std::uint32_t> engine() const {
    const auto process = book_.engine_of(5);
    return process ? std::optional(process->engine) : std::nullopt;
  }
  bool refuse(Code code) {
    if (!book_.refused({5, submit_.attempt, failure(code, "no")}, 10, effects_)) return false;
    submit_ = book_.submit(5, 10, effects_);
    return true;
  }

  SessionBook book_{
      testing::parsing_context(), KeySource({1, 0}), {}, nullptr, testing::make_prefill_router()};
  Effects effects_;
  Submit submit_;
};

TEST_F(PrefillChoiceTest, AnyRefusalOfAPrefillInstanceIsFollowedByTheServersOwnEngine) {
  open(ask());
  ASSERT_EQ(engine(), kPrefill);
  EXPECT_TRUE(refuse(Code::invalid_argument)) << "its limits may be others";
  EXPECT_EQ(engine(), kOwn);
  EXPECT_EQ(submit_.attempt, 0u) << "limits of the queue hold there";
  EXPECT_FALSE(refuse(Code::overloaded)) << "nobody else is asked";
  EXPECT_EQ(effects_.outputs.at(0).status, 429);
}

TEST_F(PrefillChoiceTest, WhatTheServersOwnEngineHasNoRoomForIsNoPrefillInstances) {
  Ask request = ask();
  request.prefix.enabled = false;
  open(std::move(request));
  ASSERT_EQ(engine(), kOwn) << "nothing could be handed over";
  EXPECT_FALSE(refuse(Code::overloaded));
  EXPECT_EQ(effects_.outputs.at(0).status, 429);
}

TEST_F(PrefillChoiceTest, ImagesGoToThePrefillInstanceAndOnToTheServersOwnEngine) {
  Ask request = ask();
  request.source.media.emplace_back().file = "image";
  book_.open(std::move(request));
  ASSERT_TRUE(book_.take_media(5));
  const PatchGrid grid{1, 4, 4};
  ASSERT_TRUE(book_.measured(5, {{}, {{MediaKind::image, grid}}}, 10, effects_));
  Encoded encoded;
  encoded.prompts = {{'h', 'I', 'I', 'I', 'I', 'i'}};
  encoded.media = {{MediaKind::image, grid, 1}};
  EXPECT_TRUE(book_.encoded(5, std::move(encoded), 10, effects_).sequences.empty());
  ASSERT_TRUE(book_.take_prepare(5));
  const MediaReady ready{{}, {{MediaKind::image, grid, {1, 2}, {4096, 7}}}};
  submit_ = book_.prepared(5, ready, 10, effects_);
  ASSERT_EQ(engine(), kPrefill);
  const auto check_item = [&](const Submit& submit) {
    ASSERT_EQ(submit.sequences.size(), 1u);
    ASSERT_EQ(submit.sequences[0].media.size(), 1u);
    const SequenceItem& item = submit.sequences[0].media[0];
    EXPECT_EQ(item.item.first, 1);
    EXPECT_EQ(item.item.grid, grid);
    EXPECT_EQ(item.contents, (BlockHash{1, 2}));
    EXPECT_EQ(item.place, (wire::PatchPlace{4096, 7})) << "they stay where they are";
  };
  check_item(submit_);
  EXPECT_EQ(submit_.sequences[0].max_output_tokens, 1);
  Script script;
  script.lines = {{{'x', 'y'}, Finish::length}};
  ScriptedEngine prefill(script);
  prefill.submit(submit_);
  StepTokens step = prefill.step();
  step.engine = kPrefill;
  book_.take(step, 20, Slice(), effects_);
  ASSERT_EQ(effects_.handed_over.size(), 1u);
  EXPECT_TRUE(effects_.media.empty()) << "nothing is released";
  submit_ = book_.submit(5, 20, effects_);
  ASSERT_EQ(engine(), kOwn);
  check_item(submit_);
  EXPECT_EQ(submit_.sequences[0].output, std::vector<TokenId>{'x'});
}

TEST_F(PrefillChoiceTest, AGrammarThatComesTooLateIsReleased) {
  Ask request = ask();
  request.generation.form = {http::AnswerForm::Kind::regex, "a+", "guided_regex"};
  open(std::move(request));
  ASSERT_TRUE(book_.take_compile(5));
  ASSERT_EQ(engine(), kPrefill);
  book_.engine_down({kPrefill, 2}, 10, effects_);
  EXPECT_EQ(book_.stop_waiting({kPrefill, 2}), std::vector<std::uint64_t>{5});
  ASSERT_TRUE(book_.take_compile(5));
  ASSERT_EQ(engine(), kOwn);
  EXPECT_TRUE(book_.compiled(5, {kPrefill, 1}, {{}, 70}, 10, effects_).sequences.empty());
  EXPECT_EQ(effects_.grammars, (std::vector<ReleasedGrammar>{{kPrefill, 70}}));
  EXPECT_EQ(book_.compiled(5, {kOwn, 1}, {{}, 71}, 10, effects_).sequences.at(0).grammar, 71u);
}

}  // namespace
}  // namespace troupe
