#pragma once
// A MediaProcess and what the supervisor does for it: the process is started, and again after each end, which
// the front is told.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/media/media_process.h"
#include "actors/supervisor/child_process.h"
#include "actors/supervisor/media_socket.h"

namespace troupe::media::testing {

struct KeptSetup {
  std::string executable;
  bool sandbox = true;
  bool videos = false;
  MediaProcessSetup process{};
};

class MediaKeeper {
 public:
  explicit MediaKeeper(const KeptSetup& setup)
      : socket_(*supervisor::MediaSocket::make()),
        thread_([this, setup](const std::stop_token& stop) { run(stop, setup); }) {}

  int front_end() const { return socket_.front_end(); }
  /// Processes started so far.
  int starts() const { return starts_; }

 private:
  void run(const std::stop_token& stop, const KeptSetup& setup) {
    std::vector<std::string> words{"media", "--fd=" + std::to_string(socket_.process_end()),
                                   setup.sandbox ? "--sandbox=on" : "--sandbox=off"};
    if (setup.videos) words.emplace_back("--videos");
    while (!stop.stop_requested()) {
      auto child = supervisor::ChildProcess::start(setup.executable, words, {socket_.process_end()}, {});
      if (!child.ok()) return;
      ++starts_;
      while (!child->has_ended(std::chrono::milliseconds(20))) {
        if (stop.stop_requested()) return;
      }
      socket_.process_ended(child->look());
      child->reap();
    }
  }

  supervisor::MediaSocket socket_;
  std::atomic<int> starts_{0};
  std::jthread thread_;
};

class KeptProcess : private MediaKeeper, public MediaProcess {
 public:
  explicit KeptProcess(const KeptSetup& setup)
      : MediaKeeper(setup), MediaProcess(with_socket(setup.process, front_end())) {}
  using MediaKeeper::starts;

 private:
  static MediaProcessSetup with_socket(MediaProcessSetup setup, int socket) {
    setup.socket = socket;
    setup.supervisor = ::getpid();
    return setup;
  }
};

}  // namespace troupe::media::testing
