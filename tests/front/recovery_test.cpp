// A session whose engine dies, at every step of every kind of answer, sends what one whose engine lives does.
#include <gtest/gtest.h>

#include <string>

#include "actors/session/session_book.h"
#include "support/answer_cases.h"
#include "support/parsing_context.h"
#include "support/scripted_engine.h"

namespace troupe {
namespace {

using Case = testing::AnswerCase;
using testing::Script;
using testing::ScriptedEngine;

/// How an engine dies at a step.
enum class Death {
  between,      ///< two steps
  with_result,  ///< the step has run, its result is lost
  delivered,    ///< the result arrives again, once the next engine runs
  late,         ///< the result arrives when the death is known
  doubled,      ///< the result arrives twice, and then nobody dies
};
constexpr Death kDeaths[] = {Death::between, Death::with_result, Death::delivered, Death::late,
                             Death::doubled};

struct Outcome {
  std::string sent;  ///< all outputs, and what is counted of them
  int steps = 0;
  std::uint64_t dropped = 0;
};

class Play {
 public:
  explicit Play(const Case& of) : case_(of) {
    for (const std::string& line : of.lines) {
      script_.lines.push_back({testing::parsing_ids(line), Finish::length});
      if (script_.lines.back().ids.back() == testing::ByteTokenizer::kEos)
        script_.lines.back().end = Finish::stop;
    }
  }

  /// `dies` says of a step whether the engine dies there.
  template <class Dies>
  Outcome run(Dies dies, Death death) {
    engine_up();
    bring(testing::open_case(book_, case_, effects_));
    int step = 0;
    for (; book_.size() > 0 && step < 200; ++step) {
      if (dies(step)) {
        die(death);
        if (book_.size() == 0) break;
      }
      deliver(engine_->step());
    }
    EXPECT_TRUE(engine_->idle());
    EXPECT_TRUE(grammars_.empty()) << "of an engine that lives";
    return {testing::record(effects_), step, book_.dropped()};
  }

 private:
  void engine_up() {
    engine_ = std::make_unique<ScriptedEngine>(script_);
    grammars_.clear();
    for (const std::uint64_t exchange : book_.engine_up({0, ++epoch_}, 10, effects_)) {
      EXPECT_EQ(exchange, 5u);
      bring(book_.submit(exchange, 10, effects_));
    }
  }

  void bring(Submit submit) {
    if (std::optional<Compile> job = book_.take_compile(5)) {
      EXPECT_TRUE(submit.sequences.empty());
      EXPECT_EQ(job->form.param, case_.ask.generation.form.param);
      EXPECT_EQ(job->form.value, http::to_text(case_.ask.generation.form.value));
      grammars_ = {epoch_ * 100};
      submit = book_.compiled(5, {0, epoch_}, {{}, epoch_ * 100}, 10, effects_);
    }
    for (const SequenceSpec& spec : submit.sequences) {
      EXPECT_EQ(spec.grammar, grammars_.empty() ? 0 : grammars_.front());
    }
    EXPECT_EQ(submit.attempt, attempts_++);
    engine_->submit(submit);
  }

  void die(Death death) {
    StepTokens last;
    if (death != Death::between) last = engine_->step();
    if (death == Death::delivered || death == Death::doubled) deliver(last);
    if (death == Death::doubled) return deliver(last);
    book_.engine_down({0, epoch_}, 10, effects_);
    grammars_.clear();
    if (death == Death::late) deliver(last);
    carry_out();
    if (book_.size() == 0) engine_ = std::make_unique<ScriptedEngine>(script_);
    if (book_.size() == 0) return;
    engine_up();
    if (death == Death::delivered) deliver(last);
  }

  void deliver(const StepTokens& step) {
    book_.take(step, 20, Slice(), effects_);
    carry_out();
  }

  void carry_out() {
    for (const CancelledSequence& one : std::exchange(effects_.cancel, {})) engine_->cancel({one.key});
    for (const auto& [engine, grammar] : std::exchange(effects_.grammars, {})) {
      EXPECT_EQ(std::erase(grammars_, grammar), 1u);
    }
  }

  const Case& case_;
  Script script_;
  std::shared_ptr<const SessionContext> context_ = testing::parsing_context();
  SessionBook book_{context_, KeySource({1, 0})};
  Effects effects_;
  std::unique_ptr<ScriptedEngine> engine_;
  std::uint32_t epoch_ = 0;
  std::uint32_t attempts_ = 0;
  std::vector<std::uint64_t> grammars_;  ///< that the engine holds
};

class RecoveryTest : public ::testing::TestWithParam<bool> {};

TEST_P(RecoveryTest, AnEngineMayDieAtAnyStepOfAnyAnswer) {
  for (const Case& one : testing::answer_cases(GetParam())) {
    const Outcome undisturbed = Play(one).run([](int) { return false; }, Death::between);
    ASSERT_GT(undisturbed.sent.size(), 100u) << one.name;
    EXPECT_EQ(undisturbed.dropped, 0u) << one.name;
    for (const Death death : kDeaths) {
      std::uint64_t dropped = 0;
      for (int at = 0; at < undisturbed.steps; ++at) {
        const Outcome disturbed = Play(one).run([&](int step) { return step == at; }, death);
        ASSERT_EQ(disturbed.sent, undisturbed.sent)
            << one.name << ": death of kind " << static_cast<int>(death) << " at step " << at;
        dropped += disturbed.dropped;
      }
      if (undisturbed.steps > 1 && (death == Death::delivered || death == Death::doubled)) {
        EXPECT_GT(dropped, 0u) << one.name << ": what arrived twice is counted";
      }
      // Two, with a token between them.
      const Outcome twice = Play(one).run([&](int step) { return step == 1 || step == 3; }, death);
      ASSERT_EQ(twice.sent, undisturbed.sent)
          << one.name << ": two deaths of kind " << static_cast<int>(death);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(StreamOrWhole, RecoveryTest, ::testing::Bool());

}  // namespace
}  // namespace troupe
