// The front's actors and the work of a text process, over a link: what clients see of the process's death,
// and of one that breaks the rules.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "actors/link/message_codec.h"
#include "actors/supervisor/child_process.h"
#include "actors/topology.h"
#include "config/child_environment.h"
#include "support/byte_tokenizer.h"
#include "support/patience.h"

namespace troupe {
namespace {

class TextProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = ipc::create_link();
    auto text = ipc::create_link();
    ASSERT_TRUE(engine.ok() && text.ok());
    fds_ = *std::move(text);
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    told_[0].reset(pipe[0]);
    told_[1].reset(pipe[1]);
    auto monitor = ipc::LinkMonitor::attach(fds_.step.get(), fds_.cache.get());
    auto engine_end = ipc::UpperEnd::attach(engine->step.get(), engine->cache.get());
    auto text_end = ipc::UpperEnd::attach(fds_.step.get(), fds_.cache.get());
    ASSERT_TRUE(monitor.ok() && engine_end.ok() && text_end.ok());
    monitor_.emplace(*std::move(monitor));
    FrontSetup setup;
    setup.engines = {std::make_shared<Link>(*std::move(engine_end))};
    setup.texts = {std::make_shared<Link>(*std::move(text_end))};
    setup.sessions = std::make_shared<SessionContext>(
        SessionContext{std::make_shared<testing::ByteTokenizer>(), {}, 64, 258});
    setup.health = health_;
    setup.build = "B";
    setup.distrusted = [this](std::uint32_t, const std::string& why) {
      const std::lock_guard lock(mutex_);
      distrusted_.push_back(why);
    };
    setup.deliver = [this](std::uint32_t, std::vector<http::Output>&& outputs) {
      const std::lock_guard lock(mutex_);
      for (http::Output& output : outputs) answers_.emplace(output.exchange_id, std::move(output));
    };
    setup.log = [](const std::string&) { return Log(); };
    front_ = std::make_unique<FrontSystem>(std::move(setup));
    caf::anon_send(front_->gateway(), EngineServes{0, true});
  }

  /// One that stays at work on the text "hang"; a patient one goes on.
  void start(bool patient = false) {
    std::vector<std::string> words{"--step-fd=" + std::to_string(fds_.step.get()),
                                   "--cache-fd=" + std::to_string(fds_.cache.get()),
                                   "--told-fd=" + std::to_string(told_[1].get())};
    if (patient) words.push_back("--patient");
    auto child = supervisor::ChildProcess::start(
        TROUPE_TEXT_CHILD, words, {fds_.step.get(), fds_.cache.get(), told_[1].get()},
        config::child_environment(config::ChildKind::text, config::process_environment()));
    ASSERT_TRUE(child.ok()) << child.status().message;
    child_ = *std::move(child);
  }
  /// As the supervisor does.
  void kill() {
    child_.kill(SIGKILL);
    child_.reap();
    monitor_->reaped(ipc::Side::lower);
  }
  /// A process is at work on "hang".
  bool at_work() {
    pollfd told{told_[0].get(), POLLIN, 0};
    char byte = 0;
    return ::poll(&told, 1, static_cast<int>(std::chrono::milliseconds(test::kPatience).count())) == 1 &&
           ::read(told_[0].get(), &byte, 1) == 1;
  }

  template <class Done>
  static bool wait(Done done) {
    const TimePoint end = Clock::now() + test::kPatience;
    while (!done() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return done();
  }
  bool ready() {
    return wait([this] { return health_->get() == http::Health::State::ready; });
  }
  std::uint64_t ask(const std::string& text) {
    Ask ask;
    ask.exchange = ++exchange_;
    ask.arrived_ns = now_ns();
    ask.timeout_ns = std::chrono::nanoseconds(std::chrono::hours(1)).count();
    ask.request_id = "r" + std::to_string(exchange_);
    ask.api = Api::tokenize;
    ask.source.texts = {text};
    caf::anon_send(front_->gateway(), std::move(ask));
    return exchange_;
  }
  /// Its status; 0 if none has come.
  int answer(std::uint64_t exchange) {
    const auto find = [&] {
      const std::lock_guard lock(mutex_);
      const auto it = answers_.find(exchange);
      return it == answers_.end() ? 0 : static_cast<int>(it->second.status);
    };
    (void)wait([&] { return find() != 0; });
    return find();
  }
  /// A process begins and ends at work on `request`, while `behind` waits.
  void end_at_work(std::uint64_t& request, std::uint64_t& behind) {
    start();
    ASSERT_TRUE(ready());
    request = ask("hang");
    ASSERT_TRUE(at_work());
    behind = ask("hello");
    kill();
  }
  std::vector<std::string> distrusted() {
    const std::lock_guard lock(mutex_);
    return distrusted_;
  }

  const std::shared_ptr<HealthCell> health_ = std::make_shared<HealthCell>();
  ipc::LinkFds fds_;
  ipc::Fd told_[2];
  std::optional<ipc::LinkMonitor> monitor_;
  std::mutex mutex_;
  std::map<std::uint64_t, http::Output> answers_;  // guarded by mutex_, as the next
  std::vector<std::string> distrusted_;
  std::uint64_t exchange_ = 0;
  std::unique_ptr<FrontSystem> front_;
  supervisor::ChildProcess child_;
};

TEST_F(TextProcess, TheServerIsReadyWhenItHasCome) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(health_->get(), http::Health::State::loading);
  start();
  ASSERT_TRUE(ready());
  EXPECT_EQ(answer(ask("hello")), 200);
  kill();
  const auto waits = ask("later");
  EXPECT_EQ(health_->get(), http::Health::State::ready) << "requests wait for the next one";
  start();
  EXPECT_EQ(answer(waits), 200);
}

