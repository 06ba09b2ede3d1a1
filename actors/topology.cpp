#include "actors/topology.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "actors/cache/cache_actor.h"
#include "actors/grammar/grammar_actor.h"
#include "actors/metrics/engine_totals.h"
#include "actors/metrics/metrics_actor.h"
#include "actors/scheduler/scheduler_actor.h"
#include "actors/tokenizer/tokenizer_actor.h"
#include "actors/worker/rank_group_actor.h"
#include "actors/worker/worker_link_actor.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/usable_cores.h"

namespace troupe {
namespace {

/// An engine that has given no sign of life for so long gets no new request while another one does.
constexpr auto kEngineResponds = std::chrono::nanoseconds(std::chrono::milliseconds(1500)).count();

/// Looking up a form of 8 MB takes less than a second.
constexpr auto kFormSilence = std::chrono::seconds(30);

/// Measuring a file of 64 MiB takes less than a second.
constexpr auto kFileSilence = std::chrono::seconds(30);

/// What GRAMMAR is given; nothing of it blocks or starts a process.
GrammarParts grammar_parts(const EngineSetup& setup, workers_actor link) {
  const config::LimitOptions& limits = setup.options.limits;
  GrammarParts parts;
  parts.link = std::move(link);
  parts.vocabulary = setup.vocabulary;
  parts.stop_ids = setup.eos_ids;
  // On a large machine many rows wait for the same moment; on a small one the cores are the model's.
  parts.helpers = std::clamp(usable_cores() / 8, 1u, 4u);
  parts.log = setup.log("grammar");
  FormServiceSetup& forms = parts.forms;
  forms.cache_bytes = static_cast<std::size_t>(limits.grammar_cache_bytes);
  FormProcessSetup& process = forms.process;
  process.vocabulary = std::make_shared<const FormVocabulary>(setup.texts, setup.vocabulary, setup.eos_ids);
  process.any_whitespace = !setup.options.guided.disable_any_whitespace;
  process.executable = setup.executable;
  process.times.time = std::chrono::milliseconds(limits.grammar_timeout_ms);
  process.form_limits = {
      {limits.max_schema_depth, limits.max_schema_properties, limits.max_schema_enum_values,
       static_cast<std::size_t>(limits.max_schema_name_chars),
       static_cast<std::size_t>(limits.max_grammar_bytes)},
      static_cast<std::size_t>(limits.max_grammar_bytes),
      limits.max_grammar_depth};
  return parts;
}

/// With the key of the table, whose names the next engine is to understand; without a table, one of this
/// engine's own.
PrefixCaching prefix_caching(const config::CacheOptions& options, const ipc::BlockNames* names) {
  if (names != nullptr) {
    const ipc::NamesKey key = names->key();
    return {options.enable_prefix_caching, options.enable_output_caching, {key.low, key.high}};
  }
  return {options.enable_prefix_caching, options.enable_output_caching, random_key()};
}

}  // namespace

std::string numbered(const std::string& name, std::int64_t index) {
  return index == 0 ? name : name + "-" + std::to_string(index);
}

SupervisedActors::SystemConfig::SystemConfig() {
  // One pool thread unless there are cores to spare: the actors of a step run one after the other anyway, so
  // a second thread would only cost wake-ups. Tokenizers have threads of their own.
  const unsigned cores = usable_cores();
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", static_cast<std::size_t>(std::clamp(cores / 4, 1u, 8u)));
  set("logger.verbosity", caf::atom("quiet"));
}

SupervisedActors::~SupervisedActors() { caf::anon_send_exit(root_, caf::exit_reason::user_shutdown); }

template <class Handle>
RootChild& SupervisedActors::add(const char* name, const Handle& handle) {
  const auto row = std::find_if(std::begin(kRoles), std::end(kRoles),
                                [&](const Role& role) { return std::string_view(role.name) == name; });
  TROUPE_CHECK(row != std::end(kRoles));
  return children_.emplace_back(RootChild{name, row->on_down, caf::actor_cast<caf::actor>(handle), {}});
}

template <class Handle>
const Handle& SupervisedActors::introduce(const char* to_whom, const Handle& handle) {
  for (const RootChild& child : children_) {
    if (child.actor.address() == handle.address()) arrows_.push_back(Arrow{to_whom, child.name});
  }
  return handle;
}

void SupervisedActors::supervise(const Log& log, std::function<void()> failed) {
  std::sort(arrows_.begin(), arrows_.end());
  arrows_.erase(std::unique(arrows_.begin(), arrows_.end()), arrows_.end());
  for (const RootChild& one : children_) {
    if (one.on_down != OnDown::restart) watch(one.name, one.actor, {});
  }
  root_ = system_.spawn(root_behavior, RootParts{std::move(children_), log});
  watch("root", caf::actor_cast<caf::actor>(root_), {});
  caf::actor_cast<caf::actor>(root_)->attach_functor(
      [this, failed = std::move(failed)](const caf::error& reason) {
        if (failed && reason != caf::exit_reason::user_shutdown) failed();
        {
          const std::lock_guard lock(mutex_);
          root_error_ = reason ? system_.render(reason) : "the root actor ended";
        }
        root_down_ = true;
      });
}

Result<std::vector<ActorReport>> SupervisedActors::actors(Duration patience) {
  Result<std::vector<ActorReport>> out = failure(Code::timeout, "the root actor did not answer in time");
  caf::scoped_actor self(system_);
  self->request(root_, caf::timespan(patience), ProbeAll{})
      .receive([&](ActorReports& reports) { out = std::move(reports.actors); }, [](const caf::error&) {});
  return out;
}

void SupervisedActors::watch_by(Watchdog& watchdog) {
  for (const auto& [part, actor] : watched_) {
    watchdog.watch(part, [actor = actor](const std::shared_ptr<Pulse>& pulse) {
      // Before what waits in the mailbox: a long queue is no silence.
      caf::anon_send<caf::message_priority::high>(actor->get(), Beat{pulse});
    });
  }
  // CAF's thread that every deadline and every delayed message comes from.
  watchdog.watch({"clock"}, [this](const std::shared_ptr<Pulse>& pulse) {
    caf::actor_clock& clock = system_.clock();
    clock.schedule_message(clock.now(), caf::actor_cast<caf::strong_actor_ptr>(root_),
                           caf::make_mailbox_element(
                               nullptr, caf::make_message_id(caf::message_priority::high), {}, Beat{pulse}));
  });
  for (const auto& [part, beats] : threads_) watchdog.watch(part, beats);
}

std::string SupervisedActors::why() const {
  const std::lock_guard lock(mutex_);
  return root_error_;
}

std::shared_ptr<SupervisedActors::Watched> SupervisedActors::watch(const std::string& name, caf::actor actor,
                                                                   Duration patience) {
  const auto same = [&name](const WatchedPart& other) { return other.part.name.starts_with(name); };
  const auto earlier = std::count_if(watched_.begin(), watched_.end(), same);
  WatchedPart& watched = watched_.emplace_back();
  watched.part.name = numbered(name, earlier);
  watched.part.patience = patience;
  watched.actor = std::make_shared<Watched>(std::move(actor));
  return watched.actor;
}

// ------------------------------------------------------------------------------------------ front

FrontSystem::FrontSystem(FrontSetup setup) {
  metrics_ = system().spawn(metrics_behavior, setup.constants, setup.log("metrics"));
  add("metrics", metrics_);

  EngineRouter::Setup routing{setup.options.parallel.routing, setup.options.scheduler.block_size,
                              setup.block_names, [engines = setup.engines](std::uint32_t engine) {
                                return now_ns() - engines[engine]->end().heartbeat_ns(ipc::Side::lower) <
                                       kEngineResponds;
                              }};
  own_engines_ = std::min(setup.own_engines, setup.engines.size());
  routing.first_prefill = static_cast<std::uint32_t>(own_engines_);
  routing.min_prompt_tokens = setup.options.split.min_prompt_tokens;
  const auto router = std::make_shared<EngineRouter>(std::move(routing));
  std::vector<std::shared_ptr<EngineSide>> sides;
  for (std::uint32_t i = 0; i < setup.engines.size(); ++i) {
    EngineLinkParts link{setup.engines[i], i,           setup.build, setup.log("engine_link"),
                         setup.progress,   setup.traced};
    link.is_peer = i >= own_engines_;
    link.is_remote = i >= setup.first_remote;
    link.silent = [silent = setup.silent, i](const SilentPart& part) {
      if (silent) silent(i, part);
    };
    link.welcomed = setup.welcomed;
    link.router = router;
    watch_thread(numbered("engine_link", i) + "'s receiver",
                 [pulse = link.receiver_pulse] { return pulse->beats(); });
    sides.push_back(std::make_shared<EngineLinkSide>(setup.engines[i]));
    engines_.push_back(system().spawn(engine_link_behavior, std::move(link)));
    add("engine_link", engines_.back());
  }

  std::vector<tokenizer_actor> tokenizers;
  for (std::uint32_t i = 0; i < setup.texts.size(); ++i) {
    TokenizerParts parts{setup.texts[i], i, setup.build, setup.log("tokenizer"),
                         [distrusted = setup.distrusted, i](const std::string& why) {
                           if (distrusted) distrusted(i, why);
                         }};
    watch_thread(numbered("tokenizer", i) + "'s receiver",
                 [pulse = parts.receiver_pulse] { return pulse->beats(); });
    tokenizers.push_back(system().spawn(tokenizer_behavior, std::move(parts)));
    add("tokenizer", tokenizers.back());
  }
  if (setup.media) {
    setup.media->log = setup.media->threads.log = setup.log("media");
    watch_thread(
        "media's files", [pulse = setup.media->threads.pulse] { return pulse->beats(); }, kFileSilence);
    media_ = system().spawn(media_behavior, *std::move(setup.media), introduce("media", metrics_));
    add("media", media_);
  }
  auto hosts = std::make_shared<std::vector<session_host_actor>>();

  const auto quarantine = std::make_shared<Quarantine>();
  for (std::uint32_t io = 0; io < setup.io_threads; ++io) {
    for (const auto& tokenizer : tokenizers) introduce("session", tokenizer);
    SessionHostParts parts;
    parts.io = io;
    parts.context = setup.sessions;
    parts.tokenizers = tokenizers;
    parts.engines = sides;
    parts.metrics = introduce("session", metrics_);
    if (media_) parts.media = introduce("session", media_);
    parts.deliver = setup.deliver;
    parts.log = setup.log("session");
    parts.quarantine = quarantine;
    parts.router = router;
    for (const auto& engine : engines_) {
      if (setup.options.guided.on()) parts.grammars.push_back(introduce("session", engine));
    }
    hosts->push_back(system().spawn(session_host_behavior, std::move(parts)));
    add("session", hosts->back());
  }

  for (const auto& host : *hosts) introduce("gateway", host);
  for (const auto& engine : engines_) introduce("gateway", engine);
  gateway_ = system().spawn(gateway_behavior, GatewayParts{*hosts,
                                                           introduce("gateway", metrics_),
                                                           {engines_.begin(), engines_.end()},
                                                           setup.health,
                                                           setup.deliver,
                                                           setup.config_json,
                                                           setup.options.http.max_concurrency,
                                                           setup.texts.size(),
                                                           setup.log("gateway"),
                                                           own_engines_});
  add("gateway", gateway_);
  for (const auto& tokenizer : tokenizers)
    caf::anon_send(tokenizer, TextArrivals{introduce("tokenizer", gateway_)});

  for (const auto& host : *hosts) introduce("engine_link", host);
  for (const auto& engine : engines_) {
    caf::anon_send(
        engine, FrontActors{introduce("engine_link", gateway_), *hosts, introduce("engine_link", metrics_)});
  }
  supervise(setup.log("front"));
}

namespace {

/// Asks GATEWAY, then MEDIA and the engines all at once; those that have not answered by then are left out.
struct StatusRound {
  EngineStatus status;
  std::vector<std::optional<SchedulerStatus>> engines;
  std::size_t open = 0;
  std::shared_ptr<std::promise<std::optional<EngineStatus>>> promise;

