#include "actors/front/front.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/engine/shared_vocabulary.h"
#include "actors/front/live_feed.h"
#include "actors/front/request_traces.h"
#include "actors/gateway/model_facts.h"
#include "actors/media/media_parts.h"
#include "actors/supervisor/status_page.h"
#include "actors/topology.h"
#include "base/unix_seconds.h"
#include "config/dump.h"
#include "config/quantization.h"
#include "http/batch/batch_service.h"
#include "http/server/connection_deadlines.h"
#include "http/server/server.h"
#include "model/checkpoint/generation_config.h"
#include "model/checkpoint/pooling_config.h"
#include "model/checkpoint/spec.h"
#include "model/weight_formats.h"
#include "text/parsers/choose_syntax.h"
#include "text/template/chat_template.h"

namespace troupe {
namespace {

/// What is read once from the model's directory.
struct ModelFiles {
  model::ModelSpec spec;
  std::shared_ptr<const SessionContext> sessions;
  std::shared_ptr<const ChatTemplate> chat;  ///< null: the checkpoint has none
  model::GenerationConfig generation;
};

Result<ModelFiles> read_model(const config::Options& options, int vocabulary_fd, const Log& log) {
  ModelFiles files;
  const std::string& directory = options.model.directory;
  auto spec = model::read_spec(directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  files.spec = *std::move(spec);

  config::AnswerOptions answers = options.answers;
  const auto texts = read_texts(options.model, vocabulary_fd, log, &answers);
  if (!texts.ok()) return texts.status();

  auto loaded = ChatTemplate::load(directory, options.model.chat_template, options.model.tokenizer);
  if (loaded.ok()) {
    files.chat = *loaded;
    for (const std::string& name : files.chat->missing())
      log.warning("chat_template_lacks", {kv("name", name)});
  } else if (loaded.status().code != Code::not_found) {
    return loaded.status();
  } else {
    log.warning("no_chat_template", {kv("directory", directory)});
  }

  auto syntax = choose_syntax(answers, **texts, files.chat.get());
  if (!syntax.ok()) return syntax.status();

  auto generation = model::read_generation_config(directory);
  if (!generation.ok()) return generation.status();
  files.generation = *std::move(generation);
  files.sessions = std::make_shared<SessionContext>(
      SessionContext{*texts,
                     model::end_ids(files.generation, files.spec, (*texts)->eos_id()),
                     options.scheduler.model_len(files.spec.max_positions),
                     files.spec.vocab,
                     *std::move(syntax),
                     {options.limits.max_answer_scores, options.limits.max_answer_bytes},
                     log.details(3) ? log.max_value_bytes() : 0,
                     options.speculation.method != config::DraftMethod::none,
                     model::trained_for_embeddings(directory)});
  return files;
}

/// Every model name that a request may use: those of --served-model-name first.
std::vector<std::string> model_names(const config::ModelOptions& model) {
  const std::string directory = std::filesystem::path(model.directory).lexically_normal().filename().string();
  std::vector<std::string> all = model.served_model_names, names;
  all.insert(all.end(), {directory, model.model, "default"});
  for (const std::string& name : all) {
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::size_t distinct(const std::vector<std::string>& names) {
  return std::set<std::string>(names.begin(), names.end()).size();
}

/// Type of the stored KV blocks: --kv-cache-dtype, --dtype, else the checkpoint's.
std::string cache_type(const config::Options& options, const model::ModelSpec& spec) {
  switch (config::kv_cache_dtype(options.quantization)) {
    case config::KvCacheDType::int8: return "int8";
    case config::KvCacheDType::fp8: return "fp8";
    case config::KvCacheDType::automatic: break;
  }
  switch (options.model.dtype) {
    case config::DTypeOption::bfloat16: return "bfloat16";
    case config::DTypeOption::float16: return "float16";
    case config::DTypeOption::float32: return "float32";
    case config::DTypeOption::automatic: break;
  }
  return spec.stored ? to_string(*spec.stored) : "auto";
}

}  // namespace

constexpr const char* kBuild = TROUPE_VERSION;
constexpr auto kLookPatience = std::chrono::seconds(2);
constexpr std::size_t kTracesShown = 16;
constexpr int kBatchConcurrency = 32;  // where the engines' sequences are not known

// In the order of lifetimes: the server calls the HTTP side, which sends to the actors and to the feed.
struct Front::Impl {
  config::Options options;
  Watchdog watchdog;  // outlives the health cell's readers
  std::shared_ptr<HealthCell> health = std::make_shared<HealthCell>();
  std::shared_ptr<std::atomic<std::uint64_t>> progress = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::shared_ptr<RequestTraces> traces = std::make_shared<RequestTraces>();
  std::unique_ptr<FrontSystem> actors;
  std::unique_ptr<LiveFeed> feed;
  std::unique_ptr<HttpSide> http_side;
  std::unique_ptr<http::BatchService> batches;  // null: no --batch-dir
  std::unique_ptr<http::Server> server;
  std::vector<std::shared_ptr<Link>> engines;  // by index
  std::vector<std::shared_ptr<Link>> texts;    // to the text processes
  std::mutex mutex;
  std::string engine_topology;        // guarded by mutex, as the next
  std::deque<Distrusted> distrusted;  // text processes, not taken yet

  Status build(const FrontFds& fds);
  Status open_batches(http::ServerSetup& setup, std::size_t engines);
  std::string opening();
  LiveState look() const;
  void watch();
  Log log(const std::string& actor) const {
    auto opened = Log::open(actor, options.log);
    return (opened.ok() ? *opened : Log()).observed_by(traces);
  }
};

Status Front::Impl::build(const FrontFds& fds) {
  const Log start_log = log("gateway");
  auto files = read_model(options, fds.vocabulary, start_log);
  ::malloc_trim(0);  // what was read of the files
  if (!files.ok()) return files.status();
  FrontSetup front;
  for (const FrontFds::Engine& engine : fds.engines) {
    auto attached = ipc::UpperEnd::attach(engine.step, engine.cache);
    if (!attached.ok()) return attached.status();
    engines.push_back(std::make_shared<Link>(*std::move(attached)));
    engines.back()->end().beat_elsewhere();
    if (engine.names < 0) continue;
    auto names = ipc::BlockNames::attach(engine.names, ipc::Access::read);
    if (!names.ok()) return names.status();
    front.block_names.push_back(std::make_shared<ipc::BlockNames>(*std::move(names)));
  }
  if (front.block_names.size() != engines.size()) front.block_names.clear();  // they go by the engine's index
  const std::size_t prefills = options.split.prefill_ports.size() + options.remote.prefill_engines.size();
  if (engines.size() <= prefills)
    return failure(Code::internal, "the front needs a link to an engine that is no prefill instance's");
  const std::size_t own = engines.size() - prefills;
  health->has_engines(own);
  for (const auto& [step, cache] : fds.texts) {
    auto end = ipc::UpperEnd::attach(step, cache);
    if (!end.ok()) return end.status();
    texts.push_back(std::make_shared<Link>(*std::move(end)));
    texts.back()->end().beat_elsewhere();
  }

  options.limits.max_body_bytes = options.limits.body_bytes(files->spec.vision.has_value());
  const std::vector<std::string> names = model_names(options.model);
  // The others mean the same model, but are not listed.
  const std::size_t served =
      std::clamp<std::size_t>(distinct(options.model.served_model_names), 1, names.size());
  http::ModelFacts facts = model_facts(files->generation, files->sessions->syntax, files->chat.get());
  facts.names = names;
  facts.served_names = served;
  facts.any_name = options.model.any_model_name;
  facts.vocab_size = files->spec.vocab;
  facts.embedding_width = files->spec.hidden;
  facts.sees = files->spec.vision.has_value();
  facts.media = config::media_rules(options.media);
  facts.offers_forms = options.guided.on();
  facts.sampling.seed = static_cast<std::uint64_t>(options.model.seed);
  http::ServerSetup setup{options.http, options.limits, std::move(facts), fds.listen, fds.metrics};

  if (Status status = open_batches(setup, own); !status.ok()) return status;

  const Deliver deliver = [this](std::uint32_t io, std::vector<http::Output>&& outputs) {
    if (io < server->io_threads()) return server->deliver(io, std::move(outputs));
    if (batches != nullptr) batches->take(std::move(outputs));
  };
  const std::int64_t created = unix_seconds();
  std::vector<http::ModelCard> cards;
  for (std::size_t i = 0; i < served; ++i) {
    cards.push_back({names[i], options.model.model, created, files->sessions->max_model_len,
                     files->spec.vision.has_value(), setup.model.sampling});
  }
  http_side = std::make_unique<HttpSide>(cards, health, deliver, start_log);
  server = std::make_unique<http::Server>(setup, *http_side);

  front.options = options;
  front.build = kBuild;
  front.engines = engines;
  front.own_engines = own;
  front.first_remote = engines.size() - options.relayed_engines().size();
  front.texts = texts;
  front.distrusted = [this](std::uint32_t index, const std::string& why) {
    const std::lock_guard lock(mutex);
    distrusted.push_back({index, why});
  };
  front.sessions = files->sessions;
  if (files->spec.vision && fds.patches >= 0) {
    auto parts = media_parts(
        options.media, fds.patches, fds.media,
        {front.block_names.begin(),
         front.block_names.begin() + static_cast<std::ptrdiff_t>(std::min(own, front.block_names.size()))});
    if (!parts.ok()) return parts.status();
    front.media = *std::move(parts);
  }
  front.io_threads = server->io_threads() + (batches != nullptr ? 1 : 0);  // the last host is the batches'
  front.constants = {TROUPE_VERSION,
                     names.front(),
                     options.scheduler.max_num_seqs * static_cast<int>(own),
                     options.scheduler.block_size,
                     cache_type(options, files->spec),
                     options.device.gpu_memory_utilization,
                     own,
                     options.speculation.method,
                     options.speculation.tokens};
  front.health = health;
  front.deliver = deliver;
  front.progress = progress;
  front.config_json = config::to_public_json(options);
  front.log = [this](const std::string& actor) { return log(actor); };
  front.traced = [traces = traces](const TracedEvent& event) {
    traces->add(event.request_id, event.actor, event.event, event.details, event.at_ns);
  };
  front.silent = [health = health, own](std::uint32_t engine, const SilentPart& silent) {
    if (engine < own) health->engine_looked(engine, silent.part);
  };
  front.welcomed = [this](const std::string& topology) {
    const std::lock_guard lock(mutex);
    engine_topology = topology;
  };
  actors = std::make_unique<FrontSystem>(std::move(front));
  feed = std::make_unique<LiveFeed>(
      LiveFeed::Setup{[this] { return opening(); }, [this] { return look(); }, traces.get(), deliver});
  http_side->connect(actors->gateway(), actors->metrics(), feed.get(), batches.get());
  if (batches != nullptr) batches->start(*http_side);
  if (Status status = server->start(); !status.ok()) return status;
  watch();
  return {};
}

/// Opens --batch-dir, if there is one.
Status Front::Impl::open_batches(http::ServerSetup& setup, std::size_t engines) {
  if (options.batch.dir.empty()) return {};
  auto store = http::BatchStore::open(options.batch.dir, options.batch.dir_bytes);
  if (!store.ok()) return store.status();
  const int slots = options.scheduler.max_num_seqs > 0 ? options.scheduler.max_num_seqs : kBatchConcurrency;
  http::BatchService::Setup parts{options.batch, setup.limits, setup.model};
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
  actors->watch_by(watchdog);
  for (std::uint32_t io = 0; io < server->io_threads(); ++io) {
    watchdog.watch({"http-" + std::to_string(io)},
                   [this, io](std::shared_ptr<Pulse> pulse) { server->ask_for_beat(io, std::move(pulse)); });
  }
  for (std::size_t i = 0; i < http::kParsers; ++i) {
    watchdog.watch({http::kParserNames[i], true, http::parse_time(options.limits)},
                   [this, i] { return server->parser_beats(i); });
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    watchdog.watch({"text-" + std::to_string(i), false}, [link = texts[i]] {
      return static_cast<std::uint64_t>(link->end().heartbeat_ns(ipc::Side::lower));
    });
  }
  // One that beats is enough: it serves.
  watchdog.watch({"engine", false}, [engines = engines] {
    std::int64_t latest = 0;
    for (const auto& link : engines) latest = std::max(latest, link->end().heartbeat_ns(ipc::Side::lower));
    return static_cast<std::uint64_t>(latest);
  });
}

/// The actors of the front and of an engine, the arrows between them, and the link.
std::string Front::Impl::opening() {
  auto all = nlohmann::ordered_json::parse(topology_json(actors->arrows()));
  const std::lock_guard lock(mutex);
  const auto engine = nlohmann::ordered_json::parse(engine_topology, nullptr, /*allow_exceptions=*/false);
  if (!engine.is_object()) return all.dump();
  for (const char* part : {"actors", "arrows"}) {
    for (const auto& one : engine[part]) all[part].push_back(one);
  }
  return all.dump();
}

/// The supervisor's part is what `troupe status` shows. It asks this front in turn, through the control
/// thread.
LiveState Front::Impl::look() const {
  LiveState live;
  live.state = std::string(http::to_string(health->get()));
  if (const auto page =
          supervisor::query_status(options.process.runtime_dir, options.http.port, kLookPatience);
      page.ok()) {
    live.server = *page;
  }
  if (auto own = actors->actors(kLookPatience); own.ok()) live.actors = *std::move(own);
  if (const auto engine = actors->engine_actors(kLookPatience); engine.ok()) {
    live.actors.insert(live.actors.end(), engine->begin(), engine->end());
  }
  if (const auto status = actors->ask_status(kLookPatience).get())
    live.prompt_tokens = status->scheduler.prompt_tokens;
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

std::string Front::state() const { return std::string(http::to_string(impl_->health->get())); }

bool Front::alive() const { return impl_->actors->alive(); }

std::string Front::why() const { return impl_->actors->why(); }

std::future<std::optional<EngineStatus>> Front::ask_status(Duration patience) {
  return impl_->actors->ask_status(patience);
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
  impl.health->looked(now, longest.stands_still() ? longest.part : nullptr);
  if (impl.watchdog.longest_in_engine().late()) return;
  for (const auto& engine : impl.engines) engine->end().beat();
  for (const auto& text : impl.texts) text->end().beat();
}

std::string Front::silent() const { return impl_->watchdog.longest_in_engine().silent_part(); }

std::optional<Front::Distrusted> Front::take_distrusted() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->distrusted.empty()) return std::nullopt;
  Distrusted one = std::move(impl_->distrusted.front());
  impl_->distrusted.pop_front();
  return one;
}

void Front::report(ProcessReports processes) { impl_->actors->report(std::move(processes)); }

void Front::drain() {
  impl_->server->drain();
  if (impl_->batches != nullptr) impl_->batches->drain();
  impl_->feed->end();
  impl_->health->set(http::Health::State::draining);  // at once, even when the actors are busy
  impl_->actors->drain();
}

void Front::abandon() { impl_->actors->abandon(); }

bool Front::idle() const { return impl_->actors->drained() && impl_->server->active() == 0; }

std::uint64_t Front::served() const { return impl_->http_side->served(); }

std::uint64_t Front::generated_tokens() const { return *impl_->progress; }

void Front::stop() {
  impl_->health->forget();
  impl_->watchdog.clear();  // its handles must not outlive the actors
  if (impl_->server != nullptr) impl_->server->stop();
  if (impl_->batches != nullptr) impl_->batches->stop();
  if (impl_->http_side != nullptr) impl_->http_side->disconnect();
  impl_->feed.reset();
  impl_->actors.reset();
}

}  // namespace troupe
