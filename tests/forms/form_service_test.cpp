#include "actors/grammar/form_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "support/byte_tokenizer.h"
#include "support/temp_directory.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

using grammar::Form;
using testing::ByteTokenizer;

class FormServiceTest : public ::testing::Test {
 protected:
  FormServiceSetup setup() {
    FormServiceSetup out;
    out.texts = std::make_shared<ByteTokenizer>();
    out.vocabulary = [texts = out.texts] {
      return grammar::vocabulary_of(*texts, 258, {ByteTokenizer::kEos});
    };
    out.executable = TROUPE_FAKE_COMPILE_CHILD;
    out.limits = {std::chrono::milliseconds(1500), 1};
    return out;
  }

  std::unique_ptr<FormService> serve(FormServiceSetup setup) {
    return std::make_unique<FormService>(std::move(setup), [this](std::uint64_t ticket) {
      const std::lock_guard lock(mutex_);
      ready_.push_back(ticket);
      changed_.notify_all();
    });
  }

  /// The outcome of a ticket; fails the test when it does not come.
  CompileOutcome wait(FormService& service, std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return std::find(ready_.begin(), ready_.end(), ticket) != ready_.end();
    });
    EXPECT_TRUE(came);
    return came ? service.take(ticket) : CompileOutcome{};
  }

  bool has_come(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    return std::find(ready_.begin(), ready_.end(), ticket) != ready_.end();
  }

  /// All tickets that have come, once they are `count` or more; fails the test when they do not come.
  std::vector<std::uint64_t> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return ready_.size() >= count; }));
    return ready_;
  }

  static Form regex(const std::string& text) { return {Form::Kind::regex, text, "guided_regex"}; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> ready_;
};

TEST_F(FormServiceTest, CompilesOnceForAll) {
  const auto service = serve(setup());
  for (std::uint64_t ticket = 1; ticket <= 8; ++ticket) service->submit(ticket, regex("[a-z]+x"));
  const CompileOutcome first = wait(*service, 1);
  ASSERT_TRUE(first.status.ok()) << first.status.message;
  for (std::uint64_t ticket = 2; ticket <= 8; ++ticket) EXPECT_EQ(wait(*service, ticket).form, first.form);
  service->submit(9, regex("[a-z]+x"));
  EXPECT_EQ(wait(*service, 9).form, first.form);
}

TEST_F(FormServiceTest, RefusalsNameTheClientsOwnField) {
  const auto service = serve(setup());
  service->submit(1, regex("foo**"));
  const CompileOutcome regex_refusal = wait(*service, 1);
  EXPECT_EQ(regex_refusal.status.code, Code::invalid_argument);
  EXPECT_EQ(regex_refusal.status.param, "guided_regex");
  EXPECT_EQ(regex_refusal.status.reason, "invalid_regex");
  EXPECT_TRUE(regex_refusal.status.message.starts_with("guided_regex cannot be compiled"))
      << regex_refusal.status.message;
  const auto schema = [](const char* param) {
    return Form{Form::Kind::json_schema,
                grammar::Json::parse(R"({"properties":{"a":{"type":"string","pattern":"\\bx"}}})"), param};
  };
  service->submit(2, schema("guided_json"));
  EXPECT_EQ(wait(*service, 2).status.param, "guided_json.properties.a.pattern");
  service->submit(3, schema("structured_outputs.json"));  // from the cache
  EXPECT_EQ(wait(*service, 3).status.param, "structured_outputs.json.properties.a.pattern");
  service->submit(4, {Form::Kind::json_schema, grammar::Json::parse(R"({"not":{}})"), "guided_json"});
  EXPECT_EQ(wait(*service, 4).status.param, "guided_json.not");
}

TEST_F(FormServiceTest, RefusalsOfAPartNameItsOwnPlace) {
  const auto service = serve(setup());
  const auto tag = [](const char* schema, const char* place) {
    Form form{Form::Kind::structural_tag,
              {{"format", {{"type", "json_schema"}, {"json_schema", grammar::Json::parse(schema)}}}},
              "tools"};
    form.places = {{".format.json_schema", place}};
    return form;
  };
  service->submit(1, tag(R"({"not":{}})", "tools.0.input_schema"));  // found before it is compiled
  const CompileOutcome refused = wait(*service, 1);
  EXPECT_EQ(refused.status.param, "tools.0.input_schema.not");
  EXPECT_TRUE(refused.status.message.starts_with("tools.0.input_schema.not ")) << refused.status.message;
  const char* const pattern = R"({"properties":{"a":{"type":"string","pattern":"\\bx"}}})";
  std::uint64_t ticket = 2;
  for (const char* place :
       {"tools.7.parameters", "tools.0.function.parameters"}) {  // the second from the cache
    service->submit(ticket, tag(pattern, place));
    const CompileOutcome outcome = wait(*service, ticket++);
    EXPECT_EQ(outcome.status.param, std::string(place) + ".properties.a.pattern");
    EXPECT_TRUE(outcome.status.message.starts_with(outcome.status.param + " ")) << outcome.status.message;
  }
}

