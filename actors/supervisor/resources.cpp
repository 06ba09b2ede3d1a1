#include "actors/supervisor/resources.h"

#include <filesystem>
#include <utility>

#include "config/hide_secrets.h"
#include "ipc/block_fetches.h"

namespace troupe::supervisor {

namespace {

/// Of the link between front and engine: longer messages go in pieces of 1 MiB, and what finds no room waits
/// at its sender. Its cache rings carry nothing.
constexpr ipc::LinkSizes kFrontLink{
    .step_down = 4u << 20, .step_up = 4u << 20, .cache_down = 4096, .cache_up = 4096};

/// Between the front and a text process, likewise.
constexpr ipc::LinkSizes kTextLink{
    .step_down = 2u << 20, .step_up = 2u << 20, .cache_down = 4096, .cache_up = 4096};

struct WatchedLink {
  ipc::LinkFds fds;
  ipc::LinkMonitor monitor;
};

Result<WatchedLink> make_link(const ipc::LinkSizes& sizes) {
  auto fds = ipc::create_link(sizes);
  if (!fds.ok()) return fds.status();
  auto monitor = ipc::LinkMonitor::attach(fds->step.get(), fds->cache.get());
  if (!monitor.ok()) return monitor.status();
  return WatchedLink{std::move(*fds), std::move(*monitor)};
}

}  // namespace

namespace {

struct WatchedEngine {
  EngineResources resources;
  RankLinks monitors;
};

Result<WatchedEngine> make_engine(int ranks, int fronts, const ipc::LinkSizes& sizes,
                                  const ipc::NamesKey& key, RanksMemory memory) {
  WatchedEngine made;
  std::vector<ipc::LinkMonitor> monitors;
  for (int rank = 0; rank < ranks; ++rank) {
    auto link = make_link(sizes);
    if (!link.ok()) return link.status();
    made.resources.links.push_back(std::move(link->fds));
    monitors.push_back(std::move(link->monitor));
  }
  auto front_link = make_link(kFrontLink);
  if (!front_link.ok()) return front_link.status();
  made.resources.front_link = std::move(front_link->fds);
  auto names = ipc::BlockNames::create(ipc::BlockNames::kMostBlocks, key);
  if (!names.ok()) return names.status();
  made.resources.block_names = std::move(*names);
  made.resources.ranks_memory = std::move(memory.fd);
  made.monitors = RankLinks(std::move(monitors), std::move(memory.set_epoch), std::move(front_link->monitor));
  while (static_cast<int>(made.resources.more_fronts.size()) + 1 < fronts) {
    auto more = make_link(kFrontLink);
    if (!more.ok()) return more.status();
    made.resources.more_fronts.push_back(std::move(more->fds));
    made.monitors.add_front(std::move(more->monitor));
  }
  return made;
}

/// "engine", or "engine-N" where there are several.
std::string engine_name(std::size_t index, std::size_t engines) {
  return engines == 1 ? "engine" : "engine-" + std::to_string(index);
}

}  // namespace

Result<Resources> Resources::take(config::Options options, const ProcessCounts& counts,
                                  std::vector<RanksMemory> memories, Opening opening,
                                  const std::optional<ipc::NamesKey>& names) {
  auto ports = take_ports(options, counts, opening);
  if (!ports.ok()) return ports.status();
  auto file = make_options_file(options);
  if (!file.ok()) return file.status();
  auto worker_file = make_options_file(config::without_secrets(options));
  if (!worker_file.ok()) return worker_file.status();
  constexpr int kMostSequences = 512;  // without an option
  const int sequences = options.scheduler.max_num_seqs;
  const auto sizes =
      ipc::LinkSizes::for_sequences(static_cast<std::uint32_t>(sequences > 0 ? sequences : kMostSequences));
  const auto key = names ? Result<ipc::NamesKey>(*names) : ipc::BlockNames::make_key();
  if (!key.ok()) return key.status();
  Resources made{std::move(options),
                 std::move(*ports),
                 std::move(*file),
                 std::move(*worker_file),
                 {},
                 {},
                 {},
                 {},
                 {},
                 0,
                 {},
                 {},
                 {}};
  memories.resize(static_cast<std::size_t>(counts.engines));
  for (RanksMemory& memory : memories) {
    auto engine = make_engine(counts.ranks, made.options.takes_fronts() ? kMostFronts : 1, sizes, *key,
                              std::move(memory));
    if (!engine.ok()) return engine.status();
    made.engines.push_back(std::move(engine->resources));
    const bool gives = made.options.takes_fronts() && made.options.split.role == config::SplitRole::prefill;
    for (int rank = 0; gives && rank < counts.ranks; ++rank) {
      auto asked = ipc::BlockFetches::create();
      if (!asked.ok()) return asked.status();
      made.engines.back().gives.push_back(*std::move(asked));
    }
    made.monitors.add_engine(std::move(engine->monitors));
  }
  for (const int port : made.options.split.prefill_ports) {
    auto link = make_link(kFrontLink);
    if (!link.ok()) return link.status();
    auto names = ipc::BlockNames::create(ipc::BlockNames::kMostBlocks, *key);
    if (!names.ok()) return names.status();
    made.peers.push_back({port, std::move(link->fds), std::move(*names)});
    made.monitors.add_peer(std::move(link->monitor));
  }
  for (std::size_t i = 0; i < made.options.relayed_engines().size(); ++i) {
    auto link = make_link(kFrontLink);
    if (!link.ok()) return link.status();
    auto table = ipc::BlockNames::create(ipc::BlockNames::kMostBlocks, *key);
    if (!table.ok()) return table.status();
    made.remotes.push_back({std::move(link->fds), std::move(*table), {}});
    for (int rank = 0; rank < counts.ranks && !made.options.remote.prefill_engines.empty(); ++rank) {
      auto fetches = ipc::BlockFetches::create();
      if (!fetches.ok()) return fetches.status();
      made.remotes.back().fetches.push_back(*std::move(fetches));
    }
    made.monitors.add_remote(std::move(link->monitor));
  }
  for (int text = 0; text < counts.texts; ++text) {
    auto link = make_link(kTextLink);
    if (!link.ok()) return link.status();
    made.text_links.push_back(std::move(link->fds));
    made.monitors.add_text(std::move(link->monitor));
  }
  return made;
}

Status Resources::add_models(std::vector<ServedModel> served) {
  for (ServedModel& one : served) {
    one.options.http.port = options.http.port;
    one.options.process = options.process;
    auto file = make_options_file(config::without_secrets(one.options));
    if (!file.ok()) return file.status();
    models.push_back({name_of(one.options.model), *std::move(file), std::move(one.vocabulary)});
  }
  return {};
}

Status Resources::add_media(const ProcessCounts& counts) {
  pictures = counts.pictures;
  for (int i = 0; i < counts.pictures + counts.videos; ++i) {
    auto socket = MediaSocket::make();
    if (!socket.ok()) return socket.status();
    monitors.add_media(*std::move(socket));
  }
  return {};
}

std::vector<Child> Resources::make_children(const std::vector<std::string>& words_before) const {
  std::vector<Child> children;
  const auto make = [&](std::string name, ChildKind kind, const char* subcommand) -> Child& {
    Child& child = children.emplace_back();
    child.name = std::move(name);
    child.kind = kind;
    child.words = words_before;
    child.words.push_back(subcommand);
    const bool answers_http = kind == ChildKind::front && !options.takes_fronts();
    child.arguments.options_fd = answers_http ? options_file.get() : worker_options_file.get();
    if (kind != ChildKind::worker) child.arguments.vocabulary_fd = vocabulary.get();
    return child;
  };
  const auto number = [](Child& child, std::size_t engine, std::size_t rank) {
    child.engine = child.arguments.engine = static_cast<int>(engine);
    child.rank = child.arguments.rank = static_cast<int>(rank);
  };
  const auto give = [](const ipc::LinkFds& link, std::vector<int>& step, std::vector<int>& cache) {
    step.push_back(link.step.get());
    cache.push_back(link.cache.get());
  };

  const auto give_model = [&](Child& child, std::size_t model) {
    if (models.empty()) return;
    child.arguments.options_fd = models[model].options_file.get();
    if (child.kind != ChildKind::worker) child.arguments.vocabulary_fd = models[model].vocabulary.get();
  };

  const char* const in_front = options.takes_fronts() ? "relay" : "front";
  Child& first = make(in_front, ChildKind::front, in_front);
  first.waits_for_others = engines.empty();
  ChildArguments& front = first.arguments;
  front.listen_fd = ports.listen.get();
  front.metrics_fd = ports.metrics_listen.get();
  for (const ModelResources& model : models) {
    front.model_fds.push_back(model.options_file.get());
    front.model_vocabulary_fds.push_back(model.vocabulary.get());
  }
  for (const EngineResources& engine : engines) {
    give(engine.front_link, front.link_step_fds, front.link_cache_fds);
    for (const ipc::LinkFds& link : engine.more_fronts) give(link, front.link_step_fds, front.link_cache_fds);
    for (const ipc::Fd& asked : engine.gives) front.give_fds.push_back(asked.get());
    // To choose by; and images are named with the same key.
    if (engines.size() > 1 || patches || !peers.empty() || !remotes.empty() || options.takes_fronts())
      front.names_fds.push_back(engine.block_names.get());
  }
  for (const PeerResources& peer : peers) {
    give(peer.link, front.link_step_fds, front.link_cache_fds);
    front.names_fds.push_back(peer.block_names.get());
  }
  for (const RemoteResources& remote : remotes) {
    give(remote.link, front.link_step_fds, front.link_cache_fds);
    front.names_fds.push_back(remote.block_names.get());
  }
  front.patches_fd = patches.get();
  for (const ipc::LinkFds& link : text_links) give(link, front.text_step_fds, front.text_cache_fds);
  const std::vector<MediaSocket>& media = monitors.media();
  const auto for_pictures = static_cast<std::size_t>(pictures);
  for (std::size_t i = 0; i < media.size(); ++i)
    (i < for_pictures ? front.media_fds : front.video_fds).push_back(media[i].front_end());

  for (std::size_t i = 0; i < engines.size(); ++i) {
    Child& child = make(engine_name(i, engines.size()), ChildKind::engine, "engine");
    number(child, i, 0);
    give_model(child, i);
    give(engines[i].front_link, child.arguments.link_step_fds, child.arguments.link_cache_fds);
    for (const ipc::LinkFds& link : engines[i].more_fronts)
      give(link, child.arguments.link_step_fds, child.arguments.link_cache_fds);
    child.arguments.names_fds.push_back(engines[i].block_names.get());
    for (const PeerResources& peer : peers) child.arguments.peer_names_fds.push_back(peer.block_names.get());
    for (const RemoteResources& remote : remotes) {
      if (remote.gives_blocks()) child.arguments.peer_names_fds.push_back(remote.block_names.get());
    }
    for (const ipc::LinkFds& link : engines[i].links)
      give(link, child.arguments.step_fds, child.arguments.cache_fds);
  }
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const std::size_t ranks = engines[i].links.size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Child& child = make("worker-" + std::to_string(i * ranks + rank), ChildKind::worker, "worker");
      number(child, i, rank);
      give_model(child, i);
      give(engines[i].links[rank], child.arguments.step_fds, child.arguments.cache_fds);
      child.arguments.ranks_fd = engines[i].ranks_memory.get();
      child.arguments.patches_fd = patches.get();
      if (!engines[i].gives.empty()) child.arguments.give_fds.push_back(engines[i].gives[rank].get());
      for (const RemoteResources& remote : remotes) {
        if (remote.gives_blocks()) child.arguments.fetch_fds.push_back(remote.fetches[rank].get());
      }
    }
  }
  for (std::size_t i = 0; i < text_links.size(); ++i) {
    Child& child = make("text-" + std::to_string(i), ChildKind::text, "text");
    number(child, 0, i);
    if (!models.empty()) give_model(child, i / (text_links.size() / models.size()));
    give(text_links[i], child.arguments.link_step_fds, child.arguments.link_cache_fds);
  }
  for (std::size_t i = 0; i < media.size(); ++i) {
    const bool video = i >= for_pictures;
    Child& child = make(video ? "video-" + std::to_string(i - for_pictures) : "media-" + std::to_string(i),
                        ChildKind::media, "media");
    number(child, 0, i);
    // Clients' files may take it over: it gets nothing else.
    child.arguments.options_fd = child.arguments.vocabulary_fd = -1;
    child.arguments.socket_fd = media[i].process_end();
    child.words.emplace_back(options.media.sandbox ? "--sandbox=on" : "--sandbox=off");
    if (video) child.words.emplace_back("--videos");
  }
  for (std::size_t i = 0; i < remotes.size(); ++i) {
    Child& child = make("relay-" + std::to_string(i), ChildKind::relay, "relay");
    number(child, 0, i);
    give(remotes[i].link, child.arguments.link_step_fds, child.arguments.link_cache_fds);
    child.arguments.names_fds.push_back(remotes[i].block_names.get());
    for (const ipc::Fd& fetches : remotes[i].fetches) child.arguments.fetch_fds.push_back(fetches.get());
    child.arguments.patches_fd = patches.get();
  }
  return children;
}

