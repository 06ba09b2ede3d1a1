#include "actors/topology.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "actors/cache/cache_actor.h"
#include "actors/grammar/grammar_actor.h"
#include "actors/metrics/metrics_actor.h"
#include "actors/scheduler/scheduler_actor.h"
#include "actors/tokenizer/tokenizer_actor.h"
#include "actors/worker/rank_group_actor.h"
#include "actors/worker/worker_link_actor.h"
#include "base/check.h"
#include "base/usable_cores.h"

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

/// Hands handles over and keeps who was given whose.
class Introductions {
 public:
  explicit Introductions(const std::vector<RootChild>& children) : children_(children) {}

  /// `handle`, which is given to the actor `to_whom`.
  template <class Handle>
  const Handle& operator()(const char* to_whom, const Handle& handle) {
    for (const RootChild& child : children_) {
      if (child.actor.address() == handle.address()) arrows_.insert(Arrow{to_whom, child.name});
    }
    return handle;
  }
  std::vector<Arrow> arrows() const { return {arrows_.begin(), arrows_.end()}; }

 private:
  const std::vector<RootChild>& children_;
  std::set<Arrow> arrows_;
};

/// A TOKENIZER answers a Beat between two jobs. Each has 60 s, then its request has failed.
constexpr auto kTokenizerSilence = std::chrono::seconds(120);
/// Looking up or checking a form of 8 MB takes less than a second.
constexpr auto kFormSilence = std::chrono::seconds(30);

tokenizer_actor spawn_tokenizer(caf::actor_system& system, const std::shared_ptr<const Encoder>& encoder,
                                TokenizerKind kind, const Log& log) {
  return system.spawn<caf::detached>(tokenizer_behavior, *encoder, kind, log);
}

/// What GRAMMAR is given; nothing of it blocks or starts a process.
GrammarParts grammar_parts(const CastSetup& setup, workers_actor link) {
  const config::LimitOptions& limits = setup.options.limits;
  const SessionContext& model = *setup.sessions;
  GrammarParts parts;
  parts.link = std::move(link);
  parts.vocabulary = model.vocab_size;
  // On a large machine many rows wait for the same moment; on a small one the cores are the model's.
  parts.helpers = std::clamp(usable_cores() / 8, 1u, 4u);
  parts.log = setup.log("grammar");
  FormServiceSetup& forms = parts.forms;
  forms.tokenizer = model.tokenizer;
  forms.vocabulary = grammar::vocabulary_of(*model.tokenizer, model.vocab_size, model.eos_ids);
  forms.any_whitespace = !setup.options.guided.disable_any_whitespace;
  forms.executable = setup.executable;
  forms.limits.time = std::chrono::milliseconds(limits.grammar_timeout_ms);
  forms.cache_bytes = static_cast<std::size_t>(limits.grammar_cache_bytes);
  forms.form_limits = {{limits.max_schema_depth, limits.max_schema_properties, limits.max_schema_enum_values,
                        static_cast<std::size_t>(limits.max_schema_name_chars),
                        static_cast<std::size_t>(limits.max_grammar_bytes)},
                       static_cast<std::size_t>(limits.max_grammar_bytes), limits.max_grammar_depth};
  return parts;
}

/// With a key of this instance's own.
PrefixCaching prefix_caching(const config::CacheOptions& options) {
  std::random_device random;
  const auto word = [&random] { return (std::uint64_t{random()} << 32) | random(); };
  return {options.enable_prefix_caching, options.enable_output_caching, {word(), word()}};
}

}  // namespace

Cast::SystemConfig::SystemConfig() {
  // One pool thread unless there are cores to spare: the actors of a step run one after the other anyway, so a
  // second thread would only cost wake-ups. Tokenizers have threads of their own.
  const unsigned cores = usable_cores();
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", static_cast<std::size_t>(std::clamp(cores / 4, 1u, 8u)));
  set("logger.verbosity", caf::atom("quiet"));
}

Cast::Cast(CastSetup setup) {
  spawn(std::move(setup));
  caf::actor_cast<caf::actor>(root_)->attach_functor([this](const caf::error& reason) {
    {
      const std::lock_guard lock(mutex_);
      root_error_ = reason ? system_.render(reason) : "the root actor ended";
    }
    root_down_ = true;
  });
}

Cast::~Cast() { caf::anon_send_exit(root_, caf::exit_reason::user_shutdown); }

Result<EngineStatus> Cast::status(Duration patience) {
  Result<EngineStatus> out = failure(Code::timeout, "the engine's actors did not answer in time");
  caf::scoped_actor self(system_);
  self->request(root_, caf::timespan(patience), caf::get_atom::value)
      .receive([&](const EngineStatus& status) { out = status; }, [](const caf::error&) {});
  return out;
}

