// The live state: ways of requests, the data of an event, and who gets it.
#include "actors/front/live_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>

#include "actors/front/request_traces.h"
#include "support/patience.h"

namespace troupe {
namespace {

using nlohmann::json;

void tell(RequestTraces& traces, std::string_view actor, std::string_view event,
          std::initializer_list<LogField> fields) {
  traces.event(actor, event, {fields.begin(), fields.size()});
}

TEST(RequestTraces, KeepTheWayOfARequestWithoutItsText) {
  RequestTraces traces;
  tell(traces, "gateway", "unknown_field",
       {kv("req", "a"), kv("field", "zebra")});  // before it is admitted: ignored
  tell(traces, "gateway", "admitted", {kv("req", "a"), kv("open", 1)});
  tell(traces, "tokenizer", "encoded",
       {kv("req", "a"), kv("tokens", 12), kv("ms", 0.25), kv("ok", true), kv("why", "secret words")});
  tell(traces, "gateway", "started", {kv("model", "m")});
  const auto found = traces.find("a");
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->steps.size(), 2u);
  EXPECT_EQ(found->steps[1].actor, "tokenizer");
  EXPECT_EQ(found->steps[1].event, "encoded");
  EXPECT_EQ(found->steps[1].details, "tokens=12 ms=0.25 ok=true");
  EXPECT_GE(found->steps[1].after_ns, found->steps[0].after_ns);
  EXPECT_FALSE(traces.find("b").has_value());
}

TEST(RequestTraces, AreBounded) {
  RequestTraces traces;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = std::to_string(i);
    tell(traces, "gateway", i % 2 == 0 ? "admitted" : "refused", {kv("req", id), kv("code", "overloaded")});
    for (int step = 0; step < 100; ++step) tell(traces, "session", "opened", {kv("req", id)});
  }
  EXPECT_EQ(traces.latest(10'000).size(), RequestTraces::kMaxRequests);
  EXPECT_EQ(traces.latest(2)[0].id, "999");
  EXPECT_EQ(traces.latest(2)[1].id, "998");
  EXPECT_EQ(traces.find("999")->steps.size(), RequestTraces::kMaxSteps);
  EXPECT_EQ(traces.find("999")->steps[0].details, "code=overloaded");
  EXPECT_FALSE(traces.find("700").has_value());
}

TEST(RequestTraces, AnIdThatIsUsedAgainIsANewRequest) {
  RequestTraces traces;
  for (int i = 0; i < 2; ++i) tell(traces, "gateway", "admitted", {kv("req", "same"), kv("open", i)});
  EXPECT_EQ(traces.find("same")->steps.size(), 1u);
  EXPECT_EQ(traces.find("same")->steps[0].details, "open=1");
}

TEST(RequestTraces, HearWhatALogIsNotToWrite) {
  struct Nowhere : LogSink {
    bool write(std::string_view) override { return ++written, true; }
    void flush() override {}
    std::atomic<int> written{0};
  };
  const auto sink = std::make_shared<Nowhere>();
  LogOptions options;
  options.level = LogLevel::error;
  const auto traces = std::make_shared<RequestTraces>();
  const Log log = Log::to_sink("gateway", sink, options).observed_by(traces);
  log.debug("admitted", {kv("req", "a")});
  EXPECT_TRUE(traces->find("a").has_value());
  EXPECT_TRUE(Log::flush(1000));
  EXPECT_EQ(sink->written, 0);
  Log().observed_by(traces).debug("admitted", {kv("req", "b")});  // a log that writes nowhere has no name
  EXPECT_FALSE(traces->find("b").has_value());
}

TEST(LiveEvent, HasTheServersPageAndTheActors) {
  LiveState state{.state = "ready",
                  .server = R"({"state":"ready","processes":[]})",
                  .generated_tokens = 7,
                  .prompt_tokens = 9};
  state.actors.push_back({"session", 1, true, 0, 3, 1'234'000});
  RequestTrace trace{"a\xff", 1'000'000, {{"gateway", "admitted", 2'000'000, "open=1"}}};
  const json event = json::parse(live_event(state, &trace, 5'000'000));
  EXPECT_EQ(event.at("server").at("state"), "ready");
  EXPECT_EQ(event.at("tokens").at("generated"), 7);
  EXPECT_EQ(
      event.at("actors")[0],
      json::parse(
          R"({"name":"session","number":1,"answered":true,"restarts":0,"mailbox":3,"answer_ms":1.23})"));
  EXPECT_EQ(event.at("request").at("age_ms"), 4);
  EXPECT_EQ(event.at("request").at("steps")[0].at("ms"), 2);
  state.server = "not JSON";
  EXPECT_TRUE(json::parse(live_event(state, nullptr, 0)).at("server").is_null());
  EXPECT_TRUE(json::parse(live_event(state, nullptr, 0)).at("request").is_null());
}

/// A feed whose outputs and looks are counted.
class LiveFeedTest : public ::testing::Test {
 protected:
  bool wait(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, testing_patience(), done);
  }
  static std::chrono::milliseconds testing_patience() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(troupe::test::kPatience);
  }
  int count(std::uint64_t exchange, std::string_view event) {
    int n = 0;
    for (const http::Output& output : outputs_) {
      n += output.exchange_id == exchange && output.body.starts_with("event: " + std::string(event) + "\n")
               ? 1
               : 0;
    }
    return n;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<http::Output> outputs_;
  std::atomic<int> looks_{0};
  RequestTraces traces_;
  LiveFeed feed_{{.opening = [] { return std::string("{}"); },
                  .look = [this] { return ++looks_, LiveState{.state = "ready"}; },
                  .traces = &traces_,
                  .deliver =
                      [this](std::uint32_t, std::vector<http::Output>&& outputs) {
                        const std::lock_guard lock(mutex_);
                        for (http::Output& output : outputs) outputs_.push_back(std::move(output));
                        changed_.notify_all();
                      },
                  .period = std::chrono::milliseconds(5)}};
};

TEST_F(LiveFeedTest, LooksOnlyWhileSomebodyWatches) {
  EXPECT_EQ(looks_, 0);
  ASSERT_TRUE(feed_.watch({0, 1}, "").ok());
  ASSERT_TRUE(feed_.watch({1, 2}, "").ok());
  EXPECT_TRUE(wait([&] { return count(1, "state") >= 3 && count(2, "state") >= 3; }));
  EXPECT_TRUE(wait([&] { return count(1, "opening") == 1; }));
  EXPECT_TRUE(feed_.leave({0, 1}));
  EXPECT_FALSE(feed_.leave({0, 1}));
  EXPECT_TRUE(feed_.leave({1, 2}));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a look that had begun ends
  const int looks = looks_;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(looks_, looks);
}

TEST_F(LiveFeedTest, FollowsTheRequestOfEachWatcher) {
  tell(traces_, "gateway", "admitted", {kv("req", "mine")});
  ASSERT_TRUE(feed_.watch({0, 1}, "mine").ok());
  ASSERT_TRUE(wait([&] { return count(1, "state") >= 1; }));
  const std::lock_guard lock(mutex_);
  const std::string& body = outputs_.back().body;
  EXPECT_EQ(json::parse(body.substr(body.find("data: ") + 6)).at("request").at("id"), "mine");
}

TEST_F(LiveFeedTest, HasABoundAndAnEnd) {
  for (std::uint64_t i = 1; i <= LiveFeed::kMaxWatchers; ++i) ASSERT_TRUE(feed_.watch({0, i}, "").ok());
  EXPECT_EQ(feed_.watch({0, 99}, "").code, Code::overloaded);
  feed_.end();
  EXPECT_EQ(feed_.watch({0, 100}, "").code, Code::unavailable);
  const std::lock_guard lock(mutex_);
  std::size_t ends = 0;
  for (const http::Output& output : outputs_) ends += output.kind == http::Output::Kind::end ? 1 : 0;
  EXPECT_EQ(ends, LiveFeed::kMaxWatchers);
}

}  // namespace
}  // namespace troupe
