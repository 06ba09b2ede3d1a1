#include "actors/front/front.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>

#include "actors/front/front_model.h"
#include "actors/front/live_feed.h"
#include "actors/front/request_traces.h"
#include "actors/gateway/merged_pages.h"
#include "actors/media/media_parts.h"
#include "actors/supervisor/status_page.h"
#include "actors/topology.h"
#include "base/unix_seconds.h"
#include "config/dump.h"
#include "http/batch/batch_service.h"
#include "http/server/connection_deadlines.h"
#include "http/server/server.h"

namespace troupe {
namespace {

constexpr const char* kBuild = TROUPE_VERSION;
constexpr auto kLookPatience = std::chrono::seconds(2);
constexpr std::size_t kTracesShown = 16;
constexpr int kBatchConcurrency = 32;  // where the engines' sequences are not known

}  // namespace

// In the order of lifetimes: the server calls the HTTP side, which sends to the actors and to the feed.
struct Front::Impl {
  config::Options options;
  Watchdog watchdog;  // outlives the health cell's readers
  std::shared_ptr<std::atomic<std::uint64_t>> progress = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::shared_ptr<RequestTraces> traces = std::make_shared<RequestTraces>();
  std::vector<std::unique_ptr<FrontModel>> models;
  std::shared_ptr<MergedPages> pages;  // null: one model
  std::unique_ptr<LiveFeed> feed;
  std::unique_ptr<HttpSide> http_side;
  std::unique_ptr<http::BatchService> batches;  // null: no --batch-dir
  std::unique_ptr<http::Server> server;
  std::mutex mutex;
  std::string engine_topology;        // guarded by mutex, as the next
  std::deque<Distrusted> distrusted;  // text processes, not taken yet

  Status build(const FrontFds& fds);
  Status read_models(const FrontFds& fds);
  Status open_batches(http::ServerSetup& setup);
  Status start_actors(FrontModel& model, const FrontFds& fds, const Deliver& deliver);
  std::string opening();
  LiveState look() const;
  void watch();
  Log log(const std::string& actor) const {
    auto opened = Log::open(actor, options.log);
    return (opened.ok() ? *opened : Log()).observed_by(traces);
  }
};

/// One model with all engines and texts, or of several each with its own.
Status Front::Impl::read_models(const FrontFds& fds) {
  const std::size_t count = std::max<std::size_t>(1, fds.models.size());
  const bool alone = fds.models.empty();
  if (!alone && (fds.engines.size() != count || fds.texts.size() % count != 0 || fds.texts.empty()))
    return failure(Code::internal, "the front needs an engine, and as many text processes, for each model");
  const std::size_t texts = fds.texts.size() / count, engines = alone ? fds.engines.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    auto model = FrontModel::read(alone ? options : fds.models[i].options,
                                  alone ? fds.vocabulary : fds.models[i].vocabulary, {i, alone, i * texts},
                                  log("gateway"));
    if (!model.ok()) return model.status();
    const Status attached = (*model)->attach(std::span(fds.engines).subspan(i * engines, engines),
                                             std::span(fds.texts).subspan(i * texts, texts));
    if (!attached.ok()) return attached;
    models.push_back(*std::move(model));
  }
  ::malloc_trim(0);  // what was read of the files
  return {};
}

