#include "actors/topology.h"

#include "actors/cache/cache_actor.h"
#include "actors/metrics/metrics_actor.h"
#include "actors/scheduler/scheduler_actor.h"
#include "actors/tokenizer/tokenizer_actor.h"
#include "actors/worker/worker_link_actor.h"
#include "base/check.h"

namespace troupe {
namespace {

template <class Handle>
RootChild child(const char* name, const Handle& handle) {
  for (const Role& role : kRoles) {
    if (std::string_view(role.name) == name) return {name, role.on_down, caf::actor_cast<caf::actor>(handle), {}};
  }
  TROUPE_CHECK(!"an actor without a row in the table");
  return {};
}

tokenizer_actor spawn_tokenizer(caf::actor_system& system, const std::shared_ptr<const Encoder>& encoder, const Log& log) {
  return system.spawn<caf::detached>(tokenizer_behavior, *encoder, log);
}

}  // namespace

Cast spawn_cast(caf::actor_system& system, CastSetup setup) {
  RootParts root{{}, {}, setup.log("root")};

  auto metrics = system.spawn(metrics_behavior, setup.constants, setup.log("metrics"));
  root.children.push_back(child("metrics", metrics));

  auto link = system.spawn(worker_link_behavior,
                           WorkerLinkParts{setup.link, setup.spec_hash, 0, setup.log("worker_link")});
  root.children.push_back(child("worker_link", link));

  auto cache = system.spawn(cache_behavior, CacheParts{link, setup.log("cache")});
  root.children.push_back(child("cache", cache));

  auto scheduler = system.spawn(scheduler_behavior, SchedulerParts{setup.options.scheduler, cache, link, metrics,
                                                                   setup.log("scheduler")});
  root.children.push_back(child("scheduler", scheduler));

  auto tokenizers = std::make_shared<std::vector<tokenizer_actor>>();
  auto hosts = std::make_shared<std::vector<session_host_actor>>();
  const Log tokenizer_log = setup.log("tokenizer");
  for (std::uint32_t i = 0; i < setup.tokenizers; ++i) {
    tokenizers->push_back(spawn_tokenizer(system, setup.encoder, tokenizer_log));
    root.children.push_back(child("tokenizer", tokenizers->back()));
    root.children.back().respawn = [&system, encoder = setup.encoder, tokenizer_log, hosts, i] {
      auto fresh = spawn_tokenizer(system, encoder, tokenizer_log);
      for (const auto& host : *hosts) caf::anon_send(host, TokenizerUp{i, fresh});
      return caf::actor_cast<caf::actor>(fresh);
    };
  }

  for (std::uint32_t io = 0; io < setup.io_threads; ++io) {
    hosts->push_back(system.spawn(session_host_behavior, SessionHostParts{io, setup.sessions, *tokenizers, scheduler,
                                                                          metrics, setup.deliver, setup.log("session")}));
    root.children.push_back(child("session", hosts->back()));
  }

  auto gateway = system.spawn(gateway_behavior, GatewayParts{*hosts, metrics, setup.health, setup.deliver,
                                                             setup.config_json, setup.options.http.max_concurrency,
                                                             setup.log("gateway")});
  root.children.push_back(child("gateway", gateway));

  caf::anon_send(link, Attach{cache, scheduler, gateway});
  root.ports = {gateway, scheduler, cache};
  return {system.spawn(root_behavior, std::move(root)), gateway, metrics};
}

std::string topology_markdown() {
  std::string out =
      "# Actors of the engine process\n\nWritten from the table in actors/topology.h; a test compares the two.\n\n"
      "```mermaid\ngraph LR\n  HTTP --> gateway --> session --> tokenizer\n  session -->|Submit| scheduler\n"
      "  scheduler -->|StepTokens| session\n  scheduler <-->|asks, grants| cache\n  scheduler -->|plans| worker_link\n"
      "  cache -->|commands| worker_link\n  worker_link -->|results| scheduler\n  worker_link <-->|rings| worker\n"
      "  scheduler -.-> metrics\n  session -.-> metrics\n```\n\n"
      "Start order is the order of the rows, stop order the reverse.\n\n"
      "| actor | when it dies | runs on | bounded by | when that is used up | why |\n|---|---|---|---|---|---|\n";
  for (const Role& role : kRoles) {
    out += std::string("| ") + role.name + " | " + (role.on_down == OnDown::restart ? "restart" : "escalate") + " | " +
           role.thread + " | " + role.bound + " | " + role.when_full + " | " + role.why + " |\n";
  }
  return out;
}

}  // namespace troupe
