#include "actors/engine/engine_main.h"

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "actors/engine/engine.h"
#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/control.h"
#include "base/log.h"

namespace troupe {
namespace {

using nlohmann::json;
using supervisor::Control;
using supervisor::Packet;

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr auto kStatusPatience = std::chrono::milliseconds(800);
constexpr auto kServedInterval = std::chrono::seconds(1);

/// The engine process's main loop: what the supervisor asks for, and what it has to be told.
class EngineProcess {
 public:
  EngineProcess(Control control, std::unique_ptr<Engine> engine)
      : control_(std::move(control)), engine_(std::move(engine)) {}

  int run() {
    for (;;) {
      tell_state();
      tell_served();
      if (!engine_->alive()) return fatal(engine_->why());
      if (drain_until_ && (engine_->idle() || Clock::now() >= *drain_until_)) break;
      const Packet packet = control_.receive(Clock::now() + kTick);
      if (packet.kind == Packet::Kind::closed) break;
      if (packet.kind == Packet::Kind::message) obey(packet);
    }
    engine_->stop();
    return 0;
  }

 private:
  void obey(const Packet& packet) {
    const std::string what = packet.text("do");
    if (what == "status") {
      answer_status(packet.number("id"));
    } else if (what == "drain" && !drain_until_) {
      drain_until_ = Clock::now() + std::chrono::seconds(packet.number("deadline_s", 30));
      engine_->drain();
    }
    // worker_down and worker_up are the link's to notice: the epoch has changed already.
  }

  void answer_status(std::int64_t id) {
    const auto status = engine_->status(kStatusPatience);
    if (!status.ok()) return;
    const CacheStatus& cache = status->cache;
    control_.tell({{"event", "status"},
                   {"id", id},
                   {"state", status->state},
                   {"kv_blocks", {{"total", cache.total}, {"free", cache.free}, {"cached", cache.cached},
                                  {"leased", cache.leased}, {"moving", cache.moving}}},
                   {"queues", {{{"name", "open_requests"}, {"depth", status->open_requests}, {"capacity", status->max_requests}},
                               {{"name", "running"}, {"depth", status->scheduler.running}, {"capacity", status->scheduler.max_running}},
                               {{"name", "waiting"}, {"depth", status->scheduler.waiting}, {"capacity", status->scheduler.max_waiting}}}}});
  }

  void tell_state() {
    std::string state = engine_->state();
    if (state == told_state_) return;
    control_.tell({{"event", "state"}, {"state", state}});
    told_state_ = std::move(state);
  }

  void tell_served() {
    const std::uint64_t served = engine_->served();
    if (served == told_served_ || Clock::now() < next_served_) return;
    control_.tell({{"event", "served"}, {"requests", served - told_served_}});
    told_served_ = served;
    next_served_ = Clock::now() + kServedInterval;
  }

  int fatal(const std::string& why) {
    control_.tell({{"event", "fatal"}, {"message", why}});
    engine_->stop();
    return 1;
  }

  Control control_;
  std::unique_ptr<Engine> engine_;
  std::string told_state_;
  std::uint64_t told_served_ = 0;
  TimePoint next_served_{};
  std::optional<TimePoint> drain_until_;
};

}  // namespace

int engine_main(const std::vector<std::string>& words) {
  const auto arguments = supervisor::parse_child_arguments(words);
  if (!arguments.ok()) {
    std::fprintf(stderr, "troupe engine: %s\n", arguments.status().message.c_str());
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
  Control control{ipc::Fd(arguments->control_fd)};
  auto options = supervisor::read_options_file(arguments->options_fd);
  if (!options.ok()) {
    control.tell({{"event", "fatal"}, {"message", options.status().message}});
    return 1;
  }
  auto engine = Engine::start(*options, {arguments->listen_fd, arguments->metrics_fd, arguments->step_fd, arguments->cache_fd});
  if (!engine.ok()) {
    control.tell({{"event", "fatal"}, {"message", engine.status().message}});
    return 1;
  }
  const int code = EngineProcess(std::move(control), *std::move(engine)).run();
  Log::flush(1000);
  return code;
}

}  // namespace troupe