Status Front::Impl::build(const FrontFds& fds) {
  if (Status status = read_models(fds); !status.ok()) return status;
  FrontModel& first = *models.front();
  options.limits.max_body_bytes = options.limits.body_bytes(first.sees());
  if (models.size() == 1) first.options.limits = options.limits;
  const std::int64_t created = unix_seconds();
  std::vector<std::string> names;
  std::vector<http::ModelFacts> facts;
  std::vector<http::ModelCard> cards;
  for (const auto& model : models) {
    names.push_back(model->name());
    facts.push_back(model->facts());
    for (http::ModelCard& card : model->cards(created)) cards.push_back(std::move(card));
  }
  facts.front().others.assign(names.begin() + 1, names.end());
  http::ServerSetup setup{options.http, options.limits, std::move(facts.front()), fds.listen, fds.metrics};
  setup.more_models.assign(std::make_move_iterator(facts.begin() + 1), std::make_move_iterator(facts.end()));

  if (Status status = open_batches(setup); !status.ok()) return status;

  const Deliver deliver = [this](std::uint32_t io, std::vector<http::Output>&& outputs) {
    if (io < server->io_threads()) return server->deliver(io, std::move(outputs));
    if (batches != nullptr) batches->take(std::move(outputs));
  };
  if (models.size() > 1) pages = std::make_shared<MergedPages>(models.size(), deliver);
  http_side = std::make_unique<HttpSide>(cards, first.health, deliver, log("gateway"));
  server = std::make_unique<http::Server>(setup, *http_side);

  for (const auto& model : models) {
    if (Status status = start_actors(*model, fds, deliver); !status.ok()) return status;
  }
  feed = std::make_unique<LiveFeed>(
      LiveFeed::Setup{[this] { return opening(); }, [this] { return look(); }, traces.get(), deliver});
  http_side->connect(first.actors->gateway(), first.actors->metrics(), feed.get(), batches.get());
  for (std::size_t i = 1; i < models.size(); ++i)
    http_side->add_model(models[i]->actors->gateway(), models[i]->health, pages);
  if (batches != nullptr) batches->start(*http_side);
  if (Status status = server->start(); !status.ok()) return status;
  watch();
  return {};
}

Status Front::Impl::start_actors(FrontModel& model, const FrontFds& fds, const Deliver& deliver) {
  FrontSetup front = model.setup();
  front.build = kBuild;
  front.distrusted = [this, first = model.place.first_text](std::uint32_t index, const std::string& why) {
    const std::lock_guard lock(mutex);
    distrusted.push_back({static_cast<std::uint32_t>(first) + index, why});
  };
  if (model.sees() && fds.patches >= 0) {
    const std::size_t named = std::min(model.own_engines(), front.block_names.size());
    auto parts = media_parts(
        options.media, fds.patches, fds.media,
        {front.block_names.begin(), front.block_names.begin() + static_cast<std::ptrdiff_t>(named)});
    if (!parts.ok()) return parts.status();
    front.media = *std::move(parts);
  }
  front.io_threads = server->io_threads() + (batches != nullptr ? 1 : 0);  // the last host is the batches'
  front.deliver = deliver;
  if (pages != nullptr) {
    front.deliver = [this, deliver, index = model.place.index](std::uint32_t io,
                                                               std::vector<http::Output>&& outputs) {
      if (io != MergedPages::kIo) return deliver(io, std::move(outputs));
      pages->take(index, std::move(outputs));
    };
  }
  front.progress = progress;
  front.config_json = config::to_public_json(options);
  front.log = [this, index = model.place.index](const std::string& actor) {
    return log(numbered(actor, static_cast<std::int64_t>(index)));
  };
  front.traced = [traces = traces](const TracedEvent& event) {
    traces->add(event.request_id, event.actor, event.event, event.details, event.at_ns);
  };
  front.welcomed = [this](const std::string& topology) {
    const std::lock_guard lock(mutex);
    engine_topology = topology;
  };
  model.actors = std::make_unique<FrontSystem>(std::move(front));
  return {};
}

