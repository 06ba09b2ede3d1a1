// What becomes of a form at which its process dies, hangs or stands still, while it is checked and while it
// is compiled, and of the others.
#include "actors/grammar/form_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "forms/support/form_service_rig.h"

namespace troupe {
namespace {

using grammar::Form;

class FormProcessTest : public testing::FormServiceRig {
 protected:
  static FormProcessSetup process_setup(FormTimes times = {}) {
    FormProcessSetup out = setup().process;
    out.times = times;
    return out;
  }

  /// What a process says to a form, from its check on.
  static Status outcome_of(FormProcess& process, const std::string& text, bool& lasting) {
    const auto source = process.check(regex(text), lasting);
    if (!source.ok()) return source.status();
    return process.compile(*source, lasting).status;
  }
  static Status outcome_of(FormProcess& process, const std::string& text) {
    bool lasting = false;
    return outcome_of(process, text, lasting);
  }
};

// Both stages of a form.
constexpr const char* kStages[] = {"check ", ""};

TEST_F(FormProcessTest, AFormAtWhichAProcessEndsIsGivenToTheNextOne) {
  FormProcess process(process_setup({.standstill = std::chrono::milliseconds(300)}));
  for (const char* stage : kStages) {
    for (const char* end : {"crash once", "kill once", "sleep once"}) {
      const Status status = outcome_of(process, std::string(stage) + end);
      EXPECT_TRUE(status.ok()) << stage << end << ": " << status.message;
    }
  }
}

TEST_F(FormProcessTest, AtTheSecondEndTheFormIsRefused) {
  FormProcess process(process_setup({.standstill = std::chrono::milliseconds(300)}));
  for (const char* stage : kStages) {
    const bool checks = *stage != '\0';
    // The message of a compilation goes on from the form's field, which the process does not know.
    const std::string field = checks ? "guided_regex " : "", work = checks ? "check" : "compile";
    for (const char* end : {"crash", "garbage"}) {
      bool lasting = false;
      const Status status = outcome_of(process, std::string(stage) + end, lasting);
      EXPECT_EQ(status.code, Code::invalid_argument);
      EXPECT_EQ(status.reason, "grammar_too_complex");
      EXPECT_EQ(status.message,
                field + "is too complex: two processes that were to " + work + " it have broken down");
      EXPECT_EQ(status.param, checks ? "guided_regex" : "");
      EXPECT_TRUE(lasting) << "it is the form that ends them";
    }
    for (const char* end : {"kill", "sleep"}) {
      bool lasting = true;
      const Status status = outcome_of(process, std::string(stage) + end, lasting);
      EXPECT_EQ(status.code, Code::unavailable);
      EXPECT_EQ(status.message, field + "cannot be " + work + (checks ? "ed" : "d") +
                                    ": two processes have ended or stood still at it; try again later");
      EXPECT_FALSE(lasting) << "something else may have ended them";
    }
    EXPECT_TRUE(outcome_of(process, "next").ok());
  }
}

TEST_F(FormProcessTest, ADeathBetweenTwoFormsIsNoFormsFault) {
  FormProcess process(process_setup());
  EXPECT_TRUE(outcome_of(process, "warm").ok());
  ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(process.pid()), &ended, WEXITED | WNOWAIT), 0);
  const Status status = outcome_of(process, "crash once");
  EXPECT_TRUE(status.ok()) << "it has both its attempts: " << status.message;
}

TEST_F(FormProcessTest, OneThatEndsAtItsStartIsReplaced) {
  const test::TempDirectory folder;
  FormProcessSetup with = process_setup();
  with.executable = (folder.path() / "crashing_form_child").string();
  std::filesystem::copy_file(TROUPE_FAKE_FORM_CHILD, with.executable);
  FormProcess process(std::move(with));
  const Status status = outcome_of(process, "a");
  EXPECT_TRUE(status.ok()) << status.message;
}

