#include "actors/engine/child_main.h"

#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/exhaustion.h"
#include "base/log.h"

namespace troupe {

int run_child(const char* name, const std::vector<std::string>& words, const ChildBody& body) {
  const auto arguments = supervisor::parse_child_arguments(words);
  if (!arguments.ok()) {
    std::fprintf(stderr, "troupe %s: %s\n", name, arguments.status().message.c_str());
    return 2;
  }
  // As top and ps show it; the file it was started from is /proc/self/exe.
  ::pthread_setname_np(::pthread_self(), (std::string("troupe-") + name).c_str());
  std::signal(SIGPIPE, SIG_IGN);
  // A terminal or a service manager sends these signals to all processes. Only the supervisor handles them:
  // it asks its children over the control channel to end, and they end with it in any case.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  supervisor::Control control{ipc::Fd(arguments->control_fd)};
  auto options = supervisor::read_options_file(arguments->options_fd);
  Status status = options.status();
  try {
    if (options.ok()) status = body(*arguments, control, *options);
  } catch (const std::bad_alloc&) {
    status = failure(Code::unavailable, exhaustion_message("memory"));
  }
  if (!status.ok()) control.tell({{"event", "fatal"}, {"message", status.message}});
  Log::flush(1000);
  return status.ok() ? 0 : 1;
}

bool asked_to_end(const supervisor::Packet& packet) {
  using Kind = supervisor::Packet::Kind;
  return packet.kind == Kind::closed || (packet.kind == Kind::message && packet.text("do") == "stop");
}

void SilenceReport::tell(std::string part) {
  if (part == told_) return;
  control_.tell({{"event", "silent"}, {"part", part}});
  told_ = std::move(part);
}

}  // namespace troupe
