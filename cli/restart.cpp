// troupe restart: replaces one process of a running server.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/supervisor/local_requests.h"
#include "actors/supervisor/status_page.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/restart_target.h"
#include "cli/running_server.h"
#include "config/parse.h"
#include "ipc/wire.h"

namespace troupe::cli {
namespace {

constexpr Duration kAskPatience = std::chrono::seconds(3);
constexpr Duration kLook = std::chrono::milliseconds(50);

struct ProcessState {
  std::int64_t pid = 0;
  std::string state;
};

/// The process of this name on a status page.
std::optional<ProcessState> find_process(const std::string& page, const std::string& name) {
  const auto json = nlohmann::json::parse(page, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("processes")) return std::nullopt;
  for (const auto& process : json["processes"]) {
    if (process.value("name", "") == name)
      return ProcessState{process.value("pid", std::int64_t{0}), process.value("state", "")};
  }
  return std::nullopt;
}

/// The names of the processes on a status page.
std::vector<std::string> process_names(const std::string& page) {
  const auto json = nlohmann::json::parse(page, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  if (!json.is_object() || !json.contains("processes")) return names;
  for (const auto& process : json["processes"]) names.push_back(process.value("name", ""));
  return names;
}

}  // namespace

int restart_main(int argc, char** argv) {
  const Synopsis synopsis{
      "restart", "replace a process of a running server while streams go on",
      "troupe restart engine|front|media|text|video|worker [--index N] [--port N]",
      "  troupe restart engine\n"
      "  troupe restart media-0\n"
      "  troupe restart worker --index 1 --port 8180\n"
      "\n"
      "The process runs the program that is installed now. A front finishes its requests first.\n"};
  WhichServer which;
  std::optional<int> index;
  int patience_s = 120;
  const std::vector<config::Field> fields = {
      port_field(which),
      {.name = "index",
       .slot = &index,
       .help = "which of several; a name as `troupe status` shows it has its number",
       .unit = "",
       .min = 0,
       .max = 4096,
       .when_unset = "0"},
      {.name = "timeout",
       .slot = &patience_s,
       .help = "how long to wait until it is ready",
       .unit = "s",
       .min = 1,
       .max = 86400},
      runtime_dir_field(which),
  };
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  if (words.size() != 1)
    return fail(synopsis, invalid("one of " + std::string(kRestartKinds) + " is needed"));
  if (const auto known = restart_target(words.front(), index, {}); !known.ok())
    return fail(synopsis, known.status());

  const auto server = find_running_server(which);
  if (!server.ok()) return fail(synopsis, server.status()), 1;
  const auto name = restart_target(words.front(), index, process_names(server->status));
  if (!name.ok()) return fail(synopsis, name.status());
  const std::string runtime_dir = which.runtime_dir.empty()
                                      ? config::default_runtime_dir(config::process_environment())
                                      : which.runtime_dir;
  const auto before = find_process(server->status, *name);
  const supervisor::LocalRequest request{supervisor::LocalRequest::Kind::restart, *name, wire::kVersion,
                                         wire::kMessagesVersion};
  const TimePoint began = Clock::now();
  const auto answer = supervisor::ask_supervisor(runtime_dir, server->port, request, kAskPatience);
  if (!answer.ok()) return fail(synopsis, answer.status()), 1;
  const auto reply = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!reply.is_object() || !reply.contains("ok")) {
    return fail(synopsis, failure(Code::unavailable,
                                  reply.is_object() ? reply.value("error", "it was refused") : *answer)),
           1;
  }
  while (Clock::now() - began < std::chrono::seconds(patience_s)) {
    std::this_thread::sleep_for(kLook);
    const auto page = supervisor::query_status(runtime_dir, server->port, kAskPatience);
    if (!page.ok()) continue;
    const auto now = find_process(*page, *name);
    if (!now || !before || now->pid == 0 || now->pid == before->pid || now->state != "ready") continue;
    std::printf("%s restarted after %.1f s\n", name->c_str(),
                std::chrono::duration<double>(Clock::now() - began).count());
    return 0;
  }
  return fail(synopsis,
              failure(Code::timeout, *name + " was not ready after " + std::to_string(patience_s) + " s")),
         1;
}

}  // namespace troupe::cli
