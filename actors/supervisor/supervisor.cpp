#include "actors/supervisor/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "actors/supervisor/child.h"
#include "actors/supervisor/premises.h"
#include "actors/supervisor/say.h"
#include "actors/supervisor/status_desk.h"
#include "config/parse.h"

namespace troupe::supervisor {

namespace {

// How often hung and late children are looked for.
constexpr Duration kWatchPeriod = std::chrono::milliseconds(500);
// The engine ends its drain by itself; this is what it may be late.
constexpr Duration kDrainSlack = std::chrono::seconds(4);

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

class Supervisor {
 public:
  explicit Supervisor(SupervisorSetup setup)
      : setup_(std::move(setup)), restarts_(limits(setup_)), desk_(setup_.status_patience) {}

  int run() {
    take_signals();
    if (Status status = prepare(); !status.ok()) {
      fail(status.message, config::exit_code(status));
      children_.clear();
      return exit_code_;
    }
    while (phase_ != Phase::ended) turn();
    setup_.log(LogLevel::info, "ended", {kv("exit_code", exit_code_)});
    return exit_code_;
  }

 private:
  enum class Phase { running, draining, stopping, ended };

  static RestartLimits limits(const SupervisorSetup& setup) {
    RestartLimits limits = setup.restarts;
    limits.max_restarts = setup.options.process.max_restarts;
    limits.window = std::chrono::seconds(setup.options.process.restart_window_s);
    return limits;
  }

  // ------------------------------------------------------------------------------------- start

  void take_signals();
  Status prepare();

  // -------------------------------------------------------------------------------------- loop

  void turn();
  TimePoint next_deadline() const;
  void on_signal();
  void on_control(Child& child);
  void on_death(Child& child);
  void on_time(TimePoint now);
  void hand_out(const ipc::PortLock& lock, int fd);

  // ------------------------------------------------------------------------------------ children

  Child& engine() { return children_.front(); }
  void start(Child& child);
  void restart_or_give_up(Child& child, const std::string& how);
  void watch(Child& child, TimePoint now, Duration since_last);
  void doom(Child& child, std::string verdict);
  void message(Child& child, const Packet& packet);
  void became_ready(Child& child);

  // ----------------------------------------------------------------------------------------- end

  void fail(const std::string& why, int code);
  void begin_drain();
  void begin_stop();
  void ask_to_end(Child& child);
  void stop_further(TimePoint now);
  void kill_all();

  std::string state();
  StatusPage page(bool engine_answered);

  SupervisorSetup setup_;
  RestartPolicy restarts_;
  StatusDesk desk_;
  TimePoint began_ = Clock::now();
  TimePoint watched_ = began_;
  ipc::Fd signals_;
  std::optional<Premises> premises_;
  std::vector<Child> children_;  // the engine, then the workers by rank