/// Opens --batch-dir, if there is one.
Status Front::Impl::open_batches(http::ServerSetup& setup) {
  if (options.batch.dir.empty()) return {};
  auto store = http::BatchStore::open(options.batch.dir, options.batch.dir_bytes);
  if (!store.ok()) return store.status();
  const int slots = options.scheduler.max_num_seqs > 0 ? options.scheduler.max_num_seqs : kBatchConcurrency;
  std::size_t engines = 0;
  for (const auto& model : models) engines += model->own_engines();
  http::BatchService::Setup parts{options.batch, setup.limits, setup.model, setup.more_models};
  parts.io = http::Server::io_threads_of(options.http);
  parts.concurrency = options.batch.concurrency > 0 ? static_cast<std::size_t>(options.batch.concurrency)
                                                    : static_cast<std::size_t>(slots) * engines;
  parts.deliver = [this](std::uint32_t io, std::vector<http::Output>&& outputs) {
    server->deliver(io, std::move(outputs));
  };
  parts.unix_seconds = unix_seconds;
  parts.log = log("batches");
  batches = std::make_unique<http::BatchService>(*std::move(store), std::move(parts));
  setup.owner_salt = batches->salt();
  return {};
}

void Front::Impl::watch() {
  for (const auto& model : models) model->actors->watch_by(watchdog);
  for (std::uint32_t io = 0; io < server->io_threads(); ++io) {
    watchdog.watch({"http-" + std::to_string(io)},
                   [this, io](std::shared_ptr<Pulse> pulse) { server->ask_for_beat(io, std::move(pulse)); });
  }
  for (std::size_t i = 0; i < http::kParsers; ++i) {
    watchdog.watch({http::kParserNames[i], true, http::parse_time(options.limits)},
                   [this, i] { return server->parser_beats(i); });
  }
  for (const auto& model : models) {
    for (std::size_t i = 0; i < model->texts.size(); ++i) {
      watchdog.watch({"text-" + std::to_string(model->place.first_text + i), false},
                     [link = model->texts[i]] {
                       return static_cast<std::uint64_t>(link->end().heartbeat_ns(ipc::Side::lower));
                     });
    }
    // One that beats is enough: it serves.
    watchdog.watch({numbered("engine", static_cast<std::int64_t>(model->place.index)), false},
                   [engines = model->engines] {
                     std::int64_t latest = 0;
                     for (const auto& link : engines)
                       latest = std::max(latest, link->end().heartbeat_ns(ipc::Side::lower));
                     return static_cast<std::uint64_t>(latest);
                   });
  }
}

/// The actors of the front and of an engine, the arrows between them, and the link.
std::string Front::Impl::opening() {
  auto all = nlohmann::ordered_json::parse(topology_json(models.front()->actors->arrows()));
  const std::lock_guard lock(mutex);
  const auto engine = nlohmann::ordered_json::parse(engine_topology, nullptr, /*allow_exceptions=*/false);
  if (!engine.is_object()) return all.dump();
  for (const char* part : {"actors", "arrows"}) {
    for (const auto& one : engine[part]) all[part].push_back(one);
  }
  return all.dump();
}

namespace {

/// The actors of all models, each numbered among those of its name.
std::vector<ActorReport> renumbered(std::vector<std::vector<ActorReport>> models) {
  std::vector<ActorReport> all;
  std::map<std::string, std::int32_t> known;  // actors of a name, of the models before
  for (std::vector<ActorReport>& reports : models) {
    std::map<std::string, std::int32_t> here;
    for (ActorReport& report : reports) {
      ++here[report.name];
      report.number += known[report.name];
      all.push_back(std::move(report));
    }
    for (const auto& [name, count] : here) known[name] += count;
  }
  return all;
}

}  // namespace

/// The supervisor's part is what `troupe status` shows. It asks this front in turn, through the control
/// thread.
LiveState Front::Impl::look() const {
  LiveState live;
  live.state = std::string(http::to_string(http_side->health().state));
  if (const auto page =
          supervisor::query_status(options.process.runtime_dir, options.http.port, kLookPatience);
      page.ok()) {
    live.server = *page;
  }
  std::vector<std::vector<ActorReport>> reports;
  for (const auto& model : models) {
    std::vector<ActorReport>& all = reports.emplace_back();
    if (auto own = model->actors->actors(kLookPatience); own.ok()) all = *std::move(own);
    if (const auto engine = model->actors->engine_actors(kLookPatience); engine.ok())
      all.insert(all.end(), engine->begin(), engine->end());
    if (const auto status = model->actors->ask_status(kLookPatience).get())
      live.prompt_tokens += status->scheduler.prompt_tokens;
  }
  live.actors = renumbered(std::move(reports));
  live.generated_tokens = *progress;
  live.requests = traces->latest(kTracesShown);
  return live;
}