// It does not even read the vocabulary, which is larger than what a socket holds.
TEST_F(FormProcessTest, OneThatStopsAtItsStartIsGivenUp) {
  const test::TempDirectory folder;
  FormProcessSetup with = process_setup({.start = std::chrono::milliseconds(300)});
  with.executable = (folder.path() / "stopped_form_child").string();
  std::filesystem::copy_file(TROUPE_FAKE_FORM_CHILD, with.executable);
  std::vector<std::string> more;
  for (int i = 0; i < 100'000; ++i) more.push_back(std::to_string(i) + ">");
  with.vocabulary = std::make_shared<const FormVocabulary>(
      VocabularyImage::copy_of(testing::ByteTokenizer(more)), 258, std::vector<TokenId>());
  FormProcess process(std::move(with));
  const Status status = outcome_of(process, "a");
  EXPECT_EQ(status.code, Code::unavailable);
  EXPECT_EQ(status.message,
            "guided_regex cannot be compiled: the process that does it did not start; try again later");
}

TEST_F(FormProcessTest, WithoutOneRequestsFailAndMayBeTriedAgain) {
  FormServiceSetup broken = setup();
  broken.process.executable = "/bin/false";
  const auto service = serve(std::move(broken));
  service->submit(1, regex("a"));
  const Status status = wait(*service, 1).status;
  EXPECT_EQ(status.code, Code::unavailable);
  EXPECT_EQ(status.param, "guided_regex");
}

TEST_F(FormProcessTest, ATimeOutIsKeptIfTheProcessorWasUsed) {
  for (const char* stage : kStages) {
    const auto lasts = [&](const char* text, FormTimes times) {
      FormProcess process(process_setup(times));
      bool lasting = false;
      const Status status = outcome_of(process, std::string(stage) + text, lasting);
      EXPECT_EQ(status.reason, "grammar_too_complex") << status.message;
      return lasting;
    };
    EXPECT_TRUE(lasts("spin", {std::chrono::milliseconds(200), 500}));
    EXPECT_FALSE(lasts("hang", {std::chrono::milliseconds(200), 1})) << "a busy machine looks like this";
  }
}

TEST_F(FormProcessTest, OneThatUsesTheProcessorDoesNotStandStill) {
  FormProcess process(process_setup({.time = std::chrono::milliseconds(1500),
                                     .patience = 100,
                                     .standstill = std::chrono::milliseconds(200)}));
  EXPECT_EQ(outcome_of(process, "spin").reason, "grammar_too_complex");
}

// The next form is larger than what a socket holds.
TEST_F(FormProcessTest, OneThatStopsWhileItIsIdleIsReplaced) {
  FormProcessSetup with = process_setup({.take = std::chrono::milliseconds(300)});
  with.form_limits.text_bytes = 4 << 20;
  FormProcess process(std::move(with));
  EXPECT_TRUE(outcome_of(process, "stop").ok());
  const pid_t stopped = process.pid();
  bool lasting = false;
  const auto source =
      process.check({Form::Kind::grammar,
                     json::to_text("root ::= \"a\" # " + std::string(1 << 20, 'x') + "\n"), "guided_grammar"},
                    lasting);
  EXPECT_TRUE(source.ok()) << source.status().message;
  EXPECT_NE(process.pid(), stopped);
}

TEST_F(FormProcessTest, OthersAreCompiledMeanwhile) {
  std::uint64_t ticket = 0;
  for (const char* stage : kStages) {
    const auto service = serve(setup());
    service->submit(++ticket, regex("warm"));
    EXPECT_TRUE(wait(*service, ticket).status.ok());
    service->submit(++ticket, regex(std::string(stage) + "hang"));
    service->submit(++ticket, regex(std::string(stage) + "next"));
    service->submit(++ticket, regex("warm"));  // known: does not wait behind the others
    EXPECT_TRUE(wait(*service, ticket).status.ok());
    EXPECT_TRUE(wait(*service, ticket - 1).status.ok());
    EXPECT_FALSE(has_come(ticket - 2)) << "the next form waits for no other";
    const CompileOutcome hung = wait(*service, ticket - 2);
    EXPECT_EQ(hung.status.code, Code::invalid_argument);
    EXPECT_EQ(hung.status.reason, "grammar_too_complex");
    EXPECT_EQ(hung.status.param, "guided_regex");
    for (const char* more : {"hang1", "hang2", "hang3"})
      service->submit(++ticket, regex(std::string(stage) + more));
    service->submit(++ticket, regex(std::string(stage) + "last"));
    EXPECT_TRUE(wait(*service, ticket).status.ok()) << "such forms end too";
  }
}

TEST_F(FormProcessTest, AFormThatEndsProcessesFailsAlone) {
  FormServiceSetup with = setup();
  with.process.times.standstill = std::chrono::milliseconds(300);
  const auto service = serve(std::move(with));
  std::uint64_t ticket = 0;
  for (const char* stage : kStages) {
    for (const char* end : {"crash", "kill", "sleep"}) {
      service->submit(++ticket, regex(std::string(stage) + end));
      service->submit(++ticket, regex(std::string("beside ") + stage + end));
      EXPECT_TRUE(wait(*service, ticket).status.ok());
      const Status status = wait(*service, ticket - 1).status;
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.param, "guided_regex");
      EXPECT_TRUE(status.message.starts_with("guided_regex ")) << status.message;
      service->submit(++ticket, regex(std::string(stage) + end + " once"));
      EXPECT_TRUE(wait(*service, ticket).status.ok()) << "a form at which one ends once";
    }
  }
}

}  // namespace
}  // namespace troupe
