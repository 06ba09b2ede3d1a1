#include "actors/engine/engine_main.h"

#include <malloc.h>

#include <algorithm>
#include <deque>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "actors/engine/child_main.h"
#include "actors/front/front.h"
#include "actors/metrics/engine_totals.h"
#include "base/exhaustion.h"
#include "base/log.h"

namespace troupe {
namespace {

using nlohmann::json;
using supervisor::Control;
using supervisor::Packet;

constexpr auto kFrontTick = std::chrono::milliseconds(20);
constexpr auto kStatusPatience = std::chrono::milliseconds(800);
constexpr auto kServedInterval = std::chrono::seconds(1);
constexpr auto kFarewell = std::chrono::seconds(3);  // to send the last errors; the supervisor waits longer
constexpr std::size_t kMostAsked = 4;                // the supervisor asks again after a while
constexpr int kPagesOfItsOwn = 1 << 20;              // bytes

/// Of several models: the sums, and the queues of each as of an engine.
EngineStatus sum_of(std::vector<EngineStatus> models) {
  EngineStatus sum = std::move(models.front());
  if (models.size() == 1) return sum;
  sum.engines = {sum.scheduler};
  for (std::size_t i = 1; i < models.size(); ++i) {
    add_to(sum.scheduler, models[i].scheduler);
    add_to(sum.cache, models[i].cache);
    sum.engines.push_back(models[i].scheduler);
    sum.open_requests += models[i].open_requests;
    sum.max_requests += models[i].max_requests;
  }
  return sum;
}

/// The front process's main loop: obeys the supervisor and reports to it.
class FrontProcess {
 public:
  FrontProcess(Control& control, std::unique_ptr<Front> front, Log log)
      : control_(control), front_(std::move(front)), log_(std::move(log)) {}

  /// Returns when the supervisor has gone, a drain is over, or an actor that cannot be replaced has died.
  Status run() {
    for (;;) {
      front_->beat();
      silence_.tell(front_->silent());
      tell_state();
      tell_served();
      tell_status();
      tell_distrusted();
      if (!front_->alive()) break;
      if (drain_until_ && front_->idle()) break;
      if (drain_until_ && Clock::now() >= *drain_until_) {
        if (std::exchange(abandoned_, true)) break;
        front_->abandon();
        drain_until_ = Clock::now() + kFarewell;
      }
      const Packet packet = control_.receive(Clock::now() + kFrontTick);
      if (packet.kind == Packet::Kind::closed) break;
      if (packet.kind == Packet::Kind::message) obey(packet);
    }
    const Status status =
        front_->alive() ? Status() : failure(Code::internal, front_->why() + address_space_remark());
    front_->stop();
    return status;
  }

 private:
  void obey(const Packet& packet) {
    const std::string what = packet.text("do");
    if (what == "status") {
      ask_status(packet.number("id"));
    } else if (what == "renew") {
      renew(packet);
    } else if (what == "processes") {
      report(packet);
    } else if (what == "drain" && !drain_until_) {
      drain_until_ = Clock::now() + std::chrono::seconds(packet.number("deadline_s", 30));
      front_->drain();
    }
  }

  /// The supervisor has checked them.
  void renew(const Packet& packet) {
    const auto options = supervisor::read_options_file(packet.attached.get());
    const Status status = options.ok() ? front_->renew_credentials(options->http) : options.status();
    if (!status.ok()) log_.error("credentials_kept", {kv("why", status.message)});
  }

  void report(const Packet& packet) {
    ProcessReports reports;
    for (const json& process : packet.message.value("processes", json::array())) {
      reports.processes.push_back({process.value("name", ""), process.value("pid", std::int64_t{0}),
                                   process.value("restarts", std::int32_t{0})});
    }
    front_->report(std::move(reports));
  }

  // Without waiting for the actors: this thread is the one that sees who stands still.
  void ask_status(std::int64_t id) {
    asked_.push_back({id, front_->ask_status(kStatusPatience)});
    if (asked_.size() > kMostAsked) asked_.pop_front();
  }

