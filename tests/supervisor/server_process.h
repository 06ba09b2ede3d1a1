#pragma once
// A whole server with fake children: the supervisor runs in a process of its own, as it does in earnest, so
// that it can be sent signals and be killed.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/supervisor/status_page.h"
#include "actors/supervisor/supervisor.h"
#include "ipc/fd.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::supervisor {

using namespace std::chrono_literals;
using Json = nlohmann::json;

using test::kPatience;

// Invalid while another has the port.
inline ipc::Fd listen_at(int port) {
  ipc::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(socket.get(), 1) != 0) {
    socket.reset();
  }
  return socket;
}

// Nobody's at this moment; below the range that outgoing connections take theirs from.
inline int free_port() {
  std::random_device random;
  for (;;) {
    const int port = std::uniform_int_distribution(20'000, 31'999)(random);
    if (listen_at(port).valid()) return port;
  }
}

class SuperviseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setup_.options.process.runtime_dir = base_ + "/troupe";
    setup_.options.log.dir = base_;
    setup_.options.http.port = free_port();
    setup_.options.process.drain_timeout_s = 5;
    setup_.executable = TROUPE_FAKE_CHILD;
    setup_.grace = 300ms;
    setup_.restarts.first_delay = 10ms;
    setup_.preflight = [](config::Options&) -> Result<std::string> {
      return std::string("model     fake\n");
    };
  }
  void TearDown() override {
    for (const pid_t pid : servers_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  void script(const std::string& text) { setup_.options.model.served_model_names = {text}; }

  pid_t start(const SupervisorSetup& setup) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setsid();  // no controlling terminal, whatever the tests are started from
      if (freopen((base_ + "/stdout").c_str(), "a", stdout) == nullptr ||
          freopen((base_ + "/stderr").c_str(), "a", stderr) == nullptr || chdir(base_.c_str()) != 0) {
        _exit(99);
      }
      _exit(supervise(setup));
    }
    servers_.insert(pid);
    return pid;
  }
  pid_t start() { return start(setup_); }

  // The exit code, or -1 when it is still running after kPatience, or killed by a signal.
  int wait_for(pid_t pid) {
    int status = 0;
    if (!eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; })) return -1;
    servers_.erase(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  template <class Condition>
  static bool eventually(Condition condition) {
    for (const TimePoint end = Clock::now() + kPatience; Clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  std::string read(const std::string& name) const {
    std::ifstream file(base_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> events() const {
    std::ifstream file(base_ + "/events");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  int count(const std::string& beginning) const {
    int n = 0;
    for (const std::string& line : events()) n += line.starts_with(beginning);
    return n;
  }
  std::vector<pid_t> pids_of(const std::string& who) const {
    std::vector<pid_t> pids;
    for (const std::string& line : events()) {
      int pid = 0;
      if (std::sscanf(line.c_str(), (who + " start %d").c_str(), &pid) == 1) pids.push_back(pid);
    }
    return pids;
  }
  /// The newest process of that name. Waits for the first one, and throws where none comes: not every child
  /// is awaited before the server says that it is ready.
  pid_t newest(const std::string& who) const {
    if (!eventually([&] { return !pids_of(who).empty(); })) throw std::runtime_error(who + " never started");
    return pids_of(who).back();
  }
  bool nothing_left() const {
    const std::string& dir = setup_.options.process.runtime_dir;
    return !std::filesystem::exists(dir) || std::filesystem::is_empty(dir);
  }
  // A zombie that nobody has waited for yet is dead.
  static bool alive(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    return static_cast<bool>(stat >> number >> name >> state) && state != "Z";
  }
  bool children_gone() const {
    for (const char* who : {"front", "engine", "worker", "text-0", "text-1"}) {
      for (const pid_t pid : pids_of(who)) {
        if (alive(pid)) return false;
      }
    }
    return true;
  }
  Json status() const {
    const auto text = query_status(setup_.options.process.runtime_dir, setup_.options.http.port);
    return text.ok() ? Json::parse(*text) : Json();
  }
  bool state_becomes(const std::string& state) const {
    return eventually([&] {
      const Json page = status();
      return page.is_object() && page["state"] == state;
    });
  }

  const troupe::test::TempDirectory directory_;
  const std::string base_ = directory_.path().string();
  SupervisorSetup setup_;
  std::set<pid_t> servers_;
};

}  // namespace troupe::supervisor