void Resources::renew(const config::HttpOptions& http, ipc::Fd file) {
  options.http = http;
  options_file = std::move(file);
}

namespace {

std::string numbers(const std::vector<int>& ports) {
  std::string text;
  for (const int port : ports) text += (text.empty() ? "" : ",") + std::to_string(port);
  return text;
}

/// Where a client on this machine reaches a server that listens on `host`.
std::string reachable_host(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  return std::filesystem::absolute(path, error).lexically_normal().string();
}

}  // namespace

namespace {

std::string split_summary(const config::Options& options) {
  const config::SplitOptions& split = options.split;
  switch (split.role) {
    case config::SplitRole::mixed: break;
    case config::SplitRole::prefill:
      if (options.takes_fronts())
        return "role      prefill: computes prompts for decode instances that name this address in "
               "--prefill-engines\n";
      return "role      prefill: computes prompts for a decode instance that names the engine-worker-queue "
             "port\n";
    case config::SplitRole::decode:
      if (split.prefill_ports.empty() && options.remote.prefill_engines.empty())
        return "role      decode without --innode-prefill-ports: computes every prompt itself, as mixed\n";
      std::string at = split.prefill_ports.empty() ? "" : "queue port " + numbers(split.prefill_ports);
      for (const std::string& engine : options.remote.prefill_engines)
        at += (at.empty() ? "" : ", ") + engine;
      return "role      decode: computes every prompt itself, as mixed, until a prefill instance joins at " +
             at + "; then those of less than " + std::to_string(split.min_prompt_tokens) + " tokens\n";
  }
  return "";
}

}  // namespace

