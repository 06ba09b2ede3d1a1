#include "actors/front/live_feed.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe {
namespace {

using LiveJson = nlohmann::ordered_json;

double milliseconds(std::int64_t ns) { return std::round(static_cast<double>(ns) * 1e-4) / 100; }

LiveJson trace_json(const RequestTrace& request, std::int64_t now_ns) {
  LiveJson steps = LiveJson::array();
  for (const TraceStep& step : request.steps) {
    steps.push_back(LiveJson{{"actor", step.actor},
                             {"event", step.event},
                             {"ms", milliseconds(step.after_ns)},
                             {"details", step.details}});
  }
  return LiveJson{
      {"id", request.id}, {"age_ms", milliseconds(now_ns - request.began_ns)}, {"steps", std::move(steps)}};
}

http::Output event_output(std::uint64_t exchange, std::string_view event, std::string_view data) {
  http::Output output{.exchange_id = exchange};
  output.body = "event: " + std::string(event) + "\ndata: " + std::string(data) + "\n\n";
  return output;
}

}  // namespace

std::string live_event(const LiveState& state, const RequestTrace* request, std::int64_t now_ns) {
  LiveJson actors = LiveJson::array();
  for (const ActorReport& actor : state.actors) {
    actors.push_back(LiveJson{{"name", actor.name},
                              {"number", actor.number},
                              {"answered", actor.answered},
                              {"restarts", actor.restarts},
                              {"mailbox", actor.mailbox},
                              {"answer_ms", milliseconds(actor.answer_ns)}});
  }
  LiveJson requests = LiveJson::array();
  for (const RequestTrace& trace : state.requests) requests.push_back(trace_json(trace, now_ns));
  LiveJson server = LiveJson::parse(state.server, nullptr, /*allow_exceptions=*/false);
  if (!server.is_object()) server = nullptr;
  const LiveJson event{
      {"t_ms", now_ns / 1'000'000},
      {"state", state.state},
      {"server", std::move(server)},
      {"tokens", LiveJson{{"generated", state.generated_tokens}, {"prompt", state.prompt_tokens}}},
      {"actors", std::move(actors)},
      {"requests", std::move(requests)},
      {"request", request != nullptr ? trace_json(*request, now_ns) : LiveJson(nullptr)}};
  return event.dump(-1, ' ', false, LiveJson::error_handler_t::replace);
}

LiveFeed::LiveFeed(Setup setup)
    : setup_(std::move(setup)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

LiveFeed::~LiveFeed() = default;

Status LiveFeed::watch(http::Exchange exchange, std::string request) {
  const std::lock_guard lock(mutex_);
  if (ended_) return failure(Code::unavailable, "The server is shutting down");
  if (watchers_.size() >= kMaxWatchers) {
    return failure(Code::overloaded,
                   std::to_string(kMaxWatchers) + " clients watch the live state already, the most that may");
  }
  watchers_.push_back({exchange, std::move(request)});
  std::vector<http::Output> outputs;
  outputs.push_back(event_output(exchange.id, "opening", setup_.opening()));
  setup_.deliver(exchange.io, std::move(outputs));
  fresh_ = true;
  changed_.notify_all();
  return {};
}

bool LiveFeed::leave(http::Exchange exchange) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(watchers_, [&](const Watcher& watcher) { return watcher.exchange == exchange; }) > 0;
}

void LiveFeed::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (const Watcher& watcher : std::exchange(watchers_, {})) {
    std::vector<http::Output> outputs;
    outputs.push_back({.exchange_id = watcher.exchange.id, .kind = http::Output::Kind::end});
    setup_.deliver(watcher.exchange.io, std::move(outputs));
  }
}

void LiveFeed::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait(lock, stop, [this] { return !watchers_.empty(); });
    if (stop.stop_requested()) return;
    fresh_ = false;
    const std::vector<Watcher> watchers = watchers_;
    lock.unlock();
    tell(setup_.look(), watchers);  // what goes to one who has left meanwhile is dropped by the server
    lock.lock();
    changed_.wait_for(lock, stop, setup_.period, [this] { return fresh_; });
  }
}

void LiveFeed::tell(const LiveState& state, const std::vector<Watcher>& watchers) const {
  const std::int64_t now = now_ns();
  const std::string common = live_event(state, nullptr, now);
  std::map<std::uint32_t, std::vector<http::Output>> batches;  // by I/O thread
  for (const Watcher& watcher : watchers) {
    const auto followed = watcher.request.empty() ? std::nullopt : setup_.traces->find(watcher.request);
    batches[watcher.exchange.io].push_back(
        event_output(watcher.exchange.id, "state", followed ? live_event(state, &*followed, now) : common));
  }
  for (auto& [io, outputs] : batches) setup_.deliver(io, std::move(outputs));
}

}  // namespace troupe
