#include "actors/bench/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "http/client.h"

namespace troupe::bench {
namespace {

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

double pss_mb(pid_t pid) {
  std::istringstream lines(read_file("/proc/" + std::to_string(pid) + "/smaps_rollup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Pss:")) return std::atof(line.c_str() + 4) / 1024;
  }
  return 0;
}

bool is_ready(int port) {
  const auto answer = http::Client({.port = port}).request("GET", "/health/ready");
  return answer.ok() && answer->status == 200;
}

}  // namespace

std::string binary_directory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

ServerProcess::ServerProcess(const std::vector<std::string>& flags, double limit_s) : port_(free_port()) {
  char pattern[] = "/tmp/troupe-bench-XXXXXX";
  directory_ = ::mkdtemp(pattern);
  std::vector<std::string> arguments{binary_directory() + "/troupe", "serve",     "--port",
                                     std::to_string(port_),          "--log-dir", directory_ + "/log"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string runtime = "XDG_RUNTIME_DIR=" + directory_;
  const std::string output = directory_ + "/output";

  const std::int64_t start = now_ns();
  pid_ = ::fork();
  if (pid_ == 0) {
    const int log = ::open(output.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(log, 1);
    ::dup2(log, 2);
    ::putenv(const_cast<char*>(runtime.c_str()));
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  while (!is_ready(port_)) {
    int status = 0;
    const bool over = ::waitpid(pid_, &status, WNOHANG) == pid_;
    if (over || static_cast<double>(now_ns() - start) * 1e-9 > limit_s) {
      if (over) pid_ = -1;
      std::fprintf(stderr, "the server did not become ready:\n%s\n", read_file(output).c_str());
      std::exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  start_s_ = static_cast<double>(now_ns() - start) * 1e-9;
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

/// The last value of a key in the worker's log.
double ServerProcess::logged(const std::string& key) const {
  const std::string text = read_file(directory_ + "/log/worker-0/worker-0.log");
  const std::size_t at = text.rfind(" " + key + "=");
  return at == std::string::npos ? 0 : std::atof(text.c_str() + at + key.size() + 2);
}

std::vector<pid_t> ServerProcess::processes() const {
  std::vector<pid_t> out{pid_};
  const std::string path = "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children";
  std::istringstream children(read_file(path));
  for (pid_t child; children >> child;) out.push_back(child);
  return out;
}

ServerMemory ServerProcess::memory() const {
  ServerMemory out;
  for (const pid_t pid : processes()) out.pss_mb += pss_mb(pid);
  out.counted_mb = (logged("weight_bytes") + logged("arena_bytes")) / (1 << 20);
  return out;
}

}  // namespace troupe::bench
