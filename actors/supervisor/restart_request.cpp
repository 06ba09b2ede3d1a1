#include "actors/supervisor/restart_request.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "ipc/wire.h"

namespace troupe::supervisor {
namespace {

bool same_file(const std::string& one, const std::string& other) {
  struct stat a {
  }, b{};
  return stat(one.c_str(), &a) == 0 && stat(other.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

/// Whether the child's numbers have to be those of other processes to the last bit.
bool is_one_of_several_ranks(const Children& children, const Child& child) {
  return child.kind == ChildKind::worker && std::ranges::count_if(children.all(), [&](const Child& one) {
                                              return one.kind == ChildKind::worker &&
                                                     one.engine == child.engine;
                                            }) > 1;
}

}  // namespace

Status begin_restart(Children& children, const LocalRequest& request, const RestartTerms& terms,
                     TimePoint now) {
  if (request.wire != wire::kVersion || request.messages != wire::kMessagesVersion) {
    return failure(Code::unsupported, "the new program speaks version " + std::to_string(request.wire) +
                                          " of the wire format and " + std::to_string(request.messages) +
                                          " of the messages, this server " + std::to_string(wire::kVersion) +
                                          " and " + std::to_string(wire::kMessagesVersion) +
                                          ": the whole server has to be restarted");
  }
  std::string names;
  for (Child& child : children.all()) {
    names += (names.empty() ? "" : ", ") + child.name;
    if (child.name != request.child) continue;
    const bool runs = access(terms.installed.c_str(), X_OK) == 0;
    if (runs && !same_file(terms.installed, terms.running) && is_one_of_several_ranks(children, child)) {
      return failure(Code::unsupported, child.name +
                                            " is one of several ranks, which have to be of one build, and " +
                                            terms.installed +
                                            " is no longer the program that the server runs: "
                                            "the whole server has to be restarted");
    }
    nlohmann::json order{{"do", "stop"}};
    TimePoint by = now + terms.grace;
    if (child.kind == ChildKind::front) {
      order = {{"do", "drain"},
               {"deadline_s", std::chrono::duration_cast<std::chrono::seconds>(terms.drain).count()}};
      by = now + terms.drain + terms.slack;
    }
    if (Status status = children.ask_to_restart(child, by, order); !status.ok()) return status;
    if (runs) child.program = terms.installed;
    return {};
  }
  return failure(Code::not_found, "there is no " + request.child + ": the server has " + names);
}

std::string restart_answer(const Status& status) {
  const auto answer = status.ok() ? nlohmann::json{{"ok", true}} : nlohmann::json{{"error", status.message}};
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe::supervisor
