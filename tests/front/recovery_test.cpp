// A session whose engine dies, at every step of every kind of answer, sends what one whose engine lives does.
#include <gtest/gtest.h>

#include <string>

#include "actors/session/session_book.h"
#include "support/parsing_context.h"
#include "support/scripted_engine.h"

namespace troupe {
namespace {

using testing::Script;
using testing::ScriptedEngine;

/// A request and what the model says to it.
struct Case {
  const char* name;
  Ask ask;
  std::vector<std::string> prompts;
  std::vector<std::string> lines;  ///< of each sequence; without an end token it ends with its length
};

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
    book_.open(case_.ask);
    book_.take_encode(5);
    Encoded encoded;
    for (const std::string& prompt : case_.prompts) {
      encoded.prompts.push_back(testing::parsing_ids(prompt));
      if (case_.ask.answer.echo) encoded.texts.push_back({prompt, static_cast<std::int64_t>(prompt.size())});
    }
    Submit submit = book_.encoded(5, std::move(encoded), 10, effects_);
    bring(std::move(submit));
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
    return {record(), step, book_.dropped()};
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

  std::string record() const {
    std::string out;
    for (const http::Output& output : effects_.outputs) {
      out += std::to_string(static_cast<int>(output.kind)) + " " + std::to_string(output.status) + " " +
             std::to_string(output.failed) + " " + output.body;
      for (const std::string& part : output.more) out += part;
      out += "\n";
    }
    EXPECT_EQ(effects_.finished.size(), 1u);
    EXPECT_EQ(effects_.begun.size(), 1u);
    for (const FinishedRequest& done : effects_.finished) {
      const RequestStats& stats = done.stats;
      out += std::to_string(stats.ok) + " " + std::to_string(stats.prompt_tokens) + " " +
             std::to_string(stats.cached_tokens) + " " + std::to_string(stats.output_tokens) + " " +
             std::to_string(stats.ttft_s);
      for (const std::int32_t ending : stats.endings) out += " " + std::to_string(ending);
      for (const ChoiceText& answer : done.answers)
        out += "\n" + answer.text + "|" + answer.reasoning + "|" + answer.calls;
    }
    return out;
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

const std::string kEos = "</s>";
const std::string kCalls =
    "w\n</think>\nhi 你\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"你\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n" +
    kEos;

Ask basic(Api api, bool stream) {
  Ask ask;
  ask.exchange = 5;
  ask.arrived_ns = 1;
  ask.timeout_ns = 1'000'000'000;
  ask.api = api;
  ask.answer.id = "id-1";
  ask.answer.model = "m";
  ask.answer.stream = ask.answer.include_usage = stream;
  return ask;
}

std::vector<Case> cases(bool stream) {
  std::vector<Case> all;
  const auto add = [&](const char* name, Api api, std::vector<std::string> prompts,
                       std::vector<std::string> lines) -> Ask& {
    return all.emplace_back(Case{name, basic(api, stream), std::move(prompts), std::move(lines)}).ask;
  };
  all.reserve(32);
  add("chat", Api::chat, {"q<think>\n"}, {"why</think>\nhi 你" + kEos});
  {
    Ask& ask = add("stop string", Api::chat, {"q"}, {"one END two"});
    ask.generation.stop = {"END"};
    ask.generation.include_stop = true;
  }
  {
    Ask& ask = add("stop strings of some choices", Api::completions, {"q"},
                   {"aENDb", "longer answer" + kEos, "xyENDz"});
    ask.generation.choices = ask.generation.best_of = 3;
    ask.generation.stop = {"END"};
    ask.generation.sampling.min_tokens = 2;
  }
  {
    Ask& ask = add("choices with logprobs", Api::chat, {"q"}, {"a" + kEos, "bb", "ccc" + kEos, "dd你d"});
    ask.generation.choices = ask.generation.best_of = 4;
    ask.generation.sampling.logprobs = 2;
    ask.generation.sampling.seed = 7;
    ask.answer.return_token_ids = true;
    ask.answer.continuous_usage = stream;
  }
  if (!stream) {
    Ask& ask = add("best of", Api::completions, {"p"}, {"first", "second" + kEos, "third", "4"});
    ask.generation.choices = 2;
    ask.generation.best_of = 4;
  }
  {
    Ask& ask = add("echo", Api::completions, {"abcdefgh"}, {"xyz", "uv" + kEos});
    ask.generation.choices = ask.generation.best_of = 2;
    ask.answer.echo = ask.answer.return_token_ids = true;
    ask.generation.sampling.logprobs = ask.generation.sampling.prompt_logprobs = 1;
  }
  if (!stream) {
    Ask& ask = add("scores of a prompt", Api::chat, {"abcdefgh"}, {"xyz"});
    ask.generation.sampling.prompt_logprobs = 2;
  }
  {
    Ask& ask = add("echo alone", Api::completions, {"abcdefgh"}, {"x"});
    ask.answer.echo = true;
    ask.generation.max_tokens = 0;
    ask.generation.sampling.logprobs = ask.generation.sampling.prompt_logprobs = 0;
  }
  {
    Ask& ask = add("several prompts", Api::completions, {"ab", "cde", "f"},
                   {"1", "22", "333" + kEos, "44444", "5", "666666"});
    ask.generation.choices = ask.generation.best_of = 2;
    ask.answer.tokens_per_event = 2;
  }
  {
    Ask& ask = add("form", Api::chat, {"q<think>\n"}, {"w</think>\n{\"a\": 1}" + kEos, "</think>{}" + kEos});
    ask.generation.choices = ask.generation.best_of = 2;
    ask.generation.form = {http::AnswerForm::Kind::json_schema,
                           *http::parse_json(R"({"type":"object"})", {8, 100}), "response_format"};
  }
  {
    Ask& ask = add("thinking budget", Api::chat, {"q<think>\n"}, {"thoughts</think>\nanswer" + kEos});
    ask.generation.limits.thinking = 4;
  }
  for (const Api api : {Api::chat, Api::responses, Api::messages}) {
    Ask& ask = add(api == Api::chat        ? "tools"
                   : api == Api::responses ? "responses"
                                           : "messages",
                   api, {"q<think>\n"}, {kCalls});
    ask.generation.limits.tools = true;
  }
  {
    Ask& ask = add("one call", Api::chat, {"q<think>\n"}, {kCalls});
    ask.generation.limits.tools = true;
    ask.generation.limits.parallel_calls = false;
  }
  return all;
}

class RecoveryTest : public ::testing::TestWithParam<bool> {};

TEST_P(RecoveryTest, AnEngineMayDieAtAnyStepOfAnyAnswer) {
  for (const Case& one : cases(GetParam())) {
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
