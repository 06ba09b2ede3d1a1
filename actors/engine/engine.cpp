#include "actors/engine/engine.h"

#include <atomic>
#include <chrono>

#include "actors/engine/shared_vocabulary.h"
#include "actors/engine/watchdog.h"
#include "actors/topology.h"
#include "base/clock.h"
#include "model/checkpoint/generation_config.h"
#include "model/checkpoint/spec.h"
#include "model/weight_formats.h"

namespace troupe {
namespace {

// How often fronts are told of a part that stands still.
constexpr Duration kTellAgain = std::chrono::milliseconds(250);

/// Reads what the actors need to know of the model.
Status read_model(const config::Options& options, int vocabulary_fd, EngineSetup& setup) {
  const std::string& directory = options.model.directory;
  const auto spec = model::read_spec(directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  setup.spec_hash = model::storage_hash(*spec, options);
  setup.vocabulary = spec->vocab;
  if (!options.guided.on()) return {};
  const auto texts = read_texts(options.model, vocabulary_fd, Log());  // the front has logged why
  if (!texts.ok()) return texts.status();
  const auto generation = model::read_generation_config(directory);
  if (!generation.ok()) return generation.status();
  setup.texts = *texts;
  setup.eos_ids = model::end_ids(*generation, *spec, (*texts)->eos_id());
  return {};
}

}  // namespace

// In the order of lifetimes.
struct Engine::Impl {
  Watchdog watchdog;
  std::shared_ptr<std::atomic<bool>> ready;
  std::unique_ptr<EngineSystem> actors;
  std::vector<std::shared_ptr<ipc::UpperEnd>> links;  // to the workers, by rank
  std::vector<std::shared_ptr<Link>> fronts;
  std::string told_silent;
  TimePoint tell_again{};

  Status build(const config::Options& options, const EngineFds& fds);
  void watch(std::size_t first_worker);
};

Status Engine::Impl::build(const config::Options& options, const EngineFds& fds) {
  EngineSetup setup;
  setup.options = options;
  setup.build = TROUPE_VERSION;
  if (Status status = read_model(options, fds.vocabulary, setup); !status.ok()) return status;
  if (fds.step.empty() || fds.step.size() != fds.cache.size() || fds.fronts.empty()) {
    return failure(
        Code::internal,
        "the engine needs a step segment and a cache segment for each rank, and a link to a front");
  }
  for (std::size_t rank = 0; rank < fds.step.size(); ++rank) {
    auto attached = ipc::UpperEnd::attach(fds.step[rank], fds.cache[rank]);
    if (!attached.ok()) return attached.status();
    links.push_back(std::make_shared<ipc::UpperEnd>(*std::move(attached)));
    links.back()->beat_elsewhere();
  }
  for (const auto& [step, cache] : fds.fronts) {
    auto attached = ipc::LowerEnd::attach(step, cache);
    if (!attached.ok()) return attached.status();
    fronts.push_back(std::make_shared<Link>(*std::move(attached)));
    fronts.back()->end().beat_elsewhere();
    if (options.takes_fronts()) fronts.back()->wait_for_greeting();
  }
  if (fds.names >= 0) {
    auto attached = ipc::BlockNames::attach(fds.names);
    if (!attached.ok()) return attached.status();
    setup.block_names = std::make_shared<ipc::BlockNames>(*std::move(attached));
  }
  for (const int fd : fds.peer_names) {
    auto attached = ipc::BlockNames::attach(fd, ipc::Access::read);
    if (!attached.ok()) return attached.status();
    setup.peer_names.push_back(std::make_shared<ipc::BlockNames>(*std::move(attached)));
  }
  setup.links = links;
  setup.fronts = fronts;
  setup.remote_fronts = options.takes_fronts();
  ready = setup.ready;
  const auto forwarder = std::make_shared<TraceForwarder>(fronts.front());
  // Each engine writes files of its own.
  setup.log = [options = options.log, forwarder, index = fds.index](const std::string& actor) {
    auto opened = Log::open(numbered(actor, index), options);
    return (opened.ok() ? *opened : Log()).observed_by(forwarder);
  };
  actors = std::make_unique<EngineSystem>(std::move(setup));
  watch(static_cast<std::size_t>(fds.index) * fds.step.size());
  return {};
}

void Engine::Impl::watch(std::size_t first_worker) {
  actors->watch_by(watchdog);
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    watchdog.watch({"worker-" + std::to_string(first_worker + rank), false}, [link = links[rank]] {
      return static_cast<std::uint64_t>(link->heartbeat_ns(ipc::Side::lower));
    });
  }
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() { stop(); }

Result<std::unique_ptr<Engine>> Engine::start(const config::Options& options, const EngineFds& fds) {
  auto impl = std::make_unique<Impl>();
  Status status = impl->build(options, fds);
  std::unique_ptr<Engine> engine(new Engine(std::move(impl)));
  if (!status.ok()) return status;
  return engine;
}

bool Engine::ready() const { return *impl_->ready; }

bool Engine::alive() const { return impl_->actors->alive(); }

std::string Engine::why() const { return impl_->actors->why(); }

void Engine::beat() {
  Impl& impl = *impl_;
  const TimePoint now = Clock::now();
  impl.watchdog.check(now);
  std::string part = silent();
  // A front that has come since has not heard it.
  if (part != impl.told_silent || (!part.empty() && now >= impl.tell_again)) {
    for (const auto& front : impl.fronts) send_silent(*front, {part});
    impl.told_silent = std::move(part);
    impl.tell_again = now + kTellAgain;
  }
  if (impl.watchdog.longest_in_engine().late()) return;
  for (const auto& link : impl.links) link->beat();
  for (const auto& front : impl.fronts) front->end().beat();
}

std::string Engine::silent() const { return impl_->watchdog.longest().silent_part(); }

void Engine::stop() {
  impl_->watchdog.clear();  // its handles must not outlive the actors
  impl_->actors.reset();
}

}  // namespace troupe