std::future<std::optional<EngineStatus>> Cast::ask_status(Duration patience) {
  auto promise = std::make_shared<std::promise<std::optional<EngineStatus>>>();
  system_.spawn([root = root_, patience, promise](caf::event_based_actor* self) {
    self->request(root, caf::timespan(patience), caf::get_atom::value)
        .then([promise](const EngineStatus& status) { promise->set_value(status); },
              [promise](const caf::error&) { promise->set_value(std::nullopt); });
  });
  return promise->get_future();
}

Result<std::vector<ActorReport>> Cast::actors(Duration patience) {
  Result<std::vector<ActorReport>> out = failure(Code::timeout, "the engine's root actor did not answer in time");
  caf::scoped_actor self(system_);
  self->request(root_, caf::timespan(patience), ProbeAll{})
      .receive([&](ActorReports& reports) { out = std::move(reports.actors); }, [](const caf::error&) {});
  return out;
}

void Cast::drain() {
  system_.spawn([root = root_, drained = drained_](caf::event_based_actor* self) {
    self->request(root, kDrainPatience, Drain{}).then([drained](bool) { *drained = true; });
  });
}

void Cast::watch_by(Heart& heart) {
  for (const auto& [part, actor] : watched_) {
    heart.watch(part, [actor = actor](const std::shared_ptr<Pulse>& pulse) {
      // Before what waits in the mailbox: a long queue is no silence.
      caf::anon_send<caf::message_priority::high>(actor->get(), Beat{pulse});
    });
  }
  // CAF's thread that every deadline and every delayed message comes from.
  heart.watch({"clock"}, [this](const std::shared_ptr<Pulse>& pulse) {
    caf::actor_clock& clock = system_.clock();
    clock.schedule_message(clock.now(), caf::actor_cast<caf::strong_actor_ptr>(root_),
                           caf::make_mailbox_element(nullptr, caf::make_message_id(caf::message_priority::high), {}, Beat{pulse}));
  });
  // Between two forms these threads give no sign of life.
  if (form_pulses_ != nullptr) {
    heart.watch({"grammar's lookups", true, kFormSilence}, [pulses = form_pulses_] { return pulses->lookups.beats(); });
    heart.watch({"grammar's checks", true, kFormSilence}, [pulses = form_pulses_] { return pulses->checks.beats(); });
  }
  for (std::size_t rank = 0; rank < receiver_pulses_.size(); ++rank) {
    const std::string number = rank == 0 ? "" : "-" + std::to_string(rank);
    heart.watch({"worker_link" + number + "'s receiver"}, [pulse = receiver_pulses_[rank]] { return pulse->beats(); });
  }
}

void Cast::abandon() { caf::anon_send(gateway_, Abandon{}); }

std::string Cast::why() const {
  const std::lock_guard lock(mutex_);
  return root_error_;
}

