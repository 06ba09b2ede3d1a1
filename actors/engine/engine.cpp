#include "actors/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "actors/engine/live_feed.h"
#include "actors/engine/request_traces.h"
#include "actors/supervisor/status_page.h"
#include "actors/topology.h"
#include "base/usable_cores.h"
#include "config/dump.h"
#include "config/quantization.h"
#include "http/connection_deadlines.h"
#include "http/server.h"
#include "model/checkpoint/generation_config.h"
#include "model/checkpoint/spec.h"
#include "model/weight_formats.h"
#include "text/parsers/choose_syntax.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe {
namespace {

// A part that has not answered for so long stands still; a busy machine delays an answer by less.
constexpr Duration kSilent = std::chrono::milliseconds(1500);
// After so long without an answer the engine gives no sign of life itself.
constexpr Duration kLate = std::chrono::milliseconds(600);

/// What is read once from the model's directory.
struct ModelFiles {
  model::ModelSpec spec;
  std::shared_ptr<const Encoder> encoder;
  std::shared_ptr<const SessionContext> sessions;
  std::shared_ptr<const ChatTemplate> chat;  ///< null: the checkpoint has none
  model::GenerationConfig generation;
};

Result<ModelFiles> read_model(const config::Options& options, const Log& log) {
  ModelFiles files;
  const std::string& directory = options.model.directory;
  auto spec = model::read_spec(directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  files.spec = *std::move(spec);

  auto tokenizer = Tokenizer::load(directory, options.model.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();

  auto loaded = ChatTemplate::load(directory, options.model.chat_template, options.model.tokenizer);
  if (loaded.ok()) {
    files.chat = *loaded;
    for (const std::string& name : files.chat->missing()) log.warning("chat_template_lacks", {kv("name", name)});
  } else if (loaded.status().code != Code::not_found) {
    return loaded.status();
  } else {
    log.warning("no_chat_template", {kv("directory", directory)});
  }

  auto syntax = choose_syntax(options.answers, **tokenizer, files.chat.get());
  if (!syntax.ok()) return syntax.status();

  auto generation = model::read_generation_config(directory);
  if (!generation.ok()) return generation.status();
  files.generation = *std::move(generation);
  const config::SchedulerOptions& limits = options.scheduler;
  files.sessions = std::make_shared<SessionContext>(
      SessionContext{*tokenizer,
                     model::end_ids(files.generation, files.spec, (*tokenizer)->eos_id()),
                     limits.max_model_len > 0     ? limits.max_model_len
                     : limits.found_model_len > 0 ? limits.found_model_len
                                                  : files.spec.max_positions,
                     files.spec.vocab,
                     *std::move(syntax),
                     {options.limits.max_answer_scores, options.limits.max_answer_bytes},
                     log.details(3) ? log.max_value_bytes() : 0});
  files.encoder =
      std::make_shared<Encoder>(*tokenizer, files.chat, bounds_of(**tokenizer, files.sessions->max_model_len));
  return files;
}

/// Every model name that a request may use; answers use the first.
std::vector<std::string> model_names(const config::ModelOptions& model) {
  const std::string directory = std::filesystem::path(model.directory).lexically_normal().filename().string();
  std::vector<std::string> names;
  for (const std::string& name : {model.served_model_name, directory, model.model, std::string("default")}) {
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
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

std::uint32_t half_the_cores(int wanted) {
  if (wanted > 0) return static_cast<std::uint32_t>(wanted);
  return std::clamp(usable_cores() / 2, 1u, 4u);
}

}  // namespace

constexpr auto kLookPatience = std::chrono::seconds(2);
constexpr std::size_t kTracesShown = 16;

// In the order of lifetimes: the server calls the HTTP side, which sends to the cast and to the feed.
struct Engine::Impl {
  config::Options options;
  Heart heart;  // outlives the health cell's readers
  std::shared_ptr<HealthCell> health = std::make_shared<HealthCell>();
  std::shared_ptr<std::atomic<std::uint64_t>> progress = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::shared_ptr<RequestTraces> traces = std::make_shared<RequestTraces>();
  std::unique_ptr<Cast> cast;
  std::unique_ptr<LiveFeed> feed;
  std::unique_ptr<HttpSide> http_side;
  std::unique_ptr<http::Server> server;
  std::vector<std::shared_ptr<ipc::EngineEnd>> links;  // by rank

  Status build(const EngineFds& fds);
  LiveState look() const;
  void watch();
  Log log(const std::string& actor) const {
    auto opened = Log::open(actor, options.log);
    return (opened.ok() ? *opened : Log()).tapped(traces);
  }
};

Status Engine::Impl::build(const EngineFds& fds) {
  const Log start_log = log("gateway");
  auto files = read_model(options, start_log);
  if (!files.ok()) return files.status();
  if (fds.step.empty() || fds.step.size() != fds.cache.size()) {
    return failure(Code::internal, "the engine needs a step segment and a cache segment for each rank");
  }
  for (std::size_t rank = 0; rank < fds.step.size(); ++rank) {
    auto attached = ipc::EngineEnd::attach(fds.step[rank], fds.cache[rank]);
    if (!attached.ok()) return attached.status();
    links.push_back(std::make_shared<ipc::EngineEnd>(*std::move(attached)));
    links.back()->beat_elsewhere();
  }

  const std::vector<std::string> names = model_names(options.model);
  http::ServerSetup setup{options.http, options.limits, {names, files->spec.vocab, options.guided.on()}, fds.listen, fds.metrics};

  const Deliver deliver = [this](std::uint32_t io, std::vector<http::Output>&& outputs) {
    server->deliver(io, std::move(outputs));
  };
  const std::int64_t created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const std::vector<http::ModelCard> cards{
      {names.front(), options.model.model, created, files->sessions->max_model_len}};
  http_side = std::make_unique<HttpSide>(
      RequestResolver({names.front(), files->generation, static_cast<std::uint64_t>(options.model.seed),
                       files->sessions->syntax, thinking_switch(files->chat.get()), options.guided.on(),
                       files->chat == nullptr || files->chat->reads("tools"),
                       std::chrono::seconds(options.limits.request_timeout_s)}),
      cards, health, deliver, start_log);
  server = std::make_unique<http::Server>(setup, *http_side);

  CastSetup cast_setup;
  cast_setup.options = options;
  cast_setup.links = links;
  cast_setup.spec_hash = model::storage_hash(files->spec, options);
  cast_setup.encoder = files->encoder;
  cast_setup.tokenizers = half_the_cores(options.tokenizer.threads);
  cast_setup.sessions = files->sessions;
  cast_setup.io_threads = server->io_threads();
  cast_setup.constants = {TROUPE_VERSION, names.front(), options.scheduler.max_num_seqs, options.scheduler.block_size,
                          cache_type(options, files->spec), options.device.gpu_memory_utilization};
  cast_setup.health = health;
  cast_setup.deliver = deliver;
  cast_setup.progress = progress;
  cast_setup.config_json = config::to_public_json(options);
  cast_setup.log = [this](const std::string& actor) { return log(actor); };

  cast = std::make_unique<Cast>(std::move(cast_setup));
  feed = std::make_unique<LiveFeed>(
      LiveFeed::Setup{topology_json(cast->arrows()), [this] { return look(); }, traces.get(), deliver});
  http_side->connect(cast->gateway(), cast->metrics(), feed.get());
  if (Status status = server->start(); !status.ok()) return status;
  watch();
  return {};
}

void Engine::Impl::watch() {
  cast->watch_by(heart);
  for (std::uint32_t io = 0; io < server->io_threads(); ++io) {
    heart.watch({"http-" + std::to_string(io)},
                [this, io](std::shared_ptr<Pulse> pulse) { server->ask_for_beat(io, std::move(pulse)); });
  }
  for (std::size_t i = 0; i < http::kParsers; ++i) {
    heart.watch({http::kParserNames[i], true, http::parse_time(options.limits)}, [this, i] { return server->parser_beats(i); });
  }
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    heart.watch({"worker-" + std::to_string(rank), false}, [link = links[rank]] {
      return static_cast<std::uint64_t>(link->heartbeat_ns(ipc::Side::worker));
    });
  }
}

/// The supervisor's part is what `troupe status` shows. It asks this engine in turn, through the control thread.
LiveState Engine::Impl::look() const {
  LiveState live;
  live.state = std::string(http::to_string(health->get()));
  if (const auto page = supervisor::query_status(options.process.runtime_dir, options.http.port, kLookPatience); page.ok()) {
    live.server = *page;
  }
  if (auto actors = cast->actors(kLookPatience); actors.ok()) live.actors = *std::move(actors);
  if (const auto status = cast->status(kLookPatience); status.ok()) live.prompt_tokens = status->scheduler.prompt_tokens;
  live.generated_tokens = *progress;
  live.requests = traces->latest(kTracesShown);
  return live;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { stop(); }

Result<std::unique_ptr<Engine>> Engine::start(const config::Options& options, const EngineFds& fds) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  Status status = impl->build(fds);
  std::unique_ptr<Engine> engine(new Engine(std::move(impl)));
  if (!status.ok()) return status;
  return engine;
}

std::string Engine::state() const { return std::string(http::to_string(impl_->health->get())); }

bool Engine::alive() const { return impl_->cast->alive(); }

std::string Engine::why() const { return impl_->cast->why(); }

std::future<std::optional<EngineStatus>> Engine::ask_status(Duration patience) { return impl_->cast->ask_status(patience); }

Status Engine::renew_credentials(const config::HttpOptions& http) {
  config::HttpOptions renewed = impl_->options.http;
  renewed.file_api_keys = http.file_api_keys;
  renewed.file_admin_api_keys = http.file_admin_api_keys;
  renewed.certificate_pem = http.certificate_pem;
  renewed.private_key_pem = http.private_key_pem;
  Status status = impl_->server->renew(renewed);
  if (status.ok()) impl_->options.http = std::move(renewed);
  return status;
}

void Engine::beat() {
  Impl& impl = *impl_;
  const TimePoint now = Clock::now();
  impl.heart.check(now);
  const Silence longest = impl.heart.longest();
  impl.health->looked(now, longest.time >= kSilent ? longest.part : nullptr);
  if (impl.heart.longest_in_engine().time >= kLate) return;
  for (const auto& link : impl.links) link->beat();
}

std::string Engine::silent() const {
  const http::Health health = impl_->health->health();
  return std::string(health.silent);
}

void Engine::report(ProcessReports processes) { impl_->cast->report(std::move(processes)); }

void Engine::drain() {
  impl_->server->drain();
  impl_->feed->end();
  impl_->health->set(http::Health::State::draining);  // at once, even when the actors are busy
  impl_->cast->drain();
}

void Engine::abandon() { impl_->cast->abandon(); }

bool Engine::idle() const { return impl_->cast->drained() && impl_->server->active() == 0; }

std::uint64_t Engine::served() const { return impl_->http_side->served(); }

std::uint64_t Engine::generated_tokens() const { return *impl_->progress; }

void Engine::stop() {
  impl_->health->forget();
  impl_->heart.clear();  // its handles must not outlive the actors
  if (impl_->server != nullptr) impl_->server->stop();
  if (impl_->http_side != nullptr) impl_->http_side->disconnect();
  impl_->feed.reset();
  impl_->cast.reset();
}

}  // namespace troupe
