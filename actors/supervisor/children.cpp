#include "actors/supervisor/children.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/counted.h"

namespace troupe::supervisor {

namespace {

// A ready child without a heartbeat for so long is shown as silent.
constexpr Duration kSilent = std::chrono::milliseconds(1500);
// A media process that lives shorter is restarted after a delay.
constexpr Duration kShortLife = std::chrono::seconds(1);
// So many starts in vain are a fault to report.
constexpr int kFailedStarts = 5;

std::string in_seconds(Duration d) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count()) + " s";
}

}  // namespace

ChildLimits ChildLimits::of(const config::ProcessOptions& process, RestartLimits restarts) {
  restarts.max_restarts = process.max_restarts;
  restarts.window = std::chrono::seconds(process.restart_window_s);
  return {restarts, std::chrono::seconds(process.start_timeout_s),
          std::chrono::seconds(process.engine_timeout_s), std::chrono::seconds(process.worker_timeout_s)};
}

Status Children::start(std::vector<Child> children, ServerLinks& links, const OpenLog& open_log) {
  all_ = std::move(children);
  for (Child& child : all_) {
    if (child.kind == ChildKind::media && open_log) child.output = ChildOutput(open_log(child.name));
  }
  links_ = &links;
  counted_.assign(std::max<std::size_t>(1, links.engines()), 0);
  for (Child& child : all_) {
    if (Status status = child.start(executable_, epoch_of(child), Clock::now()); !status.ok()) return status;
    log_(LogLevel::info, "child_started", {kv("child", child.name), kv("pid", child.process.pid())});
  }
  return {};
}

std::string Children::take_exit(Child& child) {
  const auto rank = static_cast<std::size_t>(child.rank);
  const bool worker = child.kind == ChildKind::worker;
  const auto engine = static_cast<std::size_t>(child.engine);
  std::uint32_t& counted = counted_[engine];
  const std::uint32_t joined = worker ? links_->engine(engine)[rank].joined(ipc::Side::lower) : 0;
  child.came_up = worker ? joined > 0 : child.ready;
  // While the process is not waited for.
  if (child.kind == ChildKind::media) links_->media()[rank].process_ended(child.process.look());
  std::string how = child.take_exit();
  child.orderly = child.kind == ChildKind::media && child.last_exit.signal == SIGTERM;
  if (!child.restart_by && !child.orderly) ++child.deaths;
  child.follows = worker && std::max(child.epoch, joined) <= counted;
  switch (child.kind) {
    case ChildKind::front:
      // What the media processes are at was asked by a front that is gone.
      for (const Child& one : all_) {
        if (one.kind == ChildKind::media) one.process.kill(SIGTERM);
      }
      links_->front_reaped();
      return how;
    case ChildKind::text: links_->text_reaped(rank); return how;
    case ChildKind::relay: links_->relay_reaped(rank); return how;
    case ChildKind::media: return how;
    case ChildKind::engine:
      counted = links_->engine(engine).epoch();
      links_->engine(engine).engine_reaped();
      return how;
    case ChildKind::worker:
      if (!child.follows) counted = links_->engine(engine).epoch();
      links_->engine(engine).worker_reaped(rank);
      return how;
  }
  return how;
}

std::uint32_t Children::epoch_of(const Child& child) const {
  return links_->engines() == 0 ? 0 : links_->engine(static_cast<std::size_t>(child.engine)).epoch();
}

Status Children::ask_to_restart(Child& child, TimePoint by, const nlohmann::json& order) {
  if (!child.running() || !child.ready || child.restart_by) {
    return failure(Code::unavailable, child.name + " is " + child.state + ", so it cannot be restarted now");
  }
  return replace(child, by, order);
}

Status Children::replace(Child& child, TimePoint by, const nlohmann::json& order) {
  if (!child.running() || child.restart_by)
    return failure(Code::unavailable, child.name + " is being restarted already");
  if (child.kind == ChildKind::media) {
    child.process.kill(SIGTERM);  // nothing else is said to it
  } else if (Status status = child.control.send(order); !status.ok()) {
    return status;
  }
  child.restart_by = by;
  child.asked_to_end = true;
  return {};
}

void Children::plan_media_restart(Child& child) const {
  child.failed_starts = child.came_up || child.orderly ? 0 : child.failed_starts + 1;
  const TimePoint now = Clock::now();
  const bool at_once =
      child.restart_by || child.orderly || (child.came_up && now - child.started >= kShortLife);
  child.restart_at = now + (at_once ? Duration{} : delay_after(child.failed_starts, limits_.restarts));
  if (child.failed_starts == kFailedStarts)
    log_(LogLevel::error, "child_does_not_start", {kv("child", child.name), kv("how", child.last_end)});
}

Status Children::plan_restart(Child& child, const std::string& how) {
  if (child.kind == ChildKind::media) {
    plan_media_restart(child);
    return {};
  }
  const bool holds_nothing = child.kind == ChildKind::text || child.kind == ChildKind::relay;
  if (child.restart_by || (holds_nothing && child.came_up)) {
    child.restart_at = Clock::now();
    return {};
  }
  if (!child.ever_ready && !child.fatal.empty()) {
    // Which one it was says something where there are several.
    const auto workers = std::ranges::count(all_, ChildKind::worker, &Child::kind);
    const bool named = child.kind == ChildKind::worker && workers > 1;
    return failure(Code::unavailable, (named ? child.name + ": " : "") + child.fatal);
  }
  const TimePoint now = Clock::now();
  if (const auto delay = child.follows ? restarts_.delay() : restarts_.died(now, child.came_up)) {
    child.restart_at = now + *delay;
    return {};
  }
  const std::string within = child.came_up ? " within " + in_seconds(limits_.restarts.window) : "";
  std::string counts;
  for (const Child& one : all_) {
    if (one.deaths > 0) counts += (counts.empty() ? "" : ", ") + one.name + " " + std::to_string(one.deaths);
  }
  return failure(Code::unavailable, "giving up after " + counted(restarts_.deaths(), "death") + within +
                                        " (" + counts + "); the last: " + how);
}

