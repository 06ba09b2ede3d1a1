#pragma once
// What tests of decode and prefill instances share: the test speaks for the other side.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "actors/supervisor/child_process.h"
#include "actors/supervisor/control.h"
#include "actors/supervisor/prefill_peers.h"
#include "ipc/block_names.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::supervisor {

using namespace std::chrono_literals;
using Json = nlohmann::json;

inline constexpr int kPort = 7013;

inline config::Options options_of(const std::string& runtime_dir) {
  config::Options options;
  options.http.port = 0;
  options.process.runtime_dir = runtime_dir;
  options.model.directory = "/models/one";
  return options;
}

inline ipc::Fd memory_file(off_t bytes) {
  ipc::Fd fd(memfd_create("test-memory", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  return fd;
}

inline KvMemory memory(std::uint64_t life, std::int64_t blocks = 4, std::int64_t block_bytes = 512) {
  return {life, blocks, block_bytes, memory_file(blocks * block_bytes)};
}

/// A process that stands in for a front or an engine of another instance. For a moment it has what its maker
/// has open: channels whose end counts are made after it.
inline ChildProcess sleeper() {
  auto made = ChildProcess::start("/bin/sh", {"-c", "exec sleep 1000"}, {}, {});
  EXPECT_TRUE(made.ok()) << made.status().message;
  return *std::move(made);
}

inline Packet next(Control& control) { return control.receive(Clock::now() + test::kPatience); }

/// Gives a side what has come for it, until nothing does.
template <class Side>
void serve(Side& side, TimePoint now) {
  for (bool more = true; more;) {
    more = false;
    for (const int fd : side.descriptors()) {
      pollfd ready{fd, POLLIN, 0};
      if (poll(&ready, 1, 0) != 1) continue;
      side.on_readable(fd, now);
      more = true;
    }
  }
}

// What both sides write for people and logs.
struct Said {
  std::vector<std::string> told, warned, logged;
  LogEvent log() {
    return [this](LogLevel, std::string_view event, std::initializer_list<LogField>) {
      logged.emplace_back(event);
    };
  }
  auto tell() {
    return [this](const std::string& line) { told.push_back(line); };
  }
  auto warn() {
    return [this](const std::string& line) { warned.push_back(line); };
  }
};

}  // namespace troupe::supervisor
