// What the I/O threads call, with GATEWAY and METRICS played by the test.
#include "actors/gateway/gateway_actor.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "http/server/routes.h"
#include "support/actor_world.h"
#include "support/temp_directory.h"

namespace troupe {
namespace {

class HttpSideTest : public testing::ActorWorld {
 protected:
  HttpSideTest() {
    metrics_ = keep(system_.spawn([this](metrics_actor::pointer) -> metrics_actor::behavior_type {
      return {answer_beat,
              [](const StepStats&) {},
              [](const RequestStats&) {},
              [this](const HttpStats& stats) { counted.push_back(stats); },
              [](const ProcessReports&) {},
              [](const MediaStats&) {},
              [this](const DoorStats& door) {
                turned_away += door.turned_away;
                failed_handshakes += door.failed_handshakes;
                faults += door.faults;
              },
              [](caf::get_atom) { return std::string(); }};
    }));
    gateway_ = keep(system_.spawn([this](gateway_actor::pointer) -> gateway_actor::behavior_type {
      return {answer_beat,
              [this](Ask& ask) {
                heard.push_back("ask " + ask.request_id);
                asked = std::move(ask);
              },
              [this](const InfoAsk& ask) { heard.push_back("info " + std::to_string(ask.exchange)); },
              [this](const Withdraw& gone) { heard.push_back("withdraw " + std::to_string(gone.exchange)); },
              [](const EngineServes&) {},
              [](const TextUp&) {},
              [](const Drain&) { return true; },
              [](const Abandon&) {},
              [](caf::get_atom) { return EngineStatus{}; }};
    }));
    side.connect(gateway_, metrics_, nullptr);
  }

  void answered(std::string_view method, std::string_view path, std::uint16_t status, bool failed = false) {
    const http::Route* route = http::match_route(method, path, http::Pages::both).named;
    side.answered({.request_id = "r",
                   .method = method,
                   .target = path,
                   .route = route,
                   .status = status,
                   .failed = failed});
    run();
  }

