#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "actors/engine/engine_main.h"
#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/control.h"
#include "actors/worker/worker_loop.h"
#include "base/log.h"
#include "model/make_executor.h"
#include "model/preflight.h"

namespace troupe {
namespace {

using supervisor::Control;
using supervisor::Packet;

/// True when the supervisor has asked for the end, or is gone itself.
bool dismissed(Control& control) {
  const Packet packet = control.receive(TimePoint{});
  if (packet.kind == Packet::Kind::closed) return true;
  return packet.kind == Packet::Kind::message && packet.text("do") == "stop";
}

Status serve(const supervisor::ChildArguments& arguments, Control& control, const Log& log, const config::Options& options) {
  const TimePoint start = Clock::now();
  auto hash = model::model_spec_hash(options);
  if (!hash.ok()) return hash.status();
  auto executor = model::make_executor(options);
  if (!executor.ok()) return executor.status();
  const wire::Capacity capacity = (*executor)->capacity();
  log.info("loaded", {kv("device", (*executor)->device()), kv("weight_bytes", capacity.weight_bytes),
                      kv("kv_bytes", capacity.kv_bytes), kv("arena_bytes", capacity.arena_bytes),
                      kv("kv_blocks", capacity.kv_blocks), kv("max_model_len", capacity.max_model_len),
                      kv("seconds", std::chrono::duration<double>(Clock::now() - start).count())});
  auto link = ipc::WorkerEnd::attach(arguments.step_fd, arguments.cache_fd);
  if (!link.ok()) return link.status();
  control.tell({{"event", "state"}, {"state", "ready"}});
  return run_worker(*link, **executor, {*hash, arguments.rank}, log, [&control] { return dismissed(control); });
}

}  // namespace

int worker_main(const std::vector<std::string>& words) {
  const auto arguments = supervisor::parse_child_arguments(words);
  if (!arguments.ok()) {
    std::fprintf(stderr, "troupe worker: %s\n", arguments.status().message.c_str());
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
  Control control{ipc::Fd(arguments->control_fd)};
  auto options = supervisor::read_options_file(arguments->options_fd);
  Status status = options.status();
  Log log;
  if (options.ok()) {
    auto opened = Log::open("worker-" + std::to_string(arguments->rank), options->log);
    if (opened.ok()) log = *opened;
    status = serve(*arguments, control, log, *options);
  }
  if (!status.ok()) {
    log.error("fatal", {kv("why", status.message)});
    control.tell({{"event", "fatal"}, {"message", status.message}});
  }
  Log::flush(1000);
  return status.ok() ? 0 : 1;
}

}  // namespace troupe
