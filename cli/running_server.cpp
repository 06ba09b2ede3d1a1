#include "cli/running_server.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "actors/supervisor/status_page.h"
#include "cli/command_line.h"
#include "config/parse.h"
#include "ipc/rendezvous.h"

namespace troupe::cli {
namespace {

constexpr Duration kListPatience = std::chrono::milliseconds(500);  // for the model of each server in a list

/// "8180 (SmolLM2-135M-Instruct, pid 12)"; without a model when the server does not tell it in time.
std::string described(const std::string& runtime_dir, const ipc::PortOwner& owner) {
  std::string model;
  if (const auto text = supervisor::query_status(runtime_dir, owner.port, kListPatience); text.ok()) {
    const auto page = nlohmann::json::parse(*text, nullptr, false);
    if (page.is_object()) model = printable(page.value("model", std::string())) + ", ";
  }
  return std::to_string(owner.port) + " (" + model + "pid " + std::to_string(owner.pid) + ")";
}

/// Asks until an answer is one of the servers' ports, or its number in the list. Nothing at the end of the
/// input.
std::optional<int> ask_for_port(const std::vector<ipc::PortOwner>& owners,
                                const std::vector<std::string>& names) {
  std::fputs("several servers are running:\n", stderr);
  for (std::size_t i = 0; i < names.size(); ++i)
    std::fprintf(stderr, "  %zu  port %s\n", i + 1, names[i].c_str());
  std::string answer;
  while (true) {
    std::fprintf(stderr, "Which one? [1-%zu, or a port] ", owners.size());
    if (!std::getline(std::cin, answer)) return std::nullopt;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (answer == std::to_string(i + 1) || answer == std::to_string(owners[i].port)) return owners[i].port;
    }
  }
}

Result<int> choose_port(const std::string& runtime_dir) {
  const auto owners = ipc::live_owners(runtime_dir, ipc::PortKind::http);
  if (owners.empty()) {
    return failure(Code::not_found, "no server is running (none has its files in " + runtime_dir +
                                        "); `troupe serve` starts one");
  }
  if (owners.size() == 1) return owners[0].port;
  std::vector<std::string> names;
  std::string list;
  for (const ipc::PortOwner& owner : owners) {
    names.push_back(described(runtime_dir, owner));
    list += (list.empty() ? "" : ", ") + names.back();
  }
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) {
    if (const auto port = ask_for_port(owners, names)) return *port;
    std::fputc('\n', stderr);
  }
  return invalid("several servers are running; choose one with --port: " + list, "port");
}

}  // namespace

config::Field port_field(WhichServer& which) {
  return {.name = "port",
          .slot = &which.port,
          .help = "HTTP port of the server",
          .min = 1,
          .max = 65535,
          .when_unset = "that of the running server"};
}

config::Field runtime_dir_field(WhichServer& which) {
  return {.name = "runtime-dir",
          .slot = &which.runtime_dir,
          .help = "where running servers are found",
          .when_unset = "${XDG_RUNTIME_DIR:-/tmp/troupe-$UID}/troupe"};
}

Result<RunningServer> find_running_server(const WhichServer& which) {
  const std::string runtime_dir = which.runtime_dir.empty()
                                      ? config::default_runtime_dir(config::process_environment())
                                      : which.runtime_dir;
  RunningServer server;
  if (which.port) {
    server.port = *which.port;
  } else {
    auto chosen = choose_port(runtime_dir);
    if (!chosen.ok()) return chosen.status();
    server.port = *chosen;
  }
  auto text = supervisor::query_status(runtime_dir, server.port);
  if (!text.ok()) return text.status();
  const auto page = nlohmann::json::parse(*text, nullptr, false);
  try {
    server.url = page.at("url").get<std::string>();
    page.at("logs").at("dir").get_to(server.logs.dir);
    page.at("logs").at("actor_dirs").get_to(server.logs.actor_dirs);
  } catch (const nlohmann::json::exception&) {
    return failure(Code::unsupported, "the server on port " + std::to_string(server.port) +
                                          " is of another version: its status has no url or logs");
  }
  server.status = *std::move(text);
  return server;
}

}  // namespace troupe::cli