TEST_F(TextProcess, ARequestAtWhichItEndsIsAskedAgainOnce) {
  std::uint64_t request = 0, behind = 0;
  ASSERT_NO_FATAL_FAILURE(end_at_work(request, behind));
  start(/*patient=*/true);
  EXPECT_EQ(answer(request), 200);
  EXPECT_EQ(answer(behind), 200);
}

TEST_F(TextProcess, TheSecondEndFailsThatRequestAlone) {
  std::uint64_t request = 0, behind = 0;
  ASSERT_NO_FATAL_FAILURE(end_at_work(request, behind));
  start();
  ASSERT_TRUE(at_work());
  kill();
  EXPECT_EQ(answer(request), 500);
  start();
  EXPECT_EQ(answer(behind), 200);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_NE(answers_.at(request).body.find("poison_request"), std::string::npos)
        << answers_.at(request).body;
  }
  EXPECT_TRUE(front_->alive()) << front_->why();
}

TEST_F(TextProcess, OneThatBreaksTheRulesIsReportedAndItsRequestAskedAgain) {
  const auto lower = [this] {
    return std::make_unique<Link>(*ipc::LowerEnd::attach(fds_.step.get(), fds_.cache.get()));
  };
  const auto send = [](Link& link, MessageType type, std::uint64_t tag, const auto& message) {
    Bytes bytes;
    encode(message, bytes);
    link.send(type, tag, std::as_bytes(std::span(bytes)));
  };
  const std::string garbage = "garbage";
  struct Row {
    std::function<void(Link&)> act;
    std::string why;
  };
  const std::vector<Row> rows = {
      {[&](Link& link) { link.send(MessageType::encoded, 1, std::as_bytes(std::span(garbage))); },
       "an answer of it cannot be read"},
      {[&](Link& link) { send(link, MessageType::step_tokens, 0, StepTokens()); }, "a message of type "},
      {[&](Link& link) {
         send(link, MessageType::greeting, 0, Greeting{wire::kMessagesVersion + 1, "A"});
       },
       "the text process, of build A, speaks version "},
  };
  std::uint64_t request = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto link = lower();
    send(*link, MessageType::greeting, 0, Greeting{wire::kMessagesVersion, "B"});
    ASSERT_TRUE(ready());
    std::atomic<int> asked{0};
    std::jthread receiver;
    if (i + 1 == rows.size()) {
      // It answers one request: now the front has heard of it, and the next is asked of it, not of the one
      // before.
      receiver = std::jthread([&](const std::stop_token& stop) {
        Pulse pulse;
        const auto arrived = [&](const Arrival& arrival) {
          if (++asked == 1) send(*link, MessageType::encoded, arrival.tag, Encoded{.answer = "{}"});
        };
        link->receive(stop, pulse, {arrived, [](std::uint32_t) {}, [](const std::string&) {}});
      });
      ASSERT_EQ(answer(ask("first")), 200);
      request = ask("hello");
      ASSERT_TRUE(wait([&] { return asked == 2; }));
    }
    rows[i].act(*link);
    ASSERT_TRUE(wait([&] { return distrusted().size() == i + 1; })) << i;
    EXPECT_EQ(distrusted()[i].find(rows[i].why), 0u) << distrusted()[i];
    receiver = {};
    link.reset();
    monitor_->reaped(ipc::Side::lower);
  }
  start();
  EXPECT_EQ(answer(request), 200);
  EXPECT_TRUE(front_->alive()) << front_->why();
}

}  // namespace
}  // namespace troupe
