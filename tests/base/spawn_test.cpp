// A child has the descriptors and the environment that it is given, and no others.
#include "base/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <string>
#include <vector>

#include "base/owned_fd.h"

namespace troupe {
namespace {

/// What a shell script prints, and its exit code.
struct Printed {
  std::string text;
  int code = -1;
};

Printed run(const std::string& script, SpawnOrder order = {}) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const OwnedFd reader(ends[0]);
  OwnedFd writer(ends[1]);
  if (order.executable.empty()) order.executable = "/bin/sh";
  order.arguments = {"sh", "-c", script};
  order.output = writer.get();
  const auto pid = spawn(order);
  EXPECT_TRUE(pid.ok());
  writer.reset();
  Printed printed;
  char bytes[4096];
  for (ssize_t n; (n = read(reader.get(), bytes, sizeof bytes)) > 0;)
    printed.text.append(bytes, static_cast<std::size_t>(n));
  int status = 0;
  waitpid(*pid, &status, 0);
  if (WIFEXITED(status)) printed.code = WEXITSTATUS(status);
  return printed;
}

TEST(Spawn, GivesTheDescriptorsThatAreNamedAndNoOthers) {
  // Without close-on-exec, as libraries open some.
  std::vector<OwnedFd> leaked;
  for (int i = 0; i < 5; ++i) leaked.emplace_back(open("/dev/zero", O_RDONLY));
  const OwnedFd kept(open("/dev/null", O_RDONLY | O_CLOEXEC));
  leaked.emplace_back(open("/dev/zero", O_RDONLY));
  SpawnOrder order;
  order.keep = {kept.get()};
  // The glob is expanded by the shell itself; the descriptor with which it reads the directory is gone when
  // the test runs.
  const Printed printed =
      run("for f in /proc/$$/fd/*; do test -e $f && echo ${f##*/}=$(readlink $f); done; true", order);
  std::string expected = "0=/dev/null\n";
  EXPECT_EQ(printed.text.substr(0, expected.size()), expected);
  EXPECT_EQ(printed.text.find("/dev/zero"), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("\n" + std::to_string(kept.get()) + "=/dev/null\n"), std::string::npos)
      << printed.text;
  EXPECT_EQ(std::count(printed.text.begin(), printed.text.end(), '\n'), 4) << printed.text;
}

TEST(Spawn, GivesTheEnvironmentThatIsNamedAndNothingElse) {
  setenv("SPAWN_TEST_SECRET", "sesame", 1);
  SpawnOrder order;
  order.environment = {"ONE=1", "EMPTY=", "WITH=a=b c"};
  EXPECT_EQ(
      run("/usr/bin/env | /usr/bin/grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | /usr/bin/sort", order)
          .text,
      "EMPTY=\nONE=1\nWITH=a=b c\n");
  unsetenv("SPAWN_TEST_SECRET");
}

TEST(Spawn, SignalsAreTheDefaultOnesButForThoseToBeIgnored) {
  SpawnOrder order;
  order.ignored_signals = {SIGHUP};
  const auto old = signal(SIGTERM, SIG_IGN);
  EXPECT_EQ(run("kill -HUP $$; echo alive; kill -TERM $$; echo still", order).text, "alive\n");
  signal(SIGTERM, old);
}

TEST(Spawn, AnExecutableThatIsNotThereIs127) {
  SpawnOrder order;
  order.executable = "/nonexistent";
  EXPECT_EQ(run("true", order).code, 127);
}

/// Runs `close` in a forked process that has descriptors at 40, 41, 50 and 900; true if exactly those of
/// `left` remain.
template <class Close>
bool leaves(const std::vector<int>& left, Close&& close) {
  const pid_t pid = fork();
  if (pid == 0) {
    for (const int fd : {40, 41, 50, 900}) {
      if (dup2(STDERR_FILENO, fd) != fd) _exit(2);
    }
    close();
    for (int fd = 0; fd < 1000; ++fd) {
      const bool open = fcntl(fd, F_GETFD) >= 0;
      const bool wanted = fd <= STDERR_FILENO || std::find(left.begin(), left.end(), fd) != left.end();
      if (open != wanted) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(CloseAllBut, KeepsWhatIsNamed) {
  EXPECT_TRUE(leaves({41, 900}, [] { close_all_but(std::array{1, 41, 900}); }));
  EXPECT_TRUE(leaves({}, [] { close_all_but({}); }));
  EXPECT_TRUE(leaves({40, 41, 50, 900}, [] { close_all_but(std::array{40, 41, 50, 900}); }));
}

TEST(CloseAllBut, WithoutTheSystemCallTheListingDoesTheSame) {
  EXPECT_TRUE(leaves({40, 900}, [] {
    close_listed(3, 39);
    close_listed(41, 899);
    close_listed(901, UINT_MAX);
  }));
  EXPECT_TRUE(leaves({}, [] { close_listed(3, UINT_MAX); }));
}

}  // namespace
}  // namespace troupe