TEST_F(FormServiceTest, AHangingFormIsRefusedAndTheNextIsCompiled) {
  const auto service = serve(setup());
  service->submit(1, regex("warm"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  service->submit(2, regex("hang"));
  service->submit(3, regex("next"));
  service->submit(4, regex("warm"));  // known: does not wait behind the others
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(wait(*service, 4).status.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(1000));
  EXPECT_TRUE(wait(*service, 3).status.ok());
  EXPECT_FALSE(has_come(2)) << "the next form waits for no other";
  const CompileOutcome hung = wait(*service, 2);
  EXPECT_EQ(hung.status.code, Code::invalid_argument);
  EXPECT_EQ(hung.status.reason, "grammar_too_complex");
  service->submit(5, regex("hang1"));
  service->submit(6, regex("hang2"));
  service->submit(7, regex("last"));
  EXPECT_TRUE(wait(*service, 7).status.ok()) << "two such forms end too";
}

// Its tables are most of what GRAMMAR takes: a server without forms has none.
TEST_F(FormServiceTest, TheVocabularyIsMadeWhenTheFirstFormIsCompiled) {
  std::atomic<int> made = 0;
  FormServiceSetup counted = setup();
  counted.vocabulary = [&made, make = counted.vocabulary] {
    ++made;
    return make();
  };
  const auto service = serve(std::move(counted));
  service->submit(1, {Form::Kind::regex, 7, "guided_regex"});
  EXPECT_FALSE(wait(*service, 1).status.ok());
  EXPECT_EQ(made, 0) << "it is refused before it is compiled";
  service->submit(2, regex("a"));
  EXPECT_TRUE(wait(*service, 2).status.ok());
  EXPECT_EQ(made, 2) << "for the compiling process, and for the masks";
  service->submit(3, regex("b"));
  EXPECT_TRUE(wait(*service, 3).status.ok());
  EXPECT_EQ(made, 2);
}

TEST_F(FormServiceTest, ATimeOutIsKeptIfTheProcessorWasUsed) {
  const FormServiceSetup all = setup();
  const auto vocabulary = std::make_shared<const FormVocabulary>(all.vocabulary);
  const auto lasts = [&](const char* text, CompileLimits limits) {
    CompileProcess process(all.executable, vocabulary, limits);
    bool lasting = false;
    const CompileOutcome outcome = process.compile({grammar::Source::Kind::regex, true, text}, lasting);
    EXPECT_EQ(outcome.status.reason, "grammar_too_complex") << outcome.status.message;
    return lasting;
  };
  EXPECT_TRUE(lasts("spin", {std::chrono::milliseconds(200), 500}));
  EXPECT_FALSE(lasts("hang", {std::chrono::milliseconds(200), 1})) << "a busy machine looks like this";
}

TEST_F(FormServiceTest, AFormThatUsedUpItsTimeIsRefusedAtOnceThen) {
  FormServiceSetup patient = setup();
  patient.limits = {std::chrono::milliseconds(200), 500};
  const auto service = serve(std::move(patient));
  service->submit(1, regex("spin"));
  EXPECT_EQ(wait(*service, 1).status.reason, "grammar_too_complex");
  service->submit(2, regex("hang1"));  // both compilers are taken
  service->submit(3, regex("hang2"));
  service->submit(4, regex("spin"));
  EXPECT_EQ(wait(*service, 4).status.message,
            "guided_regex is too complex: compiling it takes longer than 200 ms");
}

TEST_F(FormServiceTest, FormsBeyondThoseThatMayWaitAreRefused) {
  FormServiceSetup small = setup();
  small.limits = {std::chrono::minutes(5), 1};
  small.limits.standstill = std::chrono::minutes(5);
  small.most_waiting = 2;
  const auto service = serve(std::move(small));
  service->submit(1, regex("known"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  for (std::uint64_t ticket = 2; ticket <= 8; ++ticket)
    service->submit(ticket, regex("hang" + std::to_string(ticket)));
  // Two at most are compiled, two wait: three or more are refused, as the compilers take theirs early or
  // late.
  for (const std::uint64_t ticket : wait_for(1 + 3)) {
    if (ticket == 1) continue;
    const CompileOutcome refused = service->take(ticket);
    EXPECT_EQ(refused.status.code, Code::overloaded);
    EXPECT_EQ(refused.status.reason, "grammar_queue_full");
    EXPECT_EQ(refused.status.param, "guided_regex");
  }
  service->submit(9, regex("known"));
  EXPECT_TRUE(wait(*service, 9).status.ok());
  for (std::uint64_t ticket = 2; ticket <= 3; ++ticket) EXPECT_FALSE(has_come(ticket));
}

/// Holds a check up until it is let go.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_one() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [this] { return waiting_ > 0; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

TEST_F(FormServiceTest, KnownFormsAndRefusalsDoNotWaitBehindACheck) {
  Gate gate;
  FormServiceSetup held = setup();
  held.before_check = [&](const Form& form) {
    if (form.value == "slow") gate.wait();
  };
  const auto pulses = held.pulses;
  const auto service = serve(std::move(held));
  service->submit(1, regex("known"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  const Form refused{Form::Kind::json_schema, grammar::Json::parse(R"({"not":{}})"), "guided_json"};
  service->submit(2, refused);
  const Status before = wait(*service, 2).status;
  for (int i = 0; pulses->checks.beats() != 0 && i < 10'000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(pulses->checks.beats(), 0u) << "there is nothing to check";
  service->submit(3, regex("slow"));
  gate.wait_for_one();
  const std::uint64_t beats = pulses->checks.beats();
  EXPECT_GT(beats, 0u);
  service->submit(4, regex("known"));
  EXPECT_TRUE(wait(*service, 4).status.ok());
  service->submit(5, refused);
  EXPECT_EQ(wait(*service, 5).status.message, before.message);
  EXPECT_FALSE(has_come(3));
  EXPECT_EQ(pulses->checks.beats(), beats) << "the check stands still";
  gate.open();
  EXPECT_TRUE(wait(*service, 3).status.ok());
}

TEST_F(FormServiceTest, TheSameFormIsCheckedOnceForAll) {
  Gate gate;
  std::atomic<int> checks{0};
  FormServiceSetup held = setup();
  held.before_check = [&](const Form&) {
    ++checks;
    gate.wait();
  };
  const auto service = serve(std::move(held));
  for (std::uint64_t ticket = 1; ticket <= 5; ++ticket) service->submit(ticket, regex("same"));
  gate.wait_for_one();
  gate.open();
  for (std::uint64_t ticket = 1; ticket <= 5; ++ticket) EXPECT_TRUE(wait(*service, ticket).status.ok());
  EXPECT_EQ(checks, 1);
}

TEST_F(FormServiceTest, AClientHasABoundOfItsOwn) {
  Gate gate;
  FormServiceSetup held = setup();
  held.most_of_client = 3;
  held.before_check = [&](const Form& form) {
    if (form.value == "first") gate.wait();
  };
  const auto service = serve(std::move(held));
  service->submit(1, regex("first"), "greedy");
  gate.wait_for_one();
  for (std::uint64_t ticket = 2; ticket <= 5; ++ticket)
    service->submit(ticket, regex("g" + std::to_string(ticket)), "greedy");
  for (const std::uint64_t ticket : {4, 5}) {
    const CompileOutcome refused = wait(*service, ticket);
    EXPECT_EQ(refused.status.code, Code::overloaded);
    EXPECT_EQ(refused.status.reason, "grammar_queue_full");
    EXPECT_EQ(refused.status.message,
              "guided_regex has to be compiled, and 3 of this client's forms are waiting for that: try again "
              "later");
  }
  service->submit(6, regex("other"), "modest");
  gate.open();
  for (const std::uint64_t ticket : {1, 2, 3, 6}) EXPECT_TRUE(wait(*service, ticket).status.ok()) << ticket;
  service->submit(7, regex("last"), "greedy");
  EXPECT_TRUE(wait(*service, 7).status.ok()) << "those before it count no more";
}

TEST_F(FormServiceTest, AClientWithNothingAtWorkComesFirst) {
  FormServiceSetup held = setup();
  held.limits = {std::chrono::milliseconds(400), 500};
  held.limits.standstill = std::chrono::minutes(5);
  const auto service = serve(std::move(held));
  service->submit(1, regex("warm"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  for (std::uint64_t ticket = 2; ticket <= 7; ++ticket)
    service->submit(ticket, regex("spin" + std::to_string(ticket)), "greedy");
  service->submit(8, regex("modest"), "modest");
  EXPECT_TRUE(wait(*service, 8).status.ok());
  int greedy = 0;
  for (std::uint64_t ticket = 2; ticket <= 7; ++ticket) greedy += has_come(ticket) ? 1 : 0;
  EXPECT_LE(greedy, 3) << "those that were at work when it came, and one more at most";
}

TEST_F(FormServiceTest, WhatNobodyWaitsForIsForgotten) {
  Gate gate;
  std::atomic<int> checks{0};
  FormServiceSetup held = setup();
  held.most_of_client = 2;
  held.before_check = [&](const Form& form) {
    ++checks;
    if (form.value == "first") gate.wait();
  };
  const auto service = serve(std::move(held));
  service->submit(1, regex("first"));
  gate.wait_for_one();
  service->submit(2, regex("second"));
  service->submit(3, regex("second"));
  service->submit(4, regex("third"));
  EXPECT_EQ(wait(*service, 4).status.reason, "grammar_queue_full");
  service->drop(2);
  service->submit(5, regex("third"));
  EXPECT_EQ(wait(*service, 5).status.reason, "grammar_queue_full") << "another waits for it";
  service->drop(3);
  service->submit(6, regex("third"));
  service->drop(1);  // it is being checked
  gate.open();
  EXPECT_TRUE(wait(*service, 6).status.ok());
  EXPECT_EQ(checks, 2) << "the second is not";
  for (const std::uint64_t ticket : {1, 2, 3}) EXPECT_FALSE(has_come(ticket));
}

TEST_F(FormServiceTest, ACrashEndsTheChildAlone) {
  const auto service = serve(setup());
  service->submit(1, regex("crash"));
  EXPECT_EQ(wait(*service, 1).status.reason, "grammar_too_complex");
  service->submit(2, regex("next"));
  EXPECT_TRUE(wait(*service, 2).status.ok());
}

TEST_F(FormServiceTest, WithoutAChildRequestsFailAndMayBeTriedAgain) {
  FormServiceSetup broken = setup();
  broken.executable = "/bin/false";
  const auto service = serve(std::move(broken));
  service->submit(1, regex("a"));
  EXPECT_EQ(wait(*service, 1).status.code, Code::unavailable);
}

TEST_F(FormServiceTest, EndsWhileSomethingCompiles) {
  auto patient = setup();
  patient.limits.time = std::chrono::minutes(5);
  auto service = serve(std::move(patient));
  service->submit(1, regex("hang"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto before = std::chrono::steady_clock::now();
  service.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

TEST(FormCache, KeepsWhatWasUsedLast) {
  FormCache cache(1 << 20, 2);
  const auto source = [](const char* text) {
    return grammar::Source{grammar::Source::Kind::regex, true, text};
  };
  const CompileOutcome refused{invalid("no"), nullptr};
  cache.put(source("a"), refused);
  cache.put(source("b"), refused);
  EXPECT_NE(cache.find(source("a")), nullptr);
  cache.put(source("c"), refused);
  EXPECT_NE(cache.find(source("a")), nullptr);
  EXPECT_EQ(cache.find(source("b")), nullptr);
  EXPECT_NE(cache.find(source("c")), nullptr);
  EXPECT_EQ(cache.entries(), 2u);
  EXPECT_EQ(cache.find({grammar::Source::Kind::regex, false, "a"}), nullptr);
  cache.put(source("a"), refused);  // again: still one entry
  EXPECT_EQ(cache.entries(), 2u);
  cache.put(source(std::string(2 << 20, 'x').c_str()), refused);  // larger than everything
  EXPECT_EQ(cache.entries(), 0u);
  EXPECT_EQ(cache.bytes(), 0u);
}

// It does not even read the vocabulary, which is larger than what a socket holds.
TEST_F(FormServiceTest, AChildThatStopsAtItsStartIsGivenUp) {
  const test::TempDirectory folder;
  const auto stopped = folder.path() / "stopped_compile_child";
  std::filesystem::copy_file(TROUPE_FAKE_COMPILE_CHILD, stopped);
  FormServiceSetup with = setup();
  with.executable = stopped.string();
  with.vocabulary = [texts = with.texts] {
    return grammar::vocabulary_of(*texts, 400'000, {ByteTokenizer::kEos});
  };
  with.limits.start = std::chrono::milliseconds(300);
  const auto service = serve(std::move(with));
  service->submit(1, regex("a"));
  EXPECT_EQ(wait(*service, 1).status.code, Code::unavailable);
}

// Stopped as by SIGSTOP while it compiles: it uses no processor, and does not wait for one.
TEST_F(FormServiceTest, AChildThatIsStoppedWhileItCompilesIsReplaced) {
  FormServiceSetup with = setup();
  with.limits = {std::chrono::seconds(10), 3};
  const auto service = serve(std::move(with));
  service->submit(1, regex("warm"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  const auto before = Clock::now();
  service->submit(2, regex("sleep once"));
  EXPECT_TRUE(wait(*service, 2).status.ok());
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(15)) << "30 s by the clock are its limit";
}

TEST_F(FormServiceTest, AFormThatStopsEveryChildIsGivenUp) {
  FormServiceSetup with = setup();
  with.limits = {std::chrono::minutes(5), 1};
  with.limits.standstill = std::chrono::milliseconds(300);
  const auto service = serve(std::move(with));
  service->submit(1, regex("sleep"));
  EXPECT_EQ(wait(*service, 1).status.code, Code::unavailable);
  service->submit(2, regex("next"));
  EXPECT_TRUE(wait(*service, 2).status.ok());
}

TEST_F(FormServiceTest, AChildThatUsesTheProcessorDoesNotStandStill) {
  FormServiceSetup with = setup();
  with.limits = {std::chrono::milliseconds(1500), 100};
  with.limits.standstill = std::chrono::milliseconds(200);
  const auto service = serve(std::move(with));
  service->submit(1, regex("spin"));
  EXPECT_EQ(wait(*service, 1).status.reason, "grammar_too_complex");
}

// The next form is larger than what a socket holds.
TEST_F(FormServiceTest, AChildThatStopsWhileItIsIdleIsReplaced) {
  FormServiceSetup with = setup();
  with.form_limits.text_bytes = 4 << 20;
  with.limits.take = std::chrono::milliseconds(300);
  const auto service = serve(std::move(with));
  service->submit(1, regex("stop"));
  EXPECT_TRUE(wait(*service, 1).status.ok());
  service->submit(
      2, {Form::Kind::grammar, "root ::= \"a\" # " + std::string(1 << 20, 'x') + "\n", "guided_grammar"});
  const CompileOutcome next = wait(*service, 2);
  EXPECT_TRUE(next.status.ok()) << next.status.message;
}

TEST_F(FormServiceTest, AFaultInItsThreadsEndsOneFormAlone) {
  const auto service = serve(setup());
  std::uint64_t ticket = 0;
  for (const char* place : {"form look-up", "form check", "form compiler"}) {
    const testing::ThrownFault fault(place);
    service->submit(++ticket, regex(place));
    EXPECT_EQ(wait(*service, ticket).status.code, Code::internal) << place;
    EXPECT_EQ(fault.thrown(), 1);
    service->submit(++ticket, regex(place));
    EXPECT_TRUE(wait(*service, ticket).status.ok()) << "the thread goes on, and the fault was not kept";
    service->submit(++ticket, regex(std::string(place) + "x"));
    EXPECT_TRUE(wait(*service, ticket).status.ok());
  }
}

TEST_F(FormServiceTest, SchemasThatOnceEndedTheEngineAreRefused) {
  const auto service = serve(setup());
  std::uint64_t ticket = 0;
  for (const auto& [second, place] :
       {std::pair{R"({"$ref":5})", "$ref"}, {R"({"type":"array","items":{},"minItems":"x"})", "minItems"}}) {
    Json schema = {{"type", "object"}, {"properties", {{"a/b", Json::object()}}}};
    schema["properties"]
          ["a\x01"
           "b"] = Json::parse(second);
    service->submit(++ticket, {Form::Kind::json_schema, schema, "guided_json"});
    const Status refusal = wait(*service, ticket).status;
    EXPECT_EQ(refusal.code, Code::invalid_argument) << refusal.message;
    EXPECT_EQ(refusal.param, std::string("guided_json.properties.a\x01"
                                         "b.") +
                                 place);
  }
}

}  // namespace
}  // namespace troupe