std::string Resources::summary() const {
  const StatusPage p = page();
  std::string text =
      options.takes_fronts()
          ? "listens   at " + options.remote.listen + ", for fronts\nports     "
          : "ports     http " + std::to_string(p.http_port) + ", metrics " + std::to_string(p.metrics_port);
  if (!engines.empty()) {
    text += std::string(options.takes_fronts() ? "" : ", ") + "engine-worker-queue " +
            numbers(p.engine_worker_queue_ports) + ", cache-queue " + numbers(p.cache_queue_ports);
  }
  text += "\n" + split_summary(options);
  for (const std::string& engine : options.remote.engines) text += "engine    at " + engine + "\n";
  return text + "logs      " + options.log.dir + "\n";
}

std::string Resources::place() const {
  return options.takes_fronts() ? "for fronts, at " + options.remote.listen
                                : url_of(options.http, options.http.host);
}

StatusPage Resources::page() const {
  StatusPage page;
  page.model = models.empty() ? name_of(options.model) : "";
  for (std::size_t i = 0; i < models.size(); ++i)
    page.model += (i == 0 ? "" : ", ") + models[i].name + " (" + engine_name(i, models.size()) + ")";
  page.url = options.takes_fronts() ? "" : url_of(options.http, reachable_host(options.http.host));
  page.logs.dir = absolute_path(options.log.dir);
  for (const auto& [actor, directory] : options.log.actor_dirs)
    page.logs.actor_dirs[actor] = absolute_path(directory);
  page.http_port = options.http.port;
  page.metrics_port = options.http.metrics_port.value_or(options.http.port);
  for (const ipc::PortLock& lock : ports.step_queues) page.engine_worker_queue_ports.push_back(lock.port());
  for (const ipc::PortLock& lock : ports.cache_queues) page.cache_queue_ports.push_back(lock.port());
  const std::size_t workers = ports.step_queues.size();
  for (std::size_t i = 0, worker = 0; i < monitors.engines(); ++i) {
    const RankLinks& links = monitors.engine(i);
    for (std::size_t rank = 0; rank < links.size(); ++rank, ++worker) {
      const std::string suffix = workers == 1 ? "" : "-" + std::to_string(worker);
      for (const ipc::QueueDepth& queue : links[rank].depths()) {
        page.queues.push_back({queue.name + suffix, queue.bytes, queue.capacity_bytes});
      }
    }
  }
  return page;
}

std::string url_of(const config::HttpOptions& http, const std::string& host) {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return (http.certificate_pem.empty() ? "http://" : "https://") + name + ":" + std::to_string(http.port);
}

std::string name_of(const config::ModelOptions& model) {
  if (!model.served_model_names.empty()) return model.served_model_names.front();
  const std::filesystem::path path = model.directory.empty() ? model.model : model.directory;
  return (path / "").lexically_normal().parent_path().filename().string();
}

}  // namespace troupe::supervisor