Front::Front(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Front::~Front() { stop(); }

Result<std::unique_ptr<Front>> Front::start(const config::Options& options, const FrontFds& fds) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  Status status = impl->build(fds);
  std::unique_ptr<Front> front(new Front(std::move(impl)));
  if (!status.ok()) return status;
  return front;
}

std::string Front::state() const { return std::string(http::to_string(impl_->http_side->health().state)); }

bool Front::alive() const { return why().empty(); }

std::string Front::why() const {
  for (const auto& model : impl_->models) {
    if (!model->actors->alive()) return model->actors->why();
  }
  return {};
}

std::vector<std::future<std::optional<EngineStatus>>> Front::ask_status(Duration patience) {
  std::vector<std::future<std::optional<EngineStatus>>> each;
  for (const auto& model : impl_->models) each.push_back(model->actors->ask_status(patience));
  return each;
}

Status Front::renew_credentials(const config::HttpOptions& http) {
  config::HttpOptions renewed = impl_->options.http;
  renewed.file_api_keys = http.file_api_keys;
  renewed.file_admin_api_keys = http.file_admin_api_keys;
  renewed.certificate_pem = http.certificate_pem;
  renewed.private_key_pem = http.private_key_pem;
  Status status = impl_->server->renew(renewed);
  if (status.ok()) impl_->options.http = std::move(renewed);
  return status;
}

void Front::beat() {
  Impl& impl = *impl_;
  const TimePoint now = Clock::now();
  impl.watchdog.check(now);
  const Silence longest = impl.watchdog.longest();
  for (const auto& model : impl.models)
    model->health->looked(now, longest.stands_still() ? longest.part : nullptr);
  if (impl.watchdog.longest_in_engine().late()) return;
  for (const auto& model : impl.models) {
    for (const auto& engine : model->engines) engine->end().beat();
    for (const auto& text : model->texts) text->end().beat();
  }
}

std::string Front::silent() const { return impl_->watchdog.longest_in_engine().silent_part(); }

std::optional<Front::Distrusted> Front::take_distrusted() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->distrusted.empty()) return std::nullopt;
  Distrusted one = std::move(impl_->distrusted.front());
  impl_->distrusted.pop_front();
  return one;
}

void Front::report(ProcessReports processes) { impl_->models.front()->actors->report(std::move(processes)); }

void Front::drain() {
  impl_->server->drain();
  if (impl_->batches != nullptr) impl_->batches->drain();
  impl_->feed->end();
  for (const auto& model : impl_->models) {
    model->health->set(http::Health::State::draining);  // at once, even when the actors are busy
    model->actors->drain();
  }
}

void Front::abandon() {
  for (const auto& model : impl_->models) model->actors->abandon();
}

bool Front::idle() const {
  const auto drained = [](const auto& model) { return model->actors->drained(); };
  return std::all_of(impl_->models.begin(), impl_->models.end(), drained) && impl_->server->active() == 0;
}

std::uint64_t Front::served() const { return impl_->http_side->served(); }

std::uint64_t Front::generated_tokens() const { return *impl_->progress; }

void Front::stop() {
  for (const auto& model : impl_->models) model->health->forget();
  impl_->watchdog.clear();  // its handles must not outlive the actors
  if (impl_->server != nullptr) impl_->server->stop();
  if (impl_->batches != nullptr) impl_->batches->stop();
  if (impl_->http_side != nullptr) impl_->http_side->disconnect();
  impl_->feed.reset();
  for (const auto& model : impl_->models) model->actors.reset();
}

}  // namespace troupe