Status Children::restart_due(TimePoint now) {
  for (Child& child : all_) {
    if (!child.restart_at || now < *child.restart_at) continue;
    if (Status status = child.start(executable_, epoch_of(child), Clock::now()); !status.ok()) {
      // No memory or no pid for a fork counts as a death.
      child.follows = child.came_up = false;
      status = plan_restart(child, child.name + " cannot be started: " + status.message);
      if (!status.ok()) return status;
      continue;
    }
    ++child.restarts;
    log_(LogLevel::info, "child_restarted",
         {kv("child", child.name), kv("pid", child.process.pid()), kv("restarts", child.restarts)});
  }
  return {};
}

void Children::cancel_restarts() {
  for (Child& child : all_) child.restart_at.reset();
}

std::optional<TimePoint> Children::next_restart() const {
  std::optional<TimePoint> next;
  for (const Child& child : all_) {
    if (child.restart_at && (!next || *child.restart_at < *next)) next = child.restart_at;
  }
  return next;
}

void Children::watch(TimePoint now, Duration period) {
  const Duration since_last = std::min(now - watched_, 2 * period);
  watched_ = now;
  for (Child& child : all_) {
    child.output.tick(now);
    if (child.running()) watch(child, now, since_last);
  }
}

Loading Children::loading(double most) const {
  Loading all{0, 0, most};
  for (const Child& child : all_) {
    all.done_bytes += child.loaded_bytes;
    all.total_bytes += child.load_bytes;
    if (child.kind != ChildKind::worker) continue;
    const std::chrono::duration<double> since = Clock::now() - child.started;
    all.seconds = std::min(all.seconds, since.count());
  }
  return all;
}

void Children::watch(Child& child, TimePoint now, Duration since_last) {
  if (!child.kill_reason.empty()) return;
  if (child.restart_by) {
    if (now >= *child.restart_by) kill(child, "did not end when asked");
    return;
  }
  if (!child.ready) {
    if (!child.waits_for_others && now - child.started > limits_.start_timeout) {
      kill(child, "was not ready after " + in_seconds(limits_.start_timeout) + " (--start-timeout)");
    }
    return;
  }
  if (child.kind == ChildKind::media) return;  // the front has a deadline for each picture
  const std::int64_t beat = heartbeat_ns(child);
  if (beat == 0 || beat != child.last_beat) {
    child.last_beat = beat;
    child.silence = {};
    return;
  }
  child.silence += since_last;
  const bool works = child.kind == ChildKind::worker || child.kind == ChildKind::text;
  const Duration limit = works ? limits_.worker_timeout : limits_.engine_timeout;
  if (child.silence < limit) return;
  const std::string part = child.silent_part.empty() ? "" : " (" + child.silent_part + ")";
  kill(child, "gave no sign of life for " + in_seconds(limit) + part);
}

std::string Children::shown_state(const Child& child) const {
  if (!child.ready && child.failed_starts >= kFailedStarts) return "failing";
  if (!child.running() || !child.ready) return child.state;
  if (child.kind == ChildKind::worker) {
    const auto its_engine = [&child](const Child& one) {
      return one.kind == ChildKind::engine && one.engine == child.engine;
    };
    const auto engine = std::find_if(all_.begin(), all_.end(), its_engine);
    if (engine != all_.end() && engine->silent_part == child.name) return "silent";
  } else if (!child.silent_part.empty() && !child.silent_part.starts_with("worker-") &&
             !child.silent_part.starts_with("text-")) {
    return "silent: " + child.silent_part;
  }
  return child.silence >= kSilent ? "silent" : child.state;
}

void Children::fill(StatusPage& page, TimePoint now) const {
  for (const Child& child : all_) {
    const std::chrono::duration<double> uptime = child.running() ? now - child.started : Duration{};
    page.processes.push_back({child.name, child.process.pid(), uptime.count(), child.restarts,
                              shown_state(child), child.restarts > 0 ? child.last_end : ""});
  }
}

std::int64_t Children::heartbeat_ns(const Child& child) const {
  const auto engine = static_cast<std::size_t>(child.engine), rank = static_cast<std::size_t>(child.rank);
  switch (child.kind) {
    case ChildKind::front: return links_->of_front().heartbeat_ns(ipc::Side::upper);
    case ChildKind::engine: return links_->engine(engine)[0].heartbeat_ns(ipc::Side::upper);
    case ChildKind::text: return links_->text(rank).heartbeat_ns(ipc::Side::lower);
    case ChildKind::worker: return links_->engine(engine)[rank].heartbeat_ns(ipc::Side::lower);
    case ChildKind::relay: return child.told_beats;
    case ChildKind::media: return 0;
  }
  return 0;
}

void Children::kill(Child& child, std::string reason) {
  child.kill_reason = std::move(reason);
  log_(LogLevel::error, "child_killed", {kv("child", child.name), kv("why", child.kill_reason)});
  child.process.kill(SIGKILL);
}

void Children::distrust(const std::string& name, const std::string& why) {
  for (Child& child : all_) {
    if (child.name != name || child.kind != ChildKind::text || !child.running() || !child.kill_reason.empty())
      continue;
    kill(child, "was distrusted by the front: " + why);
  }
}

bool Children::every(bool Child::*is) const {
  return std::all_of(all_.begin(), all_.end(),
                     [is](const Child& child) { return child.kind == ChildKind::media || child.*is; });
}

}  // namespace troupe::supervisor