  Phase phase_ = Phase::running;
  int exit_code_ = 0;
  TimePoint drain_until_;
  std::size_t stopping_ = 0;          // the child that is being stopped
  std::optional<TimePoint> kill_at_;  // unset: it has not been asked yet
};

// ------------------------------------------------------------------------------------------ start

// Before the first log line: the thread that it starts inherits the mask, and no signal goes astray there.
void Supervisor::take_signals() {
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGTERM);
  sigaddset(&taken, SIGINT);
  sigprocmask(SIG_BLOCK, &taken, nullptr);
  signals_.reset(signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
}

Status Supervisor::prepare() {
  config::Options options = setup_.options;
  auto summary = setup_.preflight(options);
  if (!summary.ok()) return summary.status();
  auto premises = Premises::take(std::move(options), setup_.ranks);
  if (!premises.ok()) return premises.status();
  premises_ = std::move(*premises);
  if (!summary->empty() && summary->back() != '\n') *summary += '\n';
  say(STDOUT_FILENO, *summary + premises_->summary());
  setup_.log(
      LogLevel::info, "started",
      {kv("pid", getpid()), kv("port", premises_->options.http.port), kv("model", premises_->page().model)});
  children_ = premises_->make_children(setup_.words_before);
  for (Child& child : children_) {
    if (Status status = child.start(setup_.executable, Clock::now()); !status.ok()) return status;
    setup_.log(LogLevel::info, "child_started", {kv("child", child.name), kv("pid", child.process.pid())});
  }
  return {};
}

// ------------------------------------------------------------------------------------------- loop

void Supervisor::turn() {
  // What each descriptor means when it is ready. A child's words are read before its death is handled.
  std::vector<pollfd> fds;
  std::vector<std::function<void()>> actions;
  const auto add = [&](int fd, std::function<void()> action) {
    fds.push_back({fd, POLLIN, 0});
    actions.push_back(std::move(action));
  };
  add(signals_.get(), [this] { on_signal(); });
  for (Child& child : children_) {
    if (child.control.open()) add(child.control.fd(), [this, &child] { on_control(child); });
  }
  for (Child& child : children_) {
    if (child.running()) add(child.process.pidfd(), [this, &child] { on_death(child); });
  }
  add(premises_->ports.http.listen_fd(), [this] {
    if (ipc::Fd client = premises_->ports.http.accept_peer(); client.valid()) {
      desk_.ask(std::move(client), engine().control.open() ? &engine().control : nullptr, Clock::now());
    }
  });
  for (std::size_t rank = 0; rank < premises_->links.size(); ++rank) {
    add(premises_->ports.step_queues[rank].listen_fd(),
        [this, rank] { hand_out(premises_->ports.step_queues[rank], premises_->links[rank].step.get()); });
    add(premises_->ports.cache_queues[rank].listen_fd(),
        [this, rank] { hand_out(premises_->ports.cache_queues[rank], premises_->links[rank].cache.get()); });
  }

  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next_deadline() - Clock::now()).count();
  if (poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(wait, 0, 60'000))) > 0) {
    for (std::size_t i = 0; i < fds.size() && phase_ != Phase::ended; ++i) {
      if (fds[i].revents != 0) actions[i]();
    }
  }
  if (phase_ != Phase::ended) on_time(Clock::now());
}

TimePoint Supervisor::next_deadline() const {
  TimePoint next = Clock::now() + kWatchPeriod;
  for (const Child& child : children_) {
    if (child.restart_at) next = std::min(next, *child.restart_at);
  }
  if (desk_.deadline()) next = std::min(next, *desk_.deadline());
  if (phase_ == Phase::draining) next = std::min(next, drain_until_);
  if (phase_ == Phase::stopping) next = std::min(next, kill_at_.value_or(Clock::now()));
  return next;
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    setup_.log(LogLevel::info, "signal", {kv("signal", info.ssi_signo), kv("from_pid", info.ssi_pid)});
    if (phase_ == Phase::running) {
      begin_drain();
    } else if (phase_ != Phase::ended) {
      kill_all();
    }
  }
}

void Supervisor::on_control(Child& child) {
  for (;;) {
    const Packet packet = child.control.receive(TimePoint{});
    if (packet.kind == Packet::Kind::timeout) return;
    if (packet.kind == Packet::Kind::closed) {
      child.control.close();  // the pidfd tells the rest
      return;
    }
    message(child, packet);
  }
}

void Supervisor::message(Child& child, const Packet& packet) {
  const std::string event = packet.text("event");
  if (event == "state") {
    child.state = packet.text("state");
    setup_.log(LogLevel::info, "child_state", {kv("child", child.name), kv("state", child.state)});
    if (child.state == "ready") became_ready(child);
  } else if (event == "status" && &child == &engine()) {
    if (desk_.answered(packet)) desk_.reply(page(true));
  } else if (event == "served") {
    restarts_.served();
  } else if (event == "fatal") {
    child.fatal = packet.text("message");
    setup_.log(LogLevel::error, "child_fatal", {kv("child", child.name), kv("message", child.fatal)});
  }
}

void Supervisor::became_ready(Child& child) {
  const bool first = &child == &engine() && !child.ever_ready;
  child.ready = child.ever_ready = true;
  if (!first) return;
  const config::HttpOptions& http = premises_->options.http;
  const bool is_v6 = http.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + http.host + "]" : http.host;
  char after[32];
  std::snprintf(after, sizeof after, " after %.1f s\n", seconds(Clock::now() - began_));
  say(STDOUT_FILENO, "ready     http://" + host + ":" + std::to_string(http.port) + after);
}

void Supervisor::on_death(Child& child) {
  const std::string how = child.bury();
  ++child.deaths;
  const bool expected = phase_ == Phase::stopping || (phase_ == Phase::draining && &child == &engine());
  setup_.log(expected ? LogLevel::info : LogLevel::error, "child_ended",
             {kv("child", child.name), kv("how", how)});

  // From here on nothing that it left in the rings counts.
  for (std::size_t rank = 0; rank < premises_->monitors.size(); ++rank) {
    if (child.side == ipc::Side::engine || static_cast<int>(rank) == child.rank)
      premises_->monitors[rank].reaped(child.side);
  }
  if (child.side == ipc::Side::worker && engine().control.open()) {
    (void)engine().control.send({{"do", "worker_down"}, {"rank", child.rank}, {"reason", how}});
  }
  switch (phase_) {
    case Phase::running: restart_or_give_up(child, how); break;
    case Phase::draining:
      if (&child != &engine()) break;
      if (child.last_exit.signal != 0 || child.last_exit.code != 0)
        fail("the drain was cut short: " + how, 1);
      begin_stop();
      break;
    case Phase::stopping: stop_further(Clock::now()); break;
    case Phase::ended: break;
  }
}

void Supervisor::hand_out(const ipc::PortLock& lock, int fd) {
  const ipc::Fd peer = lock.accept_peer();
  if (!peer.valid()) return;
  const Status sent = ipc::send_fds(peer.get(), std::array{fd});
  setup_.log(LogLevel::info, "ring_handed_out",
             {kv("kind", ipc::name_of(lock.kind())), kv("port", lock.port()), kv("ok", sent.ok())});
}

void Supervisor::on_time(TimePoint now) {
  if (desk_.deadline() && now >= *desk_.deadline()) desk_.reply(page(false));
  // Only time in which this process ran counts as silence: a machine or container that was stopped for a
  // minute has stopped the children as well.
  const Duration since_last = std::min(now - watched_, 2 * kWatchPeriod);
  watched_ = now;
  for (Child& child : children_) {
    if (phase_ == Phase::running && child.restart_at && now >= *child.restart_at) start(child);
    if (child.running()) watch(child, now, since_last);
  }
  if (phase_ == Phase::draining && now >= drain_until_) begin_stop();
  if (phase_ == Phase::stopping) stop_further(now);
}

// --------------------------------------------------------------------------------------- children

void Supervisor::start(Child& child) {
  const Status status = child.start(setup_.executable, Clock::now());
  if (!status.ok()) {  // no memory or no pid for a fork: as good as a death
    restart_or_give_up(child, child.name + " cannot be started: " + status.message);
    return;
  }
  ++child.restarts;
  setup_.log(LogLevel::info, "child_restarted",
             {kv("child", child.name), kv("pid", child.process.pid()), kv("restarts", child.restarts)});
  if (child.side == ipc::Side::worker && engine().control.open()) {
    (void)engine().control.send({{"do", "worker_up"}, {"rank", child.rank}});
  }
}

void Supervisor::restart_or_give_up(Child& child, const std::string& how) {
  if (!child.ever_ready && !child.fatal.empty()) {
    fail(child.fatal, 1);
    begin_stop();
    return;
  }
  const TimePoint now = Clock::now();
  const auto delay = restarts_.died(now);
  if (delay) {
    child.restart_at = now + *delay;
    return;
  }
  std::string counts;
  for (const Child& one : children_) {
    if (one.deaths > 0) counts += (counts.empty() ? "" : ", ") + one.name + " " + std::to_string(one.deaths);
  }
  fail("giving up after " + std::to_string(restarts_.deaths()) + " deaths within " +
           std::to_string(setup_.options.process.restart_window_s) + " s (" + counts + "); the last: " + how,
       1);
  begin_stop();
}

// A hung or late child is killed; its death is then handled like any other.
void Supervisor::watch(Child& child, TimePoint now, Duration since_last) {
  const config::ProcessOptions& process = setup_.options.process;
  if (!child.verdict.empty()) return;
  if (!child.ready) {
    if (now - child.started > std::chrono::seconds(process.start_timeout_s)) {
      doom(child, "was not ready after " + std::to_string(process.start_timeout_s) + " s");
    }
    return;
  }
  const std::int64_t beat =
      premises_->monitors[static_cast<std::size_t>(child.rank)].heartbeat_ns(child.side);
  if (beat == 0 || beat != child.last_beat) {
    child.last_beat = beat;
    child.silence = {};
  } else if ((child.silence += since_last) > std::chrono::seconds(process.worker_timeout_s)) {
    doom(child, "gave no sign of life for " + std::to_string(process.worker_timeout_s) + " s");
  }
}

void Supervisor::doom(Child& child, std::string verdict) {
  child.verdict = std::move(verdict);
  setup_.log(LogLevel::error, "child_killed", {kv("child", child.name), kv("why", child.verdict)});
  child.process.kill(SIGKILL);
}

// -------------------------------------------------------------------------------------------- end

void Supervisor::fail(const std::string& why, int code) {
  exit_code_ = code;
  setup_.log(LogLevel::error, "failed", {kv("why", why), kv("exit_code", code)});
  say(STDERR_FILENO, "troupe: " + why + "\n");
}

void Supervisor::begin_drain() {
  phase_ = Phase::draining;
  for (Child& child : children_) child.restart_at.reset();
  const int patience_s = setup_.options.process.drain_timeout_s;
  drain_until_ = Clock::now() + std::chrono::seconds(patience_s) + kDrainSlack;
  setup_.log(LogLevel::info, "draining", {kv("patience_s", patience_s)});
  say(STDOUT_FILENO, "draining  running requests may finish for " + std::to_string(patience_s) +
                         " s; once more to stop at once\n");
  engine().asked = engine().running() && engine().control.open() &&
                   engine().control.send({{"do", "drain"}, {"deadline_s", patience_s}}).ok();
  if (!engine().asked) begin_stop();
}

void Supervisor::begin_stop() {
  phase_ = Phase::stopping;
  stopping_ = 0;
  kill_at_.reset();
  for (Child& child : children_) child.restart_at.reset();
  stop_further(Clock::now());
}

// Politely, if it has not been asked already: an engine can still send its clients an error event.
void Supervisor::ask_to_end(Child& child) {
  const nlohmann::json order = child.side == ipc::Side::worker
                                   ? nlohmann::json{{"do", "stop"}}
                                   : nlohmann::json{{"do", "drain"}, {"deadline_s", 0}};
  if (child.asked || !child.control.open() || !child.control.send(order).ok()) child.process.kill(SIGKILL);
  child.asked = true;
}

// One child after the other, the engine first: a worker must not vanish under plans.
void Supervisor::stop_further(TimePoint now) {
  for (; stopping_ < children_.size(); ++stopping_, kill_at_.reset()) {
    Child& child = children_[stopping_];
    if (!child.running()) continue;
    if (!kill_at_) {
      child.state = "stopping";
      ask_to_end(child);
      kill_at_ = now + setup_.grace;
    } else if (now >= *kill_at_) {
      doom(child, "did not end when asked");
      kill_at_ = now + setup_.grace;
    }
    return;
  }
  phase_ = Phase::ended;
}

void Supervisor::kill_all() {
  setup_.log(LogLevel::warning, "stopping_at_once", {});
  children_.clear();
  phase_ = Phase::ended;
}

// ----------------------------------------------------------------------------------------- status

std::string Supervisor::state() {
  if (phase_ != Phase::running) return "draining";
  const auto all = [&](bool Child::*is) {
    return std::all_of(children_.begin(), children_.end(), [is](const Child& child) { return child.*is; });
  };
  if (!all(&Child::ever_ready)) return "loading";
  return all(&Child::ready) && engine().state == "ready" ? "ready" : "restarting";
}

StatusPage Supervisor::page(bool engine_answered) {
  const TimePoint now = Clock::now();
  StatusPage page = premises_->page();
  page.state = state();
  page.processes.push_back({"supervisor", getpid(), seconds(now - began_), 0, page.state});
  for (const Child& child : children_) {
    page.processes.push_back({child.name, child.process.pid(),
                              child.running() ? seconds(now - child.started) : 0, child.restarts,
                              child.state});
  }
  if (engine_answered) {
    desk_.fill(page);
  } else if (page.state == "ready") {
    page.state = "restarting";
  }
  return page;
}

}  // namespace

int supervise(SupervisorSetup setup) { return Supervisor(std::move(setup)).run(); }

}  // namespace troupe::supervisor