void Cast::spawn(CastSetup setup) {
  RootParts root{{}, {}, setup.log("root")};
  Introductions introduce(root.children);
  const auto add = [&root](const char* name, const auto& handle) { root.children.push_back(child(name, handle)); };

  metrics_ = system_.spawn(metrics_behavior, setup.constants, setup.log("metrics"));
  add("metrics", metrics_);

  std::vector<worker_link_actor> links;
  const Log link_log = setup.log("worker_link");
  for (const auto& link : setup.links) {
    receiver_pulses_.push_back(std::make_shared<Pulse>());
    const auto rank = static_cast<std::int32_t>(links.size());
    links.push_back(system_.spawn(worker_link_behavior,
                                  WorkerLinkParts{link, setup.spec_hash, rank, link_log, receiver_pulses_.back()}));
    add("worker_link", links.back());
  }
  // One rank needs no group, and its messages no further hop.
  rank_group_actor group;
  workers_actor workers = links.front();
  if (links.size() > 1) {
    for (const auto& link : links) introduce("rank_group", link);
    group = system_.spawn(rank_group_behavior, RankGroupParts{{links.begin(), links.end()}, setup.log("rank_group")});
    add("rank_group", group);
    workers = group;
  }

  auto cache = system_.spawn(cache_behavior, CacheParts{introduce("cache", workers), setup.log("cache")});
  add("cache", cache);

  grammar_actor grammar;
  if (setup.options.guided.on()) {
    GrammarParts parts = grammar_parts(setup, introduce("grammar", workers));
    form_pulses_ = parts.forms.pulses;
    grammar = system_.spawn<caf::detached>(grammar_behavior, std::move(parts));
    add("grammar", grammar);
  }

  auto scheduler = system_.spawn(
      scheduler_behavior,
      SchedulerParts{setup.options.scheduler, prefix_caching(setup.options.cache), introduce("scheduler", cache), introduce("scheduler", workers),
                     introduce("scheduler", metrics_), setup.log("scheduler"), setup.progress,
                     grammar ? introduce("scheduler", grammar) : grammar});
  add("scheduler", scheduler);

  std::vector<tokenizer_actor> tokenizers;
  auto hosts = std::make_shared<std::vector<session_host_actor>>();
  const Log tokenizer_log = setup.log("tokenizer");
  for (std::uint32_t i = 0; i <= setup.tokenizers; ++i) {
    const TokenizerKind kind = i < setup.tokenizers ? TokenizerKind::common : TokenizerKind::long_texts;
    tokenizers.push_back(spawn_tokenizer(system_, setup.encoder, kind, tokenizer_log));
    add("tokenizer", tokenizers.back());
    const auto watched = watch("tokenizer", root.children.back().actor, kTokenizerSilence);
    root.children.back().respawn = [this, encoder = setup.encoder, tokenizer_log, hosts, kind, i, watched] {
      auto fresh = spawn_tokenizer(system_, encoder, kind, tokenizer_log);
      watched->replace(caf::actor_cast<caf::actor>(fresh));
      for (const auto& host : *hosts) caf::anon_send(host, TokenizerUp{i, fresh});
      return caf::actor_cast<caf::actor>(fresh);
    };
  }

  for (std::uint32_t io = 0; io < setup.io_threads; ++io) {
    for (const auto& tokenizer : tokenizers) introduce("session", tokenizer);
    hosts->push_back(system_.spawn(
        session_host_behavior,
        SessionHostParts{io, setup.sessions, tokenizers, introduce("session", scheduler),
                         introduce("session", metrics_), setup.deliver, setup.log("session"),
                         grammar ? introduce("session", grammar) : grammar}));
    add("session", hosts->back());
  }

  for (const auto& host : *hosts) introduce("gateway", host);
  gateway_ = system_.spawn(gateway_behavior,
                           GatewayParts{*hosts, introduce("gateway", metrics_), introduce("gateway", cache), setup.health, setup.deliver,
                                        setup.config_json, setup.options.http.max_concurrency,
                                        setup.log("gateway")});
  add("gateway", gateway_);

  const auto consumers = [&](const char* of) {
    return Attach{introduce(of, cache), introduce(of, scheduler), introduce(of, gateway_)};
  };
  if (group) {
    caf::anon_send(group, consumers("rank_group"));  // before a link can send to it
    for (const auto& link : links) caf::anon_send(link, Join{introduce("worker_link", group)});
  } else {
    caf::anon_send(links.front(), consumers("worker_link"));
  }
  root.ports = {gateway_, scheduler, cache};
  arrows_ = introduce.arrows();
  for (const RootChild& one : root.children) {
    if (one.on_down != OnDown::restart) watch(one.name, one.actor, {});
  }
  root_ = system_.spawn(root_behavior, std::move(root));
  watch("root", caf::actor_cast<caf::actor>(root_), {});
}

std::shared_ptr<Cast::Watched> Cast::watch(const std::string& name, caf::actor actor, Duration patience) {
  const auto same = [&name](const WatchedPart& other) { return other.part.name.starts_with(name); };
  const auto earlier = std::count_if(watched_.begin(), watched_.end(), same);
  WatchedPart& watched = watched_.emplace_back();
  watched.part.name = earlier == 0 ? name : name + "-" + std::to_string(earlier);
  watched.part.patience = patience;
  watched.actor = std::make_shared<Watched>(std::move(actor));
  return watched.actor;
}

std::string topology_json(const std::vector<Arrow>& arrows) {
  nlohmann::ordered_json actors = nlohmann::ordered_json::array(), edges = actors;
  for (const Role& role : kRoles) {
    const auto runs = [&role](const Arrow& arrow) { return arrow.to == role.name; };
    if (std::none_of(arrows.begin(), arrows.end(), runs)) continue;
    actors.push_back({{"name", role.name},
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
      "# Actors of the engine process\n\nWritten by the program: the graph from the actors that it starts, the table from\n"
      "actors/topology.h. A test compares the page with both.\n\nAn arrow goes from an actor to one whose handle it was "
      "given when it started: it sends there,\nand answers come back the same way. The graph is that of a server with several ranks. With one rank there is no\nrank_group: what goes there goes to worker_link, and what comes from there from worker_link.\n\n```mermaid\ngraph LR\n"
      "  HTTP --> gateway\n";
  for (const Arrow& arrow : arrows) out += "  " + arrow.from + " --> " + arrow.to + "\n";
  out += "  worker_link <-->|rings| worker\n```\n\n"
      "Start order is the order of the rows, stop order the reverse.\n\n"
      "| actor | when it dies | runs on | bounded by | when that is used up | why |\n|---|---|---|---|---|---|\n";
  for (const Role& role : kRoles) {
    out += std::string("| ") + role.name + " | " + (role.on_down == OnDown::restart ? "restart" : "escalate") + " | " +
           role.thread + " | " + role.bound + " | " + role.when_full + " | " + role.why + " |\n";
  }
  return out;
}

}  // namespace troupe
