#include "actors/supervisor/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>

#include "actors/supervisor/activity.h"
#include "actors/supervisor/children.h"
#include "actors/supervisor/descriptor_limit.h"
#include "actors/supervisor/local_requests.h"
#include "actors/supervisor/peers.h"
#include "actors/supervisor/resources.h"
#include "actors/supervisor/restart_request.h"
#include "actors/supervisor/service_manager.h"
#include "actors/supervisor/status_requests.h"
#include "actors/supervisor/stop_sequence.h"
#include "actors/supervisor/taken_signals.h"
#include "base/counted.h"
#include "config/parse.h"

namespace troupe::supervisor {
namespace {

// How often children are checked for silence and a late start.
constexpr Duration kWatchPeriod = std::chrono::milliseconds(500);
// How often the front is asked for the server's load.
constexpr Duration kSampleInterval = std::chrono::seconds(1);
// The same after it has not answered in time: while it waits for a part that stands still it does nothing
// else.
constexpr Duration kSampleRetry = std::chrono::seconds(10);
// How much later than its deadline the front may end its drain before it is stopped.
constexpr Duration kDrainSlack = std::chrono::seconds(4);

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

/// "1.4 s"
std::string in_seconds(Duration d) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds(d));
  return text;
}

class Supervisor {
 public:
  explicit Supervisor(SupervisorSetup setup)
      : setup_(std::move(setup)),
        console_(setup_.console),
        status_requests_(setup_.status_patience),
        children_(setup_.executable, ChildLimits::of(setup_.options.process, setup_.restarts), setup_.log) {}

  int run() {
    signals_ = TakenSignals::take();
    if (Status status = prepare(); !status.ok()) {
      fail(status.message, config::exit_code(status));
      children_.clear();
      return exit_code_;
    }
    while (phase_ != Phase::ended) poll_once();
    if (exit_code_ == 0) console_.tell("stopped   after " + in_seconds(Clock::now() - began_) + "\n");
    console_.clear();
    setup_.log(LogLevel::info, "ended", {kv("exit_code", exit_code_)});
    return exit_code_;
  }

 private:
  enum class Phase { running, draining, stopping, ended };

  Status prepare();

  void poll_once();
  TimePoint next_deadline() const;
  void on_signal();
  void on_hangup();
  Status renew_credentials();
  void on_control(Child& child);
  void on_message(Child& child, Packet& packet);
  void on_ready(Child& child);
  void on_exit(Child& child);
  void on_local_request(int fd);
  void on_time(TimePoint now);
  void tell_processes();
  void sample(TimePoint now);
  void show(TimePoint now);
  void notify(const std::string& state) { notify_service_manager(setup_.notify_socket, state); }

  void fail(const std::string& why, int code);
  void begin_drain();
  void begin_stop();
  void continue_stop(TimePoint now);
  void kill_all();

  std::string state();
  StatusPage page(bool engine_answered);

  SupervisorSetup setup_;
  Console console_;
  LocalRequests local_requests_;
  StatusRequests status_requests_;
  TimePoint began_ = Clock::now();
  nlohmann::json told_processes_;  // as the engine that runs knows them
  TokenRates rates_;
  TimePoint next_sample_{};
  std::optional<StatusPage> last_page_;  ///< as the engine answered; unset when it has not since it was asked
  TakenSignals signals_;
  std::optional<Resources> resources_;
  Children children_;
  std::optional<Peers> peers_;
  bool announced_ = false;  // that the server is ready
  Phase phase_ = Phase::running;
  int exit_code_ = 0;
  TimePoint drain_until_;
  std::optional<StopSequence> stop_;
};

// ------------------------------------------------------------------------------------------ start

Status Supervisor::prepare() {
  config::Options options = setup_.options;
  auto summary = setup_.preflight(options);
  if (!summary.ok()) return summary.status();
  auto narrowed = raise_descriptor_limit(options);
  if (!narrowed.ok()) return narrowed.status();
  if (!narrowed->empty()) {
    console_.warn("troupe: warning: " + *narrowed);
    setup_.log(LogLevel::warning, "fewer_connections", {kv("why", *narrowed)});
  }
  std::vector<RanksMemory> memories;
  for (int engine = 0; setup_.counts.ranks > 1 && setup_.make_ranks_memory && engine < setup_.counts.engines;
       ++engine) {
    auto made = setup_.make_ranks_memory(setup_.counts.ranks);
    if (!made.ok()) return made.status();
    memories.push_back(std::move(*made));
  }
  auto resources = Resources::take(std::move(options), setup_.counts, std::move(memories), Opening::listen,
                                   setup_.names_key ? setup_.names_key() : std::nullopt);
  if (!resources.ok()) return resources.status();
  resources_ = std::move(*resources);
  if (setup_.take_vocabulary) resources_->vocabulary = setup_.take_vocabulary();
  const Status models = setup_.take_models ? resources_->add_models(setup_.take_models()) : Status();
  if (!models.ok()) return models;
  if (setup_.take_patches) resources_->patches = setup_.take_patches();
  if (resources_->patches && !resources_->options.takes_fronts()) {  // what fronts send is decoded
    if (Status status = resources_->add_media(setup_.counts); !status.ok()) return status;
  }
  if (!summary->empty() && summary->back() != '\n') *summary += '\n';
  console_.tell(*summary + resources_->summary());
  setup_.log(LogLevel::info, "started",
             {kv("pid", getpid()), kv("port", resources_->options.http.port),
              kv("model", resources_->page().model)});
  peers_.emplace(*resources_, children_, console_, setup_.log, setup_.grace);
  return children_.start(resources_->make_children(setup_.words_before), resources_->monitors,
                         setup_.open_log);
}

