#include "cli/instance.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "actors/supervisor/status_page.h"
#include "config/parse.h"
#include "ipc/rendezvous.h"

namespace troupe::cli {
namespace {

std::string describe(const ipc::PortOwner& owner) {
  return std::to_string(owner.port) + " (pid " + std::to_string(owner.pid) + ")";
}

/// The port that a person types; nothing at the end of the input.
std::optional<int> ask(const std::vector<ipc::PortOwner>& owners) {
  for (const ipc::PortOwner& owner : owners) std::fprintf(stderr, "  %s\n", describe(owner).c_str());
  for (std::string line;;) {
    std::fprintf(stderr, "Several servers are running. Which port? ");
    if (!std::getline(std::cin, line)) return std::nullopt;
    int port = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), port);
    const bool number = error == std::errc{} && end == line.data() + line.size();
    if (number && std::ranges::count(owners, port, &ipc::PortOwner::port) > 0) return port;
    std::fprintf(stderr, "None has the port \"%s\".\n", line.c_str());
  }
}

}  // namespace

Result<std::optional<int>> choose_port(const std::string& runtime_dir, std::optional<int> asked) {
  if (asked) return asked;
  const auto owners = ipc::live_owners(runtime_dir, ipc::PortKind::http);
  if (owners.empty()) return std::optional<int>();
  if (owners.size() == 1) return std::optional(owners.front().port);
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) {
    if (const auto port = ask(owners)) return port;
  }
  std::string list;
  for (const ipc::PortOwner& owner : owners) list += (list.empty() ? "" : ", ") + describe(owner);
  return invalid("several servers are running; choose one with --port: " + list, "port");
}

config::Field runtime_dir_field(std::string& runtime_dir) {
  return {.name = "runtime-dir",
          .slot = &runtime_dir,
          .help = "where running servers are found",
          .when_unset = "${XDG_RUNTIME_DIR:-/tmp/troupe-$UID}/troupe"};
}

std::string directory_or_default(const std::string& runtime_dir) {
  return runtime_dir.empty() ? config::default_runtime_dir(config::process_environment()) : runtime_dir;
}

Result<std::optional<Instance>> choose_instance(const std::string& runtime_dir, std::optional<int> asked) {
  const auto port = choose_port(runtime_dir, asked);
  if (!port.ok()) return port.status();
  if (!*port) return std::optional<Instance>();
  const auto page = supervisor::query_status(runtime_dir, **port);
  if (!page.ok()) return page.status();
  const auto json = nlohmann::json::parse(*page, nullptr, false);
  if (!json.is_object()) return failure(Code::internal, "the server on port " + std::to_string(**port) + " gave no status");
  Instance found{.port = **port};
  found.tls = json.value("tls", false);
  found.log_dir = json.value("log_dir", "");
  found.actor_log_dirs = json.value("actor_log_dirs", found.actor_log_dirs);
  return std::optional(std::move(found));
}

}  // namespace troupe::cli