  std::vector<HttpStats> counted;
  int turned_away = 0, failed_handshakes = 0, faults = 0;
  std::vector<std::string> heard;
  Ask asked;  // the last
  std::vector<http::Output> delivered;
  metrics_actor metrics_;
  gateway_actor gateway_;
  HttpSide side{{{"m", "dir", 1, 64}},
                std::make_shared<HealthCell>(),
                [this](std::uint32_t, std::vector<http::Output>&& outputs) {
                  for (auto& output : outputs) delivered.push_back(std::move(output));
                },
                Log()};
};

// The supervisor forgives deaths for what was served: a probe or a stream that a death broke off is no proof
// of health.
TEST_F(HttpSideTest, OnlyGenerationThatWentWellCountsAsServed) {
  answered("POST", "/ping", 200);
  answered("POST", "/tokenize", 200);
  answered("GET", "/v1/models", 200);
  answered("POST", "/v1/chat/completions", 400);
  answered("POST", "/v1/chat/completions", 499);
  answered("POST", "/v1/completions", 200, /*failed=*/true);
  EXPECT_EQ(side.served(), 0u);
  answered("POST", "/v1/chat/completions", 200);
  answered("POST", "/v1/completions", 200);
  EXPECT_EQ(side.served(), 2u);
  ASSERT_EQ(counted.size(), 8u);
  EXPECT_EQ(counted[0].path, "/ping");
  EXPECT_FALSE(counted[1].generates) << "/tokenize";
  EXPECT_TRUE(counted[3].generates) << "refused, but of a route that generates";
  answered("GET", "/nowhere", 404);
  EXPECT_EQ(counted.back().path, "other");
}

TEST_F(HttpSideTest, CountsEveryConnectionThatWasNotServed) {
  for (int i = 0; i < 5; ++i) side.turned_away("203.0.113.5", failure(Code::overloaded, "too many"));
  for (int i = 0; i < 3; ++i) side.handshake_failed("203.0.113.5", "http request");
  run();
  EXPECT_EQ(turned_away, 5);
  EXPECT_EQ(failed_handshakes, 3);
}

TEST_F(HttpSideTest, CountsFaultsAndLogsTheFirstOfEachKind) {
  const test::TempDirectory folder;
  LogOptions options;
  options.dir = folder.path().string();
  const auto log = Log::open("http_side_test", options);
  ASSERT_TRUE(log.ok()) << log.status().message;
  HttpSide logging({}, std::make_shared<HealthCell>(), {}, *log);
  logging.connect(gateway_, metrics_, nullptr);
  for (const auto place : {http::FaultPlace::loop, http::FaultPlace::parsing, http::FaultPlace::loop}) {
    logging.faulted(place, "std::bad_alloc", 2);
  }
  run();
  EXPECT_EQ(faults, 6);
  ASSERT_TRUE(Log::flush(30'000));
  std::ifstream file(log_path("http_side_test", options));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_NE(text.find("event=http_fault place=loop what=std::bad_alloc"), text.npos) << text;
  EXPECT_NE(text.find("place=parsing"), text.npos) << text;
}

TEST_F(HttpSideTest, AsksForWhatOtherActorsHave) {
  http::Call call;
  call.exchange = {0, 4};
  call.body = http::InfoRequest{http::InfoRequest::Kind::metrics, {}};
  side.submit(std::move(call));
  run();
  EXPECT_EQ(heard, std::vector<std::string>{"info 4"});
  EXPECT_TRUE(delivered.empty());
}

TEST_F(HttpSideTest, AnswersTheModelsItself) {
  http::Call call;
  call.exchange = {3, 9};
  call.body = http::InfoRequest{http::InfoRequest::Kind::model, "m"};
  side.submit(http::Call(call));
  call.body = http::InfoRequest{http::InfoRequest::Kind::model, "other"};
  side.submit(http::Call(call));
  ASSERT_EQ(delivered.size(), 2u);
  EXPECT_EQ(delivered[0].exchange_id, 9u);
  EXPECT_EQ(delivered[0].status, 200);
  EXPECT_NE(delivered[0].body.find("\"id\":\"m\""), std::string::npos);
  EXPECT_EQ(delivered[1].exchange_id, 9u);
  EXPECT_EQ(delivered[1].status, 404);
}

TEST_F(HttpSideTest, SendsTheRestToTheGatewayInOrder) {
  http::Call call;
  call.exchange = {3, 9};
  call.request_id = "r1";
  call.received = TimePoint(std::chrono::seconds(2));
  call.body_bytes = 70;
  call.client = "c";
  call.body = http::Request{.api = Api::completions, .timeout_ns = 5};
  side.submit(std::move(call));
  side.cancel({3, 9});
  run();
  EXPECT_EQ(heard, (std::vector<std::string>{"ask r1", "withdraw 9"}));
  EXPECT_TRUE(delivered.empty());
  EXPECT_EQ(asked.io, 3u);
  EXPECT_EQ(asked.exchange, 9u);
  EXPECT_EQ(asked.arrived_ns, 2'000'000'000);
  EXPECT_EQ(asked.body_bytes, 70);
  EXPECT_EQ(asked.client, "c");
  EXPECT_EQ(asked.api, Api::completions);
  EXPECT_EQ(asked.timeout_ns, 5);
}

TEST_F(HttpSideTest, OfSeveralModelsEachRequestGoesToItsOwn) {
  std::vector<std::string> second;
  const gateway_actor other = keep(system_.spawn([&](gateway_actor::pointer) -> gateway_actor::behavior_type {
    return {answer_beat,
            [&](Ask& ask) { second.push_back("ask " + ask.request_id); },
            [&](const InfoAsk& ask) { second.push_back("info " + std::to_string(ask.exchange)); },
            [&](const Withdraw& gone) { second.push_back("withdraw " + std::to_string(gone.exchange)); },
            [](const EngineServes&) {},
            [](const TextUp&) {},
            [](const Drain&) { return true; },
            [](const Abandon&) {},
            [](caf::get_atom) { return EngineStatus{}; }};
  }));
  const auto health = std::make_shared<HealthCell>();
  const auto pages = std::make_shared<MergedPages>(2, [](std::uint32_t, std::vector<http::Output>&&) {});
  side.add_model(other, health, pages);
  health->set(http::Health::State::ready);
  EXPECT_EQ(side.health().state, http::Health::State::loading) << "the first is";
  http::Call call;
  call.exchange = {3, 9};
  call.request_id = "r1";
  call.model = 1;
  call.body = http::Request{.api = Api::completions};
  side.submit(http::Call(call));
  call.body = http::InfoRequest{http::InfoRequest::Kind::metrics};
  side.submit(http::Call(call));
  call.body = http::InfoRequest{http::InfoRequest::Kind::config_info};
  side.submit(std::move(call));
  side.cancel({3, 9});
  run();
  EXPECT_EQ(heard, (std::vector<std::string>{"info 1", "info 9", "withdraw 9"}));
  EXPECT_EQ(second, (std::vector<std::string>{"ask r1", "info 1", "withdraw 9"}));
  side.disconnect();
}

}  // namespace
}  // namespace troupe
