// The engine's critical path with its actors and rings: from the moment a worker's result is visible to the
// moment the next plan is, with 256 sequences running. The worker is a thread that answers at once with one
// token per row, so everything measured is the engine's. CPU time is the process's without that thread's;
// wall time is what the worker waited.
#include <caf/all.hpp>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "actors/cache/cache_actor.h"
#include "actors/link/front_link_actor.h"
#include "actors/link/message_codec.h"
#include "actors/scheduler/scheduler_actor.h"
#include "actors/worker/worker_link_actor.h"
#include "actors/worker/worker_loop.h"
#include "bench/cpu_clock.h"
#include "bench/report.h"
#include "http/client/load_client.h"
#include "model/make_executor.h"

namespace {

using namespace troupe;
using bench::cpu_us;

constexpr int kSequences = 256;
constexpr int kSteps = 1500;
constexpr int kWarmUp = 200;

struct PoolConfig : caf::actor_system_config {
  PoolConfig() {
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", std::size_t{1});
    set("logger.verbosity", caf::atom("quiet"));
  }
};

/// A worker that answers each plan at once, and times how long the next one takes to come.
class TimedWorker {
 public:
  explicit TimedWorker(ipc::LowerEnd link) : link_(std::move(link)) {}

  void run(Executor& executor) {
    WorkerLoop loop(link_, executor, {}, log_);
    if (!loop.begin().ok()) return;
    std::vector<std::byte> result;
    int pending = 0, full_steps = 0;
    double sent_wall = 0, sent_cpu = 0;
    while (full_steps < kWarmUp + kSteps) {
      const ipc::Received got =
          link_.receive(pending > 1 ? TimePoint{} : Clock::now() + std::chrono::seconds(5));
      if (got.kind == ipc::Received::Kind::record) {
        const auto* plan = got.view.as<wire::StepPlan>();
        const bool full = plan != nullptr && plan->rows.count == kSequences;
        if (full && sent_wall > 0 && ++full_steps > kWarmUp) {
          wall.push_back(static_cast<double>(now_ns()) * 1e-3 - sent_wall);
          cpu.push_back(cpu_us(CLOCK_PROCESS_CPUTIME_ID) - cpu_us(CLOCK_THREAD_CPUTIME_ID) - sent_cpu);
        }
        if (!executor.submit(got.view).ok()) return;
        ++pending;
        continue;
      }
      if (pending == 0) return;
      if (!executor.poll(result, TimePoint{}).value()) return;
      --pending;
      auto* header = reinterpret_cast<wire::Header*>(result.data());
      header->epoch = link_.epoch();
      sent_cpu = cpu_us(CLOCK_PROCESS_CPUTIME_ID) - cpu_us(CLOCK_THREAD_CPUTIME_ID);
      sent_wall = static_cast<double>(now_ns()) * 1e-3;
      link_.try_send(header->kind == wire::RecordKind::step_result ? ipc::Channel::step : ipc::Channel::cache,
                     result);
    }
  }

  std::vector<double> wall, cpu;

 private:
  ipc::LowerEnd link_;
  Log log_;
};

Submit requests() {
  Submit submit;
  for (std::uint64_t i = 0; i < kSequences; ++i) {
    SequenceSpec spec;
    spec.key = {1, i + 1};
    spec.prompt = {1, 2, 3, 4};
    spec.prompt_tokens = 4;
    spec.max_output_tokens = 8000;
    submit.sequences.push_back(std::move(spec));
  }
  return submit;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv);
  config::Options options;
  options.device.device = config::Device::echo;
  options.scheduler.max_model_len = 8192;
  options.scheduler.max_num_seqs = kSequences;
  options.scheduler.max_num_batched_tokens = 2048;

  auto fds = ipc::create_link();
  auto engine_end =
      std::make_shared<ipc::UpperEnd>(*ipc::UpperEnd::attach(fds->step.get(), fds->cache.get()));
  TimedWorker worker(*ipc::LowerEnd::attach(fds->step.get(), fds->cache.get()));

  PoolConfig config;
  caf::actor_system system(config);
  auto link = system.spawn(worker_link_behavior, WorkerLinkParts{engine_end, 0, 0, {}});
  auto cache = system.spawn(cache_behavior, CacheParts{link, {}});
  // The link to the front as it is in earnest; what comes out at its other end is counted and dropped.
  auto between = ipc::create_link();
  auto to_front = std::make_shared<Link>(*ipc::LowerEnd::attach(between->step.get(), between->cache.get()));
  Link front(*ipc::UpperEnd::attach(between->step.get(), between->cache.get()));
  const auto port = std::make_shared<FrontLinkPort>(to_front);
  auto scheduler =
      system.spawn(scheduler_behavior, SchedulerParts{options.scheduler, {}, cache, link, {port}, {}, {}});
  FrontLinkParts parts;
  parts.link = to_front;
  parts.topology = [] { return std::string(); };
  parts.scheduler = scheduler;
  parts.cache = cache;
  parts.ready = std::make_shared<std::atomic<bool>>(false);
  auto front_link = system.spawn(front_link_behavior, std::move(parts));
  std::jthread reader([&front](const std::stop_token& stop) {
    Pulse pulse;
    front.receive(
        stop, pulse,
        {[&front](const Arrival& arrival) {
           if (arrival.type == MessageType::link_up) {
             Bytes bytes;
             encode(requests(), bytes);
             front.send(MessageType::submit, 0, std::as_bytes(std::span(bytes)));
           }
           if (arrival.type == MessageType::step_tokens) front.took_step();
         },
         [](std::uint32_t) {}, [](const std::string& why) { std::fprintf(stderr, "%s\n", why.c_str()); }});
  });
  caf::anon_send(link, Attach{cache, scheduler, {front_link}});

  auto executor = model::make_executor(options);
  if (!executor.ok()) {
    std::fprintf(stderr, "%s\n", executor.status().message.c_str());
    return 1;
  }
  std::thread thread([&] { worker.run(**executor); });
  thread.join();

  if (worker.cpu.size() < kSteps) std::fprintf(stderr, "only %zu full steps were seen\n", worker.cpu.size());
  report.row({"engine.step_cpu_p50", http::percentile(worker.cpu, 50), "us", 0, 100, bench::Better::lower});
  report.row({"engine.step_cpu_p99", http::percentile(worker.cpu, 99), "us", 0, 300, bench::Better::lower});
  report.row({"engine.step_wall_p50", http::percentile(worker.wall, 50), "us", 0, 0, bench::Better::lower});
  report.row({"engine.step_wall_p99", http::percentile(worker.wall, 99), "us", 0, 0, bench::Better::lower});
  for (const auto& actor : {caf::actor_cast<caf::actor>(front_link), caf::actor_cast<caf::actor>(link),
                            caf::actor_cast<caf::actor>(scheduler), caf::actor_cast<caf::actor>(cache)}) {
    caf::anon_send_exit(actor, caf::exit_reason::kill);
  }
  return worker.cpu.empty() ? 1 : 0;
}