  void one_less() {
    if (--open > 0) return;
    for (const auto& engine : engines) {
      if (engines.size() > 1) status.engines.push_back(engine.value_or(SchedulerStatus()));
    }
    promise->set_value(std::move(status));
  }
};

}  // namespace

std::future<std::optional<EngineStatus>> FrontSystem::ask_status(Duration patience) {
  auto round = std::make_shared<StatusRound>();
  round->promise = std::make_shared<std::promise<std::optional<EngineStatus>>>();
  const std::vector<engine_link_actor> own(engines_.begin(),
                                           engines_.begin() + static_cast<std::ptrdiff_t>(own_engines_));
  round->engines.resize(own.size());
  round->open = own.size() + (media_ ? 1 : 0);
  auto future = round->promise->get_future();
  system().spawn([=, gateway = gateway_, media = media_, engines = own](caf::event_based_actor* self) {
    self->request(gateway, caf::timespan(patience), caf::get_atom::value)
        .then(
            [=](EngineStatus& front) {
              round->status = std::move(front);
              if (media) {
                self->request(media, caf::timespan(patience / 2), caf::get_atom::value)
                    .then(
                        [=](const MediaStats& stats) {
                          round->status.media = stats;
                          round->one_less();
                        },
                        [=](const caf::error&) { round->one_less(); });
              }
              for (std::size_t i = 0; i < engines.size(); ++i) {
                // An engine's part is left out in time for the answer to be of use.
                self->request(engines[i], caf::timespan(patience / 2), caf::get_atom::value)
                    .then(
                        [=](const EngineStatus& status) {
                          add_to(round->status.scheduler, status.scheduler);
                          add_to(round->status.cache, status.cache);
                          round->engines[i] = status.scheduler;
                          round->one_less();
                        },
                        [=](const caf::error&) { round->one_less(); });
              }
            },
            [=](const caf::error&) { round->promise->set_value(std::nullopt); });
  });
  return future;
}

Result<std::vector<ActorReport>> FrontSystem::engine_actors(Duration patience) {
  caf::scoped_actor self(system());
  using Asked = decltype(self->request(engines_.front(), caf::timespan(patience), ProbeAll{}));
  std::vector<Asked> asked;
  for (std::size_t i = 0; i < own_engines_; ++i)
    asked.push_back(self->request(engines_[i], caf::timespan(patience), ProbeAll{}));
  std::vector<ActorReport> out;
  std::map<std::string, std::int32_t> known;  // actors of a name, of the engines before
  for (Asked& one : asked) {
    std::map<std::string, std::int32_t> here;
    one.receive(
        [&](const ActorReports& reports) {
          for (ActorReport report : reports.actors) {
            ++here[report.name];
            report.number += known[report.name];
            out.push_back(std::move(report));
          }
        },
        [](const caf::error&) {});
    for (const auto& [name, count] : here) known[name] += count;
  }
  if (out.empty()) return failure(Code::timeout, "no engine answered in time");
  return out;
}

void FrontSystem::drain() {
  system().spawn([gateway = gateway_, drained = drained_](caf::event_based_actor* self) {
    self->request(gateway, kDrainPatience, Drain{}).then([drained](bool) { *drained = true; });
  });
}

void FrontSystem::abandon() { caf::anon_send(gateway_, Abandon{}); }

// ----------------------------------------------------------------------------------------- engine

EngineSystem::EngineSystem(EngineSetup setup) {
  std::vector<worker_link_actor> links;
  const Log link_log = setup.log("worker_link");
  for (const auto& link : setup.links) {
    const auto pulse = std::make_shared<Pulse>();
    const auto rank = static_cast<std::int32_t>(links.size());
    links.push_back(
        system().spawn(worker_link_behavior, WorkerLinkParts{link, setup.spec_hash, rank, link_log, pulse}));
    add("worker_link", links.back());
    watch_thread(numbered("worker_link", rank) + "'s receiver", [pulse] { return pulse->beats(); });
  }
  // One rank needs no group, and its messages no further hop.
  rank_group_actor group;
  workers_actor workers = links.front();
  if (links.size() > 1) {
    for (const auto& link : links) introduce("rank_group", link);
    group = system().spawn(rank_group_behavior,
                           RankGroupParts{{links.begin(), links.end()}, setup.log("rank_group")});
    add("rank_group", group);
    workers = group;
  }

  auto cache = system().spawn(cache_behavior, CacheParts{introduce("cache", workers), setup.log("cache"),
                                                         setup.block_names, setup.peer_names});
  add("cache", cache);

  grammar_actor grammar;
  if (setup.options.guided.on()) {
    GrammarParts parts = grammar_parts(setup, introduce("grammar", workers));
    // Between two forms this thread gives no sign of life.
    watch_thread(
        "grammar's lookups", [pulse = parts.forms.pulse] { return pulse->beats(); }, kFormSilence);
    grammar = system().spawn<caf::detached>(grammar_behavior, std::move(parts));
    add("grammar", grammar);
  }

  SchedulerParts scheduling{setup.options.scheduler,
                            prefix_caching(setup.options.cache, setup.block_names.get()),
                            introduce("scheduler", cache),
                            introduce("scheduler", workers),
                            {},
                            setup.log("scheduler"),
                            grammar ? introduce("scheduler", grammar) : grammar,
                            setup.options.speculation.method};
  for (const auto& link : setup.fronts) scheduling.fronts.push_back(std::make_shared<FrontLinkPort>(link));
  auto scheduler = system().spawn(scheduler_behavior, std::move(scheduling));
  add("scheduler", scheduler);

  for (std::uint32_t i = 0; i < setup.fronts.size(); ++i) {
    FrontLinkParts parts;
    parts.link = setup.fronts[i];
    parts.front = i;
    parts.is_remote = setup.remote_fronts;
    parts.build = setup.build;
    parts.scheduler = introduce("front_link", scheduler);
    parts.cache = introduce("front_link", cache);
    parts.grammar = grammar ? introduce("front_link", grammar) : grammar;
    parts.ready = setup.ready;
    parts.log = setup.log("front_link");
    parts.topology = [this] { return topology_json(arrows()); };
    watch_thread(numbered("front_link", i) + "'s receiver",
                 [pulse = parts.receiver_pulse] { return pulse->beats(); });
    fronts_.push_back(system().spawn(front_link_behavior, std::move(parts)));
    add("front_link", fronts_.back());
  }

  const auto consumers = [&](const char* of) {
    for (const auto& front : fronts_) introduce(of, front);
    return Attach{introduce(of, cache), introduce(of, scheduler), fronts_};
  };
  if (group) {
    caf::anon_send(group, consumers("rank_group"));  // before a link can send to it
    for (const auto& link : links) caf::anon_send(link, Join{introduce("worker_link", group)});
  } else {
    caf::anon_send(links.front(), consumers("worker_link"));
  }
  introduce("scheduler", fronts_.front());
  supervise(setup.log("engine"), [names = setup.block_names] {
    // Ranks may have disagreed about what their blocks hold: the next engine would find the same blocks and
    // end again.
    if (names != nullptr) names->distrust();
  });
  for (const auto& front : fronts_) caf::anon_send(front, Supervised{root()});
}

// --------------------------------------------------------------------------------------- documents

std::string topology_json(const std::vector<Arrow>& arrows) {
  nlohmann::ordered_json actors = nlohmann::ordered_json::array(), edges = actors;
  for (const Role& role : kRoles) {
    const auto runs = [&role](const Arrow& arrow) { return arrow.to == role.name; };
    if (std::none_of(arrows.begin(), arrows.end(), runs)) continue;
    actors.push_back({{"name", role.name},
                      {"process", to_string(role.process)},
                      {"on_down", role.on_down == OnDown::restart ? "restart" : "escalate"},
                      {"thread", role.thread},
                      {"bound", role.bound},
                      {"when_full", role.when_full}});
  }
  for (const Arrow& arrow : arrows) edges.push_back({{"from", arrow.from}, {"to", arrow.to}});
  return nlohmann::ordered_json{{"actors", std::move(actors)}, {"arrows", std::move(edges)}}.dump();
}

std::string topology_markdown(const std::vector<Arrow>& arrows) {
  std::string out =
      "# Actors\n\nWritten by the program: the graph from the actors that it starts, the table from\n"
      "actors/topology.h. A test compares the page with both.\n\nAn arrow goes from an actor to one whose "
      "handle it was "
      "given when it started: it sends there,\nand answers come back the same way. The graph is that of a "
      "server with several ranks. With one rank there is no\nrank_group: what goes there goes to "
      "worker_link, and what comes from there from worker_link. A model that does not see has no media.\n\n"
      "```mermaid\ngraph LR\n"
      "  HTTP --> gateway\n";
  for (const Arrow& arrow : arrows) out += "  " + arrow.from + " --> " + arrow.to + "\n";
  out +=
      "  engine_link <-->|rings| front_link\n  worker_link <-->|rings| worker\n  tokenizer <-->|rings| "
      "text\n```\n\n"
      "Start order of each process is the order of its rows, stop order the reverse.\n\n"
      "| actor | process | when it dies | runs on | bounded by | when that is used up | why "
      "|\n|---|---|---|---|---|---|---|\n";
  for (const Role& role : kRoles) {
    out += std::string("| ") + role.name + " | " + to_string(role.process) + " | " +
           (role.on_down == OnDown::restart ? "restart" : "escalate") + " | " + role.thread + " | " +
           role.bound + " | " + role.when_full + " | " + role.why + " |\n";
  }
  return out;
}

}  // namespace troupe
