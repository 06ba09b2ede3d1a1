#include "actors/supervisor/child.h"

#include "config/child_environment.h"

namespace troupe::supervisor {

namespace {

config::ChildKind environment_of(ChildKind kind) {
  switch (kind) {
    case ChildKind::front: return config::ChildKind::front;
    case ChildKind::engine: return config::ChildKind::engine;
    case ChildKind::worker: return config::ChildKind::worker;
    case ChildKind::text: return config::ChildKind::text;
    case ChildKind::media: return config::ChildKind::media;
    case ChildKind::relay: return config::ChildKind::relay;
  }
  return config::ChildKind::text;
}

}  // namespace

Status Child::start(const std::string& executable, std::uint32_t in_epoch, TimePoint now) {
  restart_at.reset();
  auto pair = make_control_pair();
  if (!pair.ok()) return pair.status();
  arguments.control_fd = pair->theirs.get();
  std::vector<std::string> line = words;
  for (std::string& word : to_words(arguments)) line.push_back(std::move(word));
  ipc::Fd written;
  if (output.kept()) {
    auto end = output.open();
    if (!end.ok()) return end.status();
    written = *std::move(end);
  }
  auto made = ChildProcess::start(
      program.empty() ? executable : program, line, arguments.descriptors(),
      config::child_environment(environment_of(kind), config::process_environment()), written.get());
  if (!made.ok()) return made.status();
  process = std::move(*made);
  control = std::move(pair->ours);
  started = now;
  epoch = in_epoch;
  ready = asked_to_end = false;
  restart_by.reset();
  state = "starting";
  fatal.clear();
  kill_reason.clear();
  last_beat = 0;
  told_beats = 0;
  silence = {};
  silent_part.clear();
  loaded_bytes = load_bytes = 0;
  return {};
}

std::string Child::take_exit() {
  // Its last messages may still be unread.
  while (control.open()) {
    const Packet packet = control.receive(TimePoint{});
    if (packet.kind != Packet::Kind::message) break;
    if (packet.text("event") == "fatal") fatal = packet.text("message");
    if (packet.text("event") == "state" && packet.text("state") == "ready") ever_ready = true;
  }
  control.close();
  last_exit = process.reap();
  output.close(Clock::now());
  std::string how = name + " " + to_string(last_exit);
  if (!kill_reason.empty()) how += " because it " + kill_reason;
  if (!fatal.empty()) how += ": " + fatal;
  ready = false;
  state = "restarting";
  last_end = how;
  ended = Clock::now();
  return how;
}

}  // namespace troupe::supervisor
