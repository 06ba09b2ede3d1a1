// A TOKENIZER that dies in the real cast: the ROOT spawns another, and the SESSION HOSTs use it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "actors/topology.h"
#include "support/byte_tokenizer.h"
#include "support/patience.h"

namespace troupe {
namespace {

/// Crashes its actor on the text "crash": what is thrown is no std::exception, so nothing on the way catches it.
class CrashingTokenizer final : public testing::ByteTokenizer {
 public:
  std::vector<TokenId> encode(std::span<const TextSpan> spans) const override {
    for (const TextSpan& span : spans) {
      if (span.text == "crash") {
        ++crashes;
        throw 1;
      }
    }
    return ByteTokenizer::encode(spans);
  }
  mutable std::atomic<int> crashes{0};
};

Ask tokenize(std::uint64_t exchange, const std::string& text) {
  Ask ask;
  ask.exchange = exchange;
  ask.request_id = "r" + std::to_string(exchange);
  ask.api = Api::tokenize;
  ask.source.texts = {text};
  return ask;
}

TEST(Respawn, ADeadTokenizerIsReplacedAndTheSessionsUseTheNewOne) {
  auto fds = ipc::create_link();
  ASSERT_TRUE(fds.ok());
  auto link = ipc::EngineEnd::attach(fds->step.get(), fds->cache.get());
  ASSERT_TRUE(link.ok());
  const auto tokenizer = std::make_shared<CrashingTokenizer>();
  std::atomic<int> answered{0}, ok{0};
  CastSetup setup;
  setup.links = {std::make_shared<ipc::EngineEnd>(*std::move(link))};
  setup.encoder = std::make_shared<Encoder>(tokenizer, nullptr);
  setup.sessions = std::make_shared<SessionContext>(SessionContext{tokenizer, {}, 64, 258});
  setup.health = std::make_shared<HealthCell>();
  setup.deliver = [&](std::uint32_t, std::vector<http::Output>&& outputs) {
    for (const http::Output& output : outputs) {
      ok += output.status == 200;
      ++answered;
    }
  };
  setup.log = [](const std::string&) { return Log(); };
  Cast cast(std::move(setup));
  caf::anon_send(cast.gateway(), LinkUp{});

  std::uint64_t exchange = 0;
  const auto ask_until_ok = [&](int wanted) {
    const TimePoint end = Clock::now() + test::kPatience;
    while (ok < wanted && Clock::now() < end) {
      const int before = answered;
      caf::anon_send(cast.gateway(), tokenize(++exchange, "hello"));
      while (answered == before && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return ok >= wanted;
  };
  ASSERT_TRUE(ask_until_ok(1));
  caf::anon_send(cast.gateway(), tokenize(++exchange, "crash"));
  const TimePoint end = Clock::now() + test::kPatience;
  while (tokenizer->crashes == 0 && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_EQ(tokenizer->crashes, 1);
  EXPECT_TRUE(ask_until_ok(ok + 1)) << answered << " answers";
  EXPECT_TRUE(cast.alive()) << cast.why();
}

}  // namespace
}  // namespace troupe
