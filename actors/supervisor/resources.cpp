#include "actors/supervisor/resources.h"

#include <filesystem>
#include <utility>

#include "config/hide_secrets.h"
#include "ipc/block_names.h"

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

Result<Resources> Resources::take(config::Options options, int ranks, RanksMemory memory, Opening opening,
                                  int texts) {
  auto ports = take_ports(options, ranks, opening);
  if (!ports.ok()) return ports.status();
  auto file = make_options_file(options);
  if (!file.ok()) return file.status();
  auto worker_file = make_options_file(config::without_secrets(options));
  if (!worker_file.ok()) return worker_file.status();
  constexpr int kMostSequences = 512;  // without an option
  const int sequences = options.scheduler.max_num_seqs;
  const auto sizes =
      ipc::LinkSizes::for_sequences(static_cast<std::uint32_t>(sequences > 0 ? sequences : kMostSequences));
  auto names = ipc::BlockNames::create();
  if (!names.ok()) return names.status();
  Resources made{std::move(options),
                 std::move(*ports),
                 std::move(*file),
                 std::move(*worker_file),
                 {},
                 {},
                 {},
                 std::move(*names),
                 {},
                 std::move(memory.fd),
                 {}};
  std::vector<ipc::LinkMonitor> monitors;
  for (int rank = 0; rank < ranks; ++rank) {
    auto link = make_link(sizes);
    if (!link.ok()) return link.status();
    made.links.push_back(std::move(link->fds));
    monitors.push_back(std::move(link->monitor));
  }
  auto front_link = make_link(kFrontLink);
  if (!front_link.ok()) return front_link.status();
  made.front_link = std::move(front_link->fds);
  made.monitors = RankLinks(std::move(monitors), std::move(memory.set_epoch), std::move(front_link->monitor));
  for (int text = 0; text < texts; ++text) {
    auto link = make_link(kTextLink);
    if (!link.ok()) return link.status();
    made.text_links.push_back(std::move(link->fds));
    made.monitors.add_text(std::move(link->monitor));
  }
  return made;
}

std::vector<Child> Resources::make_children(const std::vector<std::string>& words_before) const {
  std::vector<Child> children;
  const auto make = [&](std::string name, ChildKind kind, int rank, const char* subcommand) {
    Child child;
    child.name = std::move(name);
    child.kind = kind;
    child.rank = rank;
    child.words = words_before;
    child.words.push_back(subcommand);
    ChildArguments& arguments = child.arguments;
    arguments.options_fd = kind == ChildKind::front ? options_file.get() : worker_options_file.get();
    arguments.rank = rank;
    if (kind == ChildKind::front || kind == ChildKind::engine) {
      arguments.link_step_fds.push_back(front_link.step.get());
      arguments.link_cache_fds.push_back(front_link.cache.get());
    }
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (kind != ChildKind::engine && (kind != ChildKind::worker || static_cast<int>(i) != rank)) continue;
      arguments.step_fds.push_back(links[i].step.get());
      arguments.cache_fds.push_back(links[i].cache.get());
    }
    return child;
  };
  children.push_back(make("front", ChildKind::front, 0, "front"));
  children.back().arguments.listen_fd = ports.listen.get();
  children.back().arguments.metrics_fd = ports.metrics_listen.get();
  for (const ipc::LinkFds& link : text_links) {
    children.back().arguments.text_step_fds.push_back(link.step.get());
    children.back().arguments.text_cache_fds.push_back(link.cache.get());
  }
  children.back().arguments.vocabulary_fd = vocabulary.get();
  children.push_back(make("engine", ChildKind::engine, 0, "engine"));
  children.back().arguments.names_fd = block_names.get();
  children.back().arguments.vocabulary_fd = vocabulary.get();
  for (int rank = 0; rank < static_cast<int>(links.size()); ++rank) {
    children.push_back(make("worker-" + std::to_string(rank), ChildKind::worker, rank, "worker"));
    children.back().arguments.ranks_fd = ranks_memory.get();
  }
  for (int index = 0; index < static_cast<int>(text_links.size()); ++index) {
    children.push_back(make("text-" + std::to_string(index), ChildKind::text, index, "text"));
    ChildArguments& arguments = children.back().arguments;
    arguments.link_step_fds.push_back(text_links[static_cast<std::size_t>(index)].step.get());
    arguments.link_cache_fds.push_back(text_links[static_cast<std::size_t>(index)].cache.get());
    arguments.vocabulary_fd = vocabulary.get();
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

std::string Resources::summary() const {
  const StatusPage p = page();
  return "ports     http " + std::to_string(p.http_port) + ", metrics " + std::to_string(p.metrics_port) +
         ", engine-worker-queue " + numbers(p.engine_worker_queue_ports) + ", cache-queue " +
         numbers(p.cache_queue_ports) + "\nlogs      " + options.log.dir + "\n";
}

StatusPage Resources::page() const {
  StatusPage page;
  page.model = name_of(options.model);
  page.url = url_of(options.http, reachable_host(options.http.host));
  page.logs.dir = absolute_path(options.log.dir);
  for (const auto& [actor, directory] : options.log.actor_dirs)
    page.logs.actor_dirs[actor] = absolute_path(directory);
  page.http_port = options.http.port;
  page.metrics_port = options.http.metrics_port.value_or(options.http.port);
  for (const ipc::PortLock& lock : ports.step_queues) page.engine_worker_queue_ports.push_back(lock.port());
  for (const ipc::PortLock& lock : ports.cache_queues) page.cache_queue_ports.push_back(lock.port());
  for (std::size_t rank = 0; rank < monitors.size(); ++rank) {
    const std::string suffix = monitors.size() == 1 ? "" : "-" + std::to_string(rank);
    for (const ipc::QueueDepth& queue : monitors[rank].depths()) {
      page.queues.push_back({queue.name + suffix, queue.bytes, queue.capacity_bytes});
    }
  }
  return page;
}

std::string url_of(const config::HttpOptions& http, const std::string& host) {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return (http.certificate_pem.empty() ? "http://" : "https://") + name + ":" + std::to_string(http.port);
}

std::string name_of(const config::ModelOptions& model) {
  if (!model.served_model_name.empty()) return model.served_model_name;
  const std::filesystem::path path = model.directory.empty() ? model.model : model.directory;
  return (path / "").lexically_normal().parent_path().filename().string();
}

}  // namespace troupe::supervisor