  void tell_status() {
    const auto known = [](const std::future<std::optional<EngineStatus>>& status) {
      return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    while (!asked_.empty() &&
           std::all_of(asked_.front().status.begin(), asked_.front().status.end(), known)) {
      std::vector<EngineStatus> each;
      for (auto& status : asked_.front().status) {
        if (auto one = status.get()) each.push_back(*std::move(one));
      }
      if (!each.empty()) tell(asked_.front().id, sum_of(std::move(each)));
      asked_.pop_front();
    }
  }

  void tell(std::int64_t id, const EngineStatus& status) {
    const CacheStatus& cache = status.cache;
    control_.tell(
        {{"event", "status"},
         {"id", id},
         {"state", status.state},
         {"tokens", {{"prompt", status.scheduler.prompt_tokens}, {"generated", front_->generated_tokens()}}},
         {"kv_blocks",
          {{"total", cache.total},
           {"free", cache.free},
           {"cached", cache.cached},
           {"leased", cache.leased},
           {"moving", cache.moving}}},
         {"prefix_cache",
          {{"prompt_tokens", status.scheduler.prompt_tokens},
           {"cached_tokens", status.scheduler.cached_tokens},
           {"evicted_blocks", cache.evicted}}},
         {"swap_space",
          {{"total", cache.swap.total},
           {"free", cache.swap.free},
           {"cached", cache.swap.cached},
           {"moving", cache.swap.moving},
           {"out_blocks", cache.swap.out},
           {"in_blocks", cache.swap.in},
           {"evicted_blocks", cache.swap.evicted},
           {"failed_blocks", cache.swap.failed},
           {"declined_blocks", cache.swap.declined}}},
         {"media", media(status.media)},
         {"queues", queues(status)}});
  }

  static json media(const MediaStats& stats) {
    return {{"file_bytes", stats.file_bytes},
            {"file_limit", stats.file_limit},
            {"patch_bytes", stats.patch_bytes},
            {"patch_limit", stats.patch_limit},
            {"cached_bytes", stats.cached_bytes},
            {"cached_limit", stats.cached_limit},
            {"cached_entries", stats.cached_entries},
            {"hits", stats.hits},
            {"misses", stats.misses},
            {"decodes_running", stats.decodes_running},
            {"decodes_waiting", stats.decodes_waiting},
            {"requests_waiting", stats.requests_waiting},
            {"refused", stats.refused}};
  }

  /// Of several engines those of all, and those of each.
  static json queues(const EngineStatus& status) {
    json all = {
        {{"name", "open_requests"}, {"depth", status.open_requests}, {"capacity", status.max_requests}}};
    const auto add = [&all](const SchedulerStatus& engine, const std::string& number) {
      all.push_back(
          {{"name", "running" + number}, {"depth", engine.running}, {"capacity", engine.max_running}});
      all.push_back(
          {{"name", "waiting" + number}, {"depth", engine.waiting}, {"capacity", engine.max_waiting}});
    };
    add(status.scheduler, "");
    for (std::size_t i = 0; i < status.engines.size(); ++i) add(status.engines[i], "-" + std::to_string(i));
    return all;
  }

  void tell_state() {
    std::string state = front_->state();
    if (state == told_state_) return;
    control_.tell({{"event", "state"}, {"state", state}});
    told_state_ = std::move(state);
  }

  void tell_distrusted() {
    while (const auto text = front_->take_distrusted()) {
      control_.tell(
          {{"event", "distrusted"}, {"child", "text-" + std::to_string(text->index)}, {"why", text->why}});
    }
  }

  void tell_served() {
    const std::uint64_t served = front_->served(), generated = front_->generated_tokens();
    if ((served == told_served_ && generated == told_generated_) || Clock::now() < next_served_) return;
    control_.tell(
        {{"event", "served"}, {"requests", served - told_served_}, {"tokens", generated - told_generated_}});
    told_served_ = served;
    told_generated_ = generated;
    next_served_ = Clock::now() + kServedInterval;
  }

  struct Asked {
    std::int64_t id;
    std::vector<std::future<std::optional<EngineStatus>>> status;  // by model
  };

  Control& control_;
  std::unique_ptr<Front> front_;
  std::deque<Asked> asked_;
  const Log log_;
  std::string told_state_;
  SilenceReport silence_{control_};
  std::uint64_t told_served_ = 0;
  std::uint64_t told_generated_ = 0;
  TimePoint next_served_{};
  std::optional<TimePoint> drain_until_;
  bool abandoned_ = false;
};

}  // namespace

int front_main(const std::vector<std::string>& words) {
  // Large bodies and answers have pages of their own, which go back to the system with them. Unless it is
  // told a size, the allocator raises it when the first of them is freed, and holds what the later ones took.
  ::mallopt(M_MMAP_THRESHOLD, kPagesOfItsOwn);
  return run_child("front", words,
                   [](const auto& arguments, Control& control, const config::Options& options) {
                     if (arguments.link_step_fds.empty())
                       return failure(Code::internal, "the front needs a link to an engine");
                     FrontFds fds{arguments.listen_fd,
                                  arguments.metrics_fd,
                                  {},
                                  arguments.vocabulary_fd,
                                  arguments.patches_fd,
                                  {},
                                  {arguments.media_fds, arguments.video_fds}};
                     for (std::size_t i = 0; i < arguments.link_step_fds.size(); ++i) {
                       fds.engines.push_back({arguments.link_step_fds[i], arguments.link_cache_fds[i],
                                              i < arguments.names_fds.size() ? arguments.names_fds[i] : -1});
                     }
                     for (std::size_t i = 0; i < arguments.text_step_fds.size(); ++i) {
                       fds.texts.emplace_back(arguments.text_step_fds[i], arguments.text_cache_fds[i]);
                     }
                     for (std::size_t i = 0; i < arguments.model_fds.size(); ++i) {
                       auto own = supervisor::read_options_file(arguments.model_fds[i]);
                       if (!own.ok()) return own.status();
                       fds.models.push_back({*std::move(own), i < arguments.model_vocabulary_fds.size()
                                                                  ? arguments.model_vocabulary_fds[i]
                                                                  : -1});
                     }
                     auto front = Front::start(options, fds);
                     if (!front.ok()) return front.status();
                     const auto log = Log::open("gateway", options.log);
                     return FrontProcess(control, *std::move(front), log.ok() ? *log : Log()).run();
                   });
}

}  // namespace troupe
