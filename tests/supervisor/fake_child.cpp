// Stands in for front, engine, worker and text process: attaches to its link, speaks on its control channel,
// and behaves as options.model.served_model_names tells it: a list of WHO=HOW, where WHO is front, engine,
// worker or text-INDEX.
//
//   ok            (default) ready at once; a drain takes 50 ms
//   crash         ready, then killed by a signal after 30 ms
//   early         exits with code 7 before it is ready, saying nothing
//   fatal         says why and exits before it is ready
//   stubborn      ignores drain and stop
//   busy          a drain never ends by itself
//   hung          ready, then gives no sign of life
//   silent        never ready
//   once          crashes in its first life, is ok in the next
//   declining     is ok in its first life, early in the next
//   serving       like crash, but reports served requests before
//   sharing       of a worker: has KV memory that others may read
//   blind         of a worker: cannot read any of others
//   together      of a worker among four: ends by itself when an epoch ends in which all four have met
//
// A media process is told by the file "media" in the working directory: ok, early, or
//
//   loud          ok, and writes thousands of lines to its standard error
//
// What happens to it is appended to LOG_DIR/events, one line each; LOG_DIR/events.links has how many links to
// fronts the last engine has. The front distrusts the child that
// LOG_DIR/distrusted names, once for each time that the file comes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/control.h"
#include "ipc/link.h"

