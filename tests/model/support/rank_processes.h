#pragma once
// Ranks as processes of their own: this test program again, with one disabled test that is a rank's part.
// Ranks on one GPU have to be processes, because the driver's calls of one thread may wait for another's
// kernels.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "model/ranks/rank_memory.h"

extern char** environ;

namespace troupe::model::test {

/// A rank's view of the test that has started it.
struct RankProcess {
  Shard shard{};
  int memory = -1;   ///< of create_rank_memory(), for the subject
  int meeting = -1;  ///< the same for the test: who meets there has come as far
  int out = -1;      ///< a memory file; what is in it is the rank's answer
  std::string what;

  static RankProcess mine() {
    const auto number = [](const char* name) {
      const char* const text = std::getenv(name);
      return text == nullptr ? -1 : std::atoi(text);
    };
    const char* const what = std::getenv("TROUPE_TEST_WHAT");
    return {{number("TROUPE_TEST_RANK"), number("TROUPE_TEST_RANKS"), number("TROUPE_TEST_EXPERTS") == 1},
            number("TROUPE_TEST_MEMORY"),
            number("TROUPE_TEST_MEETING"),
            number("TROUPE_TEST_OUT"),
            what == nullptr ? "" : what};
  }

  /// Waits for the other ranks' ends. Who leaves an exchange over NCCL first takes memory away that another
  /// may still read.
  void leave_together() const {
    auto others = RankMeeting::attach(meeting, shard);
    ASSERT_TRUE(others.ok()) << others.status().message;
    EXPECT_TRUE(others->meet([] {})) << others->late().message;
  }

  template <class T>
  void answer(const std::vector<T>& values) const {
    const std::size_t bytes = values.size() * sizeof(T);
    EXPECT_EQ(::write(out, values.data(), bytes), static_cast<ssize_t>(bytes));
  }
};

/// Starts `test` ("Suite.DISABLED_Name") as the rank that `rank` describes.
inline pid_t start_rank(const std::string& test, const RankProcess& rank) {
  for (const int fd : {rank.memory, rank.meeting, rank.out}) {
    if (fd >= 0) {
      EXPECT_EQ(::fcntl(fd, F_SETFD, 0), 0);
    }
  }
  std::vector<std::string> words;
  for (char** e = environ; *e != nullptr; ++e) {
    if (!std::string_view(*e).starts_with("GTEST_")) words.emplace_back(*e);  // a shard would run no rank
  }
  const std::map<std::string, std::string> added = {{"RANK", std::to_string(rank.shard.rank)},
                                                    {"RANKS", std::to_string(rank.shard.ranks)},
                                                    {"EXPERTS", rank.shard.expert_parallel ? "1" : "0"},
                                                    {"MEMORY", std::to_string(rank.memory)},
                                                    {"MEETING", std::to_string(rank.meeting)},
                                                    {"OUT", std::to_string(rank.out)},
                                                    {"WHAT", rank.what}};
  for (const auto& [name, value] : added) words.push_back("TROUPE_TEST_" + name + "=" + value);
  std::vector<char*> environment;
  for (std::string& word : words) environment.push_back(word.data());
  environment.push_back(nullptr);
  std::string program = "rank", disabled = "--gtest_also_run_disabled_tests",
              filter = "--gtest_filter=" + test;
  char* arguments[] = {program.data(), disabled.data(), filter.data(), nullptr};
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environment.data()), 0);
  return pid;
}

/// Waits until all ranks have met; false if one has not come for a minute.
template <class Meets>
bool join(Meets& ranks) {
  const TimePoint end = Clock::now() + std::chrono::minutes(1);
  while (!ranks.join()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// The children's exit status, or -1 for one that had to be killed.
inline std::vector<int> wait_for(const std::vector<pid_t>& children, Duration patience) {
  std::vector<int> ended(children.size(), -2);
  const TimePoint end = Clock::now() + patience;
  for (std::size_t open = children.size(); open > 0;) {
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (ended[i] != -2) continue;
      const bool late = Clock::now() > end;
      if (late) ::kill(children[i], SIGKILL);
      int status = 0;
      if (::waitpid(children[i], &status, late ? 0 : WNOHANG) != children[i]) continue;
      ended[i] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      --open;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return ended;
}

/// Runs `test` on all ranks and returns their answers. What they expect in vain fails the calling test.
template <class T>
std::vector<std::vector<T>> run_ranks(const std::string& test, int ranks, bool expert_parallel,
                                      const std::string& what, Duration patience = std::chrono::seconds(60)) {
  const auto memory = create_rank_memory(ranks), meeting = create_rank_memory(ranks);
  EXPECT_TRUE(memory.ok() && meeting.ok());
  std::vector<pid_t> children;
  std::vector<int> outs;
  for (int r = 0; r < ranks; ++r) {
    outs.push_back(::memfd_create("answer", MFD_CLOEXEC));
    children.push_back(start_rank(test, {{r, ranks, expert_parallel}, *memory, *meeting, outs.back(), what}));
  }
  const std::vector<int> ended = wait_for(children, patience);
  std::vector<std::vector<T>> answers;
  for (std::size_t r = 0; r < ended.size(); ++r) {
    EXPECT_EQ(ended[r], 0) << "rank " << r;
    std::vector<T> answer(static_cast<std::size_t>(::lseek(outs[r], 0, SEEK_END)) / sizeof(T));
    const std::size_t bytes = answer.size() * sizeof(T);
    EXPECT_EQ(::pread(outs[r], answer.data(), bytes, 0), static_cast<ssize_t>(bytes));
    answers.push_back(std::move(answer));
    ::close(outs[r]);
  }
  ::close(*memory);
  ::close(*meeting);
  return answers;
}

}  // namespace troupe::model::test