// ------------------------------------------------------------------------------------------- loop

void Supervisor::poll_once() {
  // Each descriptor and what to do when it is readable. A child's messages come before its exit.
  const TimePoint began = Clock::now();
  std::vector<pollfd> fds;
  std::vector<std::function<void()>> actions;
  const auto add = [&](int fd, std::function<void()> action) {
    fds.push_back({fd, POLLIN, 0});
    actions.push_back(std::move(action));
  };
  add(signals_.fd.get(), [this] { on_signal(); });
  for (Child& child : children_.all()) {
    if (child.control.open()) add(child.control.fd(), [this, &child] { on_control(child); });
  }
  for (Child& child : children_.all()) {
    if (const int fd = child.output.fd(began); fd >= 0)
      add(fd, [&child] { child.output.read(Clock::now()); });
  }
  for (Child& child : children_.all()) {
    if (child.running()) add(child.process.pidfd(), [this, &child] { on_exit(child); });
  }
  peers_->poll(add);
  const auto listen = [&](const ipc::PortLock& port) {
    add(port.listen_fd(), [this, &port] {
      if (ipc::Fd client = port.accept_peer(); client.valid())
        local_requests_.add(std::move(client), Clock::now());
    });
  };
  listen(resources_->ports.http);
  for (const ipc::PortLock& port : resources_->ports.step_queues) listen(port);
  for (const int fd : local_requests_.descriptors()) add(fd, [this, fd] { on_local_request(fd); });

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
  if (const auto restart = children_.next_restart()) next = std::min(next, *restart);
  if (const auto reply = status_requests_.deadline()) next = std::min(next, *reply);
  if (const auto line = local_requests_.deadline()) next = std::min(next, *line);
  if (phase_ == Phase::draining) next = std::min(next, drain_until_);
  if (phase_ == Phase::stopping) next = std::min(next, stop_->deadline());
  return next;
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  while (read(signals_.fd.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    setup_.log(LogLevel::info, "signal", {kv("signal", info.ssi_signo), kv("from_pid", info.ssi_pid)});
    if (info.ssi_signo == SIGHUP) {
      on_hangup();
    } else if (phase_ == Phase::running) {
      begin_drain();
    } else if (phase_ != Phase::ended) {
      kill_all();
    }
  }
}

// When a terminal closes, both the kernel and the shell send the signal: a second one is no request to hurry.
void Supervisor::on_hangup() {
  if (phase_ != Phase::running) return;
  if (signals_.from_terminal) {
    begin_drain();
    return;
  }
  if (!setup_.read_credentials) return;
  if (const Status status = renew_credentials(); !status.ok()) {
    setup_.log(LogLevel::error, "credentials_kept", {kv("why", status.message)});
    console_.warn("troupe: certificate and keys stay as they were: " + status.message);
    return;
  }
  setup_.log(LogLevel::info, "credentials_renewed", {});
  console_.tell("renewed   certificate and keys\n");
}

Status Supervisor::renew_credentials() {
  config::Options renewed = resources_->options;
  if (Status status = setup_.read_credentials(renewed.http); !status.ok()) return status;
  auto file = make_options_file(renewed);
  if (!file.ok()) return file.status();
  Child& front = children_.front();
  if (front.running() && front.control.open()) {
    if (Status sent = front.control.send({{"do", "renew"}}, file->get()); !sent.ok()) return sent;
  }
  resources_->renew(renewed.http, std::move(*file));
  front.arguments.options_fd = resources_->options_file.get();
  return {};
}

void Supervisor::on_control(Child& child) {
  for (;;) {
    Packet packet = child.control.receive(TimePoint{});
    if (packet.kind == Packet::Kind::timeout) return;
    if (packet.kind == Packet::Kind::closed) {
      child.control.close();  // its exit follows through the pidfd
      return;
    }
    on_message(child, packet);
  }
}

void Supervisor::on_message(Child& child, Packet& packet) {
  const std::string event = packet.text("event");
  if (event == "state") {
    child.state = packet.text("state");
    setup_.log(LogLevel::info, "child_state", {kv("child", child.name), kv("state", child.state)});
    if (child.state == "ready") on_ready(child);
  } else if (event == "status" && child.kind == ChildKind::front) {
    if (!status_requests_.answered(packet)) return;
    last_page_ = page(true);
    rates_.sample(Clock::now(), last_page_->tokens);
    last_page_->rates = rates_.rates();
    status_requests_.reply(*last_page_);
    show(Clock::now());
  } else if (event == "loading") {
    child.loaded_bytes = packet.number("done_bytes");
    child.load_bytes = packet.number("total_bytes");
    show(Clock::now());
  } else if (event == "silent") {
    child.silent_part = packet.text("part");
    setup_.log(child.silent_part.empty() ? LogLevel::info : LogLevel::warning, "silent",
               {kv("child", child.name), kv("part", child.silent_part)});
  } else if (event == "distrusted" && child.kind == ChildKind::front) {
    children_.distrust(packet.text("child"), packet.text("why"));
  } else if (event == "beat" && child.kind == ChildKind::relay) {
    ++child.told_beats;
  } else if (event == "peers") {
    peers_->on_peers(child, packet);
  } else if (event == "served") {
    children_.served();
  } else if (child.kind == ChildKind::worker && peers_->take(child, packet, Clock::now())) {
    return;
  } else if (event == "fatal") {
    child.fatal = packet.text("message");
    setup_.log(LogLevel::error, "child_fatal", {kv("child", child.name), kv("message", child.fatal)});
  }
}

void Supervisor::on_ready(Child& child) {
  if (!child.ready && child.restarts > 0 && !child.orderly) {
    console_.warn("troupe: " + child.name + " is back after " + in_seconds(Clock::now() - child.ended) +
                  ", " + counted(child.restarts, "restart") + " so far");
  }
  child.ready = child.ever_ready = true;
  // A front is ready when it can serve, but the relay in its place is before the engine is.
  const bool every = resources_->options.takes_fronts();
  if (every ? !children_.every(&Child::ready) : child.kind != ChildKind::front) return;
  if (std::exchange(announced_, true)) return;
  notify("READY=1");
  console_.tell("ready     " + resources_->place() + " after " + in_seconds(Clock::now() - began_) + "\n");
}

void Supervisor::on_exit(Child& child) {
  const bool is_front = child.kind == ChildKind::front;
  const std::string how = children_.take_exit(child);
  const bool asked = child.restart_by.has_value();
  const bool expected =
      asked || child.orderly || phase_ == Phase::stopping || (phase_ == Phase::draining && is_front);
  setup_.log(expected ? LogLevel::info : LogLevel::error, "child_ended",
             {kv("child", child.name), kv("how", how), kv("follows", child.follows)});
  switch (phase_) {
    case Phase::running:
      if (const Status status = children_.plan_restart(child, how); !status.ok()) {
        fail(status.message, 1);
        begin_stop();
      } else if (!expected && child.failed_starts < 2) {  // then it is said once
        console_.warn("troupe: " + how + "; it is started again");
      }
      break;
    case Phase::draining:
      if (!is_front) {  // what drains needs it
        if (!children_.plan_restart(child, how).ok()) begin_stop();
        break;
      }
      if (child.last_exit.signal != 0 || child.last_exit.code != 0)
        fail("the drain was cut short: " + how, 1);
      begin_stop();
      break;
    case Phase::stopping: continue_stop(Clock::now()); break;
    case Phase::ended: break;
  }
}

void Supervisor::on_local_request(int fd) {
  auto request = local_requests_.read(fd);
  if (!request) return;
  auto& [what, client, attached] = *request;
  if (what.kind == LocalRequest::Kind::join)
    return peers_->join(*std::move(request), phase_ == Phase::running, Clock::now());
  if (what.kind == LocalRequest::Kind::status) {
    const Control& front = children_.front().control;
    status_requests_.ask(std::move(client), front.open() ? &front : nullptr, Clock::now());
    return;
  }
  const config::ProcessOptions& process = setup_.options.process;
  const RestartTerms terms{std::chrono::seconds(process.drain_timeout_s), kDrainSlack, setup_.grace,
                           setup_.installed, setup_.executable};
  const Status status = phase_ == Phase::running ? begin_restart(children_, what, terms, Clock::now())
                                                 : failure(Code::unavailable, "the server is " + state());
  setup_.log(LogLevel::info, "restart_asked",
             {kv("child", what.child), kv("ok", status.ok()), kv("why", status.message)});
  answer(client, restart_answer(status));
}

// The front itself is among them, so a new one is told.
void Supervisor::tell_processes() {
  const Control& front = children_.front().control;
  if (!front.open()) return;
  nlohmann::json processes = {{{"name", "supervisor"}, {"pid", getpid()}, {"restarts", 0}}};
  for (const Child& child : children_.all()) {
    processes.push_back({{"name", child.name}, {"pid", child.process.pid()}, {"restarts", child.restarts}});
  }
  if (processes == told_processes_) return;
  if (front.send({{"do", "processes"}, {"processes", processes}}).ok())
    told_processes_ = std::move(processes);
}

void Supervisor::on_time(TimePoint now) {
  if (status_requests_.deadline() && now >= *status_requests_.deadline()) {
    last_page_.reset();
    next_sample_ = now + kSampleRetry;
    status_requests_.reply(page(false));
  }
  local_requests_.expire(now);
  sample(now);
  show(now);
  if (phase_ == Phase::running || phase_ == Phase::draining) {
    if (const Status status = children_.restart_due(now); !status.ok()) {
      fail(status.message, 1);
      begin_stop();
    }
  }
  children_.watch(now, kWatchPeriod);
  if (phase_ != Phase::stopping) peers_->tick(now);
  tell_processes();
  if (phase_ == Phase::draining && now >= drain_until_) begin_stop();
  if (phase_ == Phase::stopping) continue_stop(now);
}

void Supervisor::sample(TimePoint now) {
  const Child& front = children_.front();
  if (now < next_sample_ || phase_ != Phase::running || !front.ready || !front.silent_part.empty()) return;
  next_sample_ = now + kSampleInterval;
  status_requests_.sample(front.control, now);
}

void Supervisor::show(TimePoint now) {
  const std::string now_state = state();
  if (phase_ == Phase::running && now_state == "loading") {
    std::vector<std::string> parts = loading_parts(children_.loading(seconds(Clock::now() - began_)));
    parts.front() = "loading " + parts.front();
    console_.show(parts, now);
  } else if (phase_ == Phase::running && now_state == "ready" && last_page_) {
    if (console_.live() || is_busy(*last_page_)) console_.show(load_parts(*last_page_), now);
  } else if (console_.live()) {
    console_.show({now_state}, now);
  }
}

// -------------------------------------------------------------------------------------------- end

void Supervisor::fail(const std::string& why, int code) {
  exit_code_ = code;
  setup_.log(LogLevel::error, "failed", {kv("why", why), kv("exit_code", code)});
  console_.fail("troupe: " + why);
}

void Supervisor::begin_drain() {
  phase_ = Phase::draining;
  const int patience_s = setup_.options.process.drain_timeout_s;
  drain_until_ = Clock::now() + std::chrono::seconds(patience_s) + kDrainSlack;
  setup_.log(LogLevel::info, "draining", {kv("patience_s", patience_s)});
  notify("STOPPING=1");
  console_.tell("draining  running requests may finish for " + std::to_string(patience_s) +
                " s; once more to stop at once\n");
  Child& front = children_.front();
  front.asked_to_end = front.running() && front.control.open() &&
                       front.control.send({{"do", "drain"}, {"deadline_s", patience_s}}).ok();
  if (!front.asked_to_end) begin_stop();
}

void Supervisor::begin_stop() {
  phase_ = Phase::stopping;
  children_.cancel_restarts();
  stop_.emplace(children_, setup_.grace);
  continue_stop(Clock::now());
}

void Supervisor::continue_stop(TimePoint now) {
  if (stop_->advance(now)) phase_ = Phase::ended;
}

void Supervisor::kill_all() {
  setup_.log(LogLevel::warning, "stopping_at_once", {});
  children_.clear();
  phase_ = Phase::ended;
}

// ----------------------------------------------------------------------------------------- status

std::string Supervisor::state() {
  if (phase_ != Phase::running) return "draining";
  if (!children_.every(&Child::ever_ready)) return "loading";
  // One of several engines is enough: the front knows.
  const bool all = setup_.counts.engines != 1 ? children_.front().ready : children_.every(&Child::ready);
  return all && children_.front().state == "ready" ? "ready" : "restarting";
}

StatusPage Supervisor::page(bool engine_answered) {
  const TimePoint now = Clock::now();
  StatusPage page = resources_->page();
  page.state = state();
  peers_->fill(page);
  page.processes.push_back({"supervisor", getpid(), seconds(now - began_), 0, page.state, ""});
  children_.fill(page, now);
  if (engine_answered) {
    status_requests_.fill(page);
    page.rates = rates_.rates();
  } else if (page.state == "ready") {
    page.state = "restarting";
  }
  return page;
}

}  // namespace

int supervise(SupervisorSetup setup) { return Supervisor(std::move(setup)).run(); }

}  // namespace troupe::supervisor