namespace {

using namespace troupe;
using namespace troupe::supervisor;
using namespace std::chrono_literals;

std::string g_events, g_distrusted;

constexpr int kTogether = 4;

// How many lines of the events begin so.
int noted(const std::string& beginning) {
  std::ifstream file(g_events);
  int n = 0;
  for (std::string line; std::getline(file, line);) n += line.starts_with(beginning);
  return n;
}

int note(const std::string& line) {
  const int fd = open(g_events.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string text = line + "\n";
  const bool done = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return done ? 0 : 1;
}

// Ranks that meet in every epoch, and of which none outlives the end of one in which they have met.
int live_together(ipc::LowerEnd& end, Control& control) {
  const auto here = [&] { return "rank in epoch " + std::to_string(end.epoch()) + "."; };
  note(here());
  for (bool met = false;;) {
    if (!met && noted(here()) == kTogether) {
      met = true;
      end.join();
      note("rank has met in epoch " + std::to_string(end.epoch()) + ".");
    }
    if (end.receive(Clock::now() + 5ms).kind == ipc::Received::Kind::epoch_changed) {
      if (met) return 9;
      note(here());
    }
    const Packet packet = control.receive(TimePoint{});
    if (packet.kind == Packet::Kind::closed) return 4;
    if (packet.kind == Packet::Kind::message && packet.text("do") == "stop") return 0;
  }
}

template <class End>
int live(const std::string& who, const std::string& how, Control& control, const ChildArguments& arguments) {
  const bool front = who == "front", linked = front || who.starts_with("text-");
  auto end = End::attach((linked ? arguments.link_step_fds : arguments.step_fds).front(),
                         (linked ? arguments.link_cache_fds : arguments.cache_fds).front());
  if (!end.ok()) return 3;
  note(who + " start " + std::to_string(getpid()) + " epoch " + std::to_string(end->epoch()));
  if (who == "engine") std::ofstream(g_events + ".links") << arguments.link_step_fds.size();
  if (how == "early" || (how == "declining" && end->epoch() > 1)) return 7;
  if (how == "fatal") {
    (void)control.send({{"event", "fatal"}, {"message", who + " finds no model here"}});
    return 1;
  }
  if (how == "serving") (void)control.send({{"event", "served"}, {"requests", 1}});
  if (how == "sharing") {
    const ipc::Fd kv(memfd_create("test-kv", MFD_CLOEXEC));
    if (ftruncate(kv.get(), 4 * 512) != 0) return 8;
    (void)control.send({{"event", "memory"}, {"life", "5"}, {"blocks", 4}, {"block_bytes", 512}}, kv.get());
  }
  if (how != "silent") (void)control.send({{"event", "state"}, {"state", "ready"}});
  if (how != "silent" && how != "together") end->join();
  if (how == "crash" || how == "serving" || (how == "once" && end->epoch() == 1)) {
    std::this_thread::sleep_for(30ms);
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would make an exit of it
    raise(SIGSEGV);
  }
  if constexpr (std::is_same_v<End, ipc::LowerEnd>) {
    if (how == "together") return live_together(*end, control);
  }
  signal(SIGTERM, SIG_IGN);
  std::jthread beats;
  if (how != "hung") {
    beats = std::jthread([&](std::stop_token stop) {
      while (!stop.stop_requested()) {
        if (end->receive(Clock::now() + 20ms).kind != ipc::Received::Kind::epoch_changed) continue;
        end->join();
        note(who + " sees epoch " + std::to_string(end->epoch()));
      }
    });
  }
  for (;;) {
    const Packet packet = control.receive(Clock::now() + 20ms);
    if (packet.kind == Packet::Kind::closed) return 4;
    if (std::string child; front && std::getline(std::ifstream(g_distrusted), child)) {
      unlink(g_distrusted.c_str());
      (void)control.send({{"event", "distrusted"}, {"child", child}, {"why", "it sent nonsense"}});
    }
    const std::string order = packet.kind == Packet::Kind::message ? packet.text("do") : "";
    if (order == "status") {
      (void)control.send(
          {{"event", "status"},
           {"id", packet.number("id")},
           {"kv_blocks", {{"total", 10}, {"free", 7}, {"cached", 1}, {"leased", 2}, {"moving", 0}}},
           {"queues", {{{"name", "waiting"}, {"depth", 3}, {"capacity", 1024}}}}});
    } else if (order == "renew") {
      const auto renewed = read_options_file(packet.attached.get());
      if (!renewed.ok()) return 6;
      const config::HttpOptions& http = renewed->http;
      note(who + " renewed " + nlohmann::json(http.file_api_keys).dump() + http.certificate_pem +
           http.private_key_pem);
    } else if (order == "peer_memory" && how == "blind") {
      (void)control.send(
          {{"event", "peer_unreadable"}, {"peer", packet.number("peer")}, {"why", "GPU 0 cannot read it"}});
    } else if (order == "drain") {
      note(who + " drains " + std::to_string(packet.number("deadline_s")));
      (void)control.send({{"event", "state"}, {"state", "draining"}});
      if (how == "busy" || how == "stubborn") continue;
      std::this_thread::sleep_for(50ms);
      note(who + " drained");
      return 0;
    } else if (order == "stop" && how != "stubborn") {
      note(who + " stopped");
      return 0;
    }
  }
}

// Without options, as a real one is.
int live_as_media(const ChildArguments& arguments, bool videos) {
  const auto base = std::filesystem::current_path();
  g_events = base / "events";
  const std::string who = videos ? "video-0" : "media-0";
  note(who + " start " + std::to_string(getpid()));
  std::string how;
  std::getline(std::ifstream(base / "media"), how);
  if (how == "early") return 7;
  int others = -4;  // 0, 1, 2 and that of the loop
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd"))
    others += fd.path().empty() ? 0 : 1;
  note(who + " holds " + std::to_string(others));
  const Control control{ipc::Fd(arguments.control_fd)};
  control.tell({{"event", "state"}, {"state", "ready"}});
  if (how == "loud") {
    std::fprintf(stderr, "hello from %s\n", who.c_str());
    for (int i = 0; i < 5000; ++i) std::fputs("flood\n", stderr);
    std::fputs("without an end", stderr);
    note(who + " is done");
  }
  for (;;) pause();
}

ChildArguments media_arguments(const std::vector<std::string>& words) {
  ChildArguments arguments;
  for (const std::string& word : words) {
    if (word.starts_with("--fd=")) arguments.socket_fd = std::stoi(word.substr(5));
    if (word.starts_with("--control-fd=")) arguments.control_fd = std::stoi(word.substr(13));
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::string who = argv[1];
  if (who == "media") {
    const std::vector<std::string> words(argv + 2, argv + argc);
    return live_as_media(media_arguments(words), std::ranges::find(words, "--videos") != words.end());
  }
  const auto arguments = parse_child_arguments(std::vector<std::string>(argv + 2, argv + argc));
  if (!arguments.ok()) {
    std::fprintf(stderr, "fake child: %s\n", arguments.status().message.c_str());
    return 2;
  }
  const auto options = read_options_file(arguments->options_fd);
  if (!options.ok()) {
    std::fprintf(stderr, "fake child: %s\n", options.status().message.c_str());
    return 2;
  }
  if (who == "text") who += "-" + std::to_string(arguments->rank);
  g_events = options->log.dir + "/events";
  g_distrusted = options->log.dir + "/distrusted";
  if (!options->http.file_api_keys.empty()) note(who + " has " + options->http.file_api_keys.front());
  std::string script;
  for (const std::string& part : options->model.served_model_names)
    script += (script.empty() ? "" : ",") + part;
  std::string how = "ok";
  if (const auto at = script.find(who + "="); at != std::string::npos) {
    const auto begin = at + who.size() + 1;
    how = script.substr(begin, script.find(',', begin) - begin);
  }
  if ((who == "front") != (arguments->listen_fd >= 0)) return 5;
  if (who == "engine" && (arguments->link_step_fds.size() < 1 || arguments->link_step_fds.size() > 2))
    return 5;
  const bool text = who.starts_with("text-");
  if (text && (arguments->link_step_fds.size() != 1 || !arguments->step_fds.empty())) return 5;
  Control control{ipc::Fd(arguments->control_fd)};
  return who == "worker" || text ? live<ipc::LowerEnd>(who, how, control, *arguments)
                                 : live<ipc::UpperEnd>(who, how, control, *arguments);
}
