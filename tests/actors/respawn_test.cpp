// A TOKENIZER that dies among the real actors of the front: the ROOT spawns another, and the SESSION HOSTs use it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "actors/topology.h"
#include "support/byte_tokenizer.h"
#include "support/patience.h"

namespace troupe {
namespace {

/// Crashes its actor on the text "crash": what is thrown is no std::exception, so nothing on the way catches it. Keeps it
/// at work on the text "hang" until it is told to go on.
class FaultyTokenizer final : public testing::ByteTokenizer {
 public:
  std::vector<TokenId> encode(std::span<const TextSpan> spans) const override {
    for (const TextSpan& span : spans) {
      if (span.text == "hang") go_on.wait(false);
      if (span.text == "crash") {
        ++crashes;
        throw 1;
      }
    }
    return ByteTokenizer::encode(spans);
  }
  mutable std::atomic<int> crashes{0};
  mutable std::atomic<bool> go_on{false};
};

Ask tokenize(std::uint64_t exchange, const std::string& text) {
  Ask ask;
  ask.exchange = exchange;
  ask.arrived_ns = now_ns();
  ask.timeout_ns = std::chrono::nanoseconds(std::chrono::hours(1)).count();
  ask.request_id = "r" + std::to_string(exchange);
  ask.api = Api::tokenize;
  ask.source.texts = {text};
  return ask;
}

class Respawn : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fds = ipc::create_link();
    ASSERT_TRUE(fds.ok());
    auto link = ipc::UpperEnd::attach(fds->step.get(), fds->cache.get());
    ASSERT_TRUE(link.ok());
    FrontSetup setup;
    setup.engine = std::make_shared<Link>(*std::move(link));
    setup.encoder = std::make_shared<Encoder>(tokenizer_, nullptr);
    setup.sessions = std::make_shared<SessionContext>(SessionContext{tokenizer_, {}, 64, 258});
    setup.health = std::make_shared<HealthCell>();
    setup.deliver = [this](std::uint32_t, std::vector<http::Output>&& outputs) {
      for (const http::Output& output : outputs) {
        ok_ += output.status == 200;
        ++answered_;
      }
    };
    setup.log = [](const std::string&) { return Log(); };
    front_ = std::make_unique<FrontSystem>(std::move(setup));
    caf::anon_send(front_->gateway(), LinkUp{});
  }

  template <class Done>
  static bool wait(Done done) {
    const TimePoint end = Clock::now() + test::kPatience;
    while (!done() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return done();
  }
  void ask(const std::string& text) { caf::anon_send(front_->gateway(), tokenize(++exchange_, text)); }
  bool ask_until_ok(int wanted) {
    return wait([&] {
      const int before = answered_;
      ask("hello");
      return wait([&] { return answered_ > before; }) && ok_ >= wanted;
    });
  }

  const std::shared_ptr<FaultyTokenizer> tokenizer_ = std::make_shared<FaultyTokenizer>();
  std::atomic<int> answered_{0}, ok_{0};
  std::uint64_t exchange_ = 0;
  std::unique_ptr<FrontSystem> front_;
};

TEST_F(Respawn, ADeadTokenizerIsReplacedAndTheSessionsUseTheNewOne) {
  ASSERT_TRUE(ask_until_ok(1));
  ask("crash");
  ASSERT_TRUE(wait([&] { return tokenizer_->crashes == 1; }));
  EXPECT_TRUE(ask_until_ok(ok_ + 1)) << answered_ << " answers";
  EXPECT_TRUE(front_->alive()) << front_->why();
}

// The watchdog has a time of its own here: a quarter of a second passes in a few milliseconds.
TEST_F(Respawn, ATokenizerThatDoesNotComeBackIsMissedAndOneThatWasReplacedIsNot) {
  Watchdog watchdog;
  front_->watch_by(watchdog);
  TimePoint now = TimePoint{} + std::chrono::hours(1);
  const auto pass = [&](Duration time) {
    for (const TimePoint end = now + time; now < end; watchdog.check(now += Watchdog::kAskPeriod)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  const auto missed = [&] {
    const Silence longest = watchdog.longest();
    return longest.part != nullptr && longest.part->name.starts_with("tokenizer") && longest.time > Duration{};
  };
  ask("crash");
  ASSERT_TRUE(wait([&] { return tokenizer_->crashes == 1; }));
  ASSERT_TRUE(ask_until_ok(1));
  pass(std::chrono::minutes(3));
  EXPECT_FALSE(missed()) << "it was replaced";
  ask("hang");
  pass(std::chrono::minutes(1));
  EXPECT_FALSE(missed()) << "a long text may take so long";
  EXPECT_TRUE(wait([&] {
    pass(Watchdog::kAskPeriod);
    return missed();
  }));
  tokenizer_->go_on = true;
  tokenizer_->go_on.notify_all();
  EXPECT_TRUE(wait([&] {
    pass(Watchdog::kAskPeriod);
    return !missed();
  }));
  watchdog.clear();
}

}  // namespace
}  // namespace troupe
