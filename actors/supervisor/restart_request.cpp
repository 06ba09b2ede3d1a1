#include "actors/supervisor/restart_request.h"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "ipc/wire.h"

namespace troupe::supervisor {

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
    nlohmann::json order{{"do", "stop"}};
    TimePoint by = now + terms.grace;
    if (child.kind == ChildKind::front) {
      order = {{"do", "drain"},
               {"deadline_s", std::chrono::duration_cast<std::chrono::seconds>(terms.drain).count()}};
      by = now + terms.drain + terms.slack;
    }
    if (Status status = children.ask_to_restart(child, by, order); !status.ok()) return status;
    if (access(terms.installed.c_str(), X_OK) == 0) child.program = terms.installed;
    return {};
  }
  return failure(Code::not_found, "there is no " + request.child + ": the server has " + names);
}

std::string restart_answer(const Status& status) {
  const auto answer = status.ok() ? nlohmann::json{{"ok", true}} : nlohmann::json{{"error", status.message}};
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe::supervisor
