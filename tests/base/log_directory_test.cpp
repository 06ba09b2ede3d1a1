#include "base/log_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace troupe {
namespace {

class LogDirectory : public ::testing::Test {
 protected:
  void SetUp() override { base_ = ::testing::TempDir() + "/log_directory_" + std::to_string(::getpid()); }
  void TearDown() override { std::filesystem::remove_all(base_); }

  LogOptions options_at(const std::string& directory) const {
    LogOptions options;
    options.dir = base_ + directory;
    return options;
  }

  std::string base_;
};

// Locks of one process on two open files conflict like those of two processes.
TEST_F(LogDirectory, OneThatIsTakenIsLeftToItsServer) {
  LogOptions first = options_at("/log"), second = first, third = first, fourth = first;
  const auto locks = LogDirectoryLocks::take(first, 81);
  EXPECT_EQ(first.dir, base_ + "/log");
  {
    const auto more = LogDirectoryLocks::take(second, 82);
    const auto most = LogDirectoryLocks::take(third, 82);
    EXPECT_EQ(second.dir, base_ + "/log/port-82");
    EXPECT_EQ(third.dir, base_ + "/log/port-82-2");
  }
  EXPECT_EQ(LogDirectoryLocks::look(base_ + "/log", 82), base_ + "/log/port-82");
  EXPECT_EQ(LogDirectoryLocks::look(base_ + "/absent", 82), base_ + "/absent");
  const auto again = LogDirectoryLocks::take(fourth, 82);
  EXPECT_EQ(fourth.dir, base_ + "/log/port-82") << "free again, as its server has ended";
}

TEST_F(LogDirectory, ActorsDirectoriesToo) {
  LogOptions first = options_at("/one");
  first.actor_dirs = {
      {"cache", base_ + "/shared"}, {"metrics", base_ + "/shared/"}, {"root", base_ + "/one"}};
  LogOptions second = options_at("/two");
  second.actor_dirs = {{"cache", base_ + "/shared"}};
  const auto locks = LogDirectoryLocks::take(first, 81);
  EXPECT_EQ(first.actor_dirs["cache"], base_ + "/shared");
  EXPECT_EQ(first.actor_dirs["metrics"], base_ + "/shared")
      << "several actors of one server share a directory";
  EXPECT_EQ(first.actor_dirs["root"], base_ + "/one");
  const auto more = LogDirectoryLocks::take(second, 82);
  EXPECT_EQ(second.dir, base_ + "/two");
  EXPECT_EQ(second.actor_dirs["cache"], base_ + "/shared/port-82");
}

TEST_F(LogDirectory, OneThatCannotBeMadeStaysForTheErrorOfWhoOpensALog) {
  LogOptions options = options_at("");
  options.dir = "/dev/null/log";
  const auto locks = LogDirectoryLocks::take(options, 82);
  EXPECT_EQ(options.dir, "/dev/null/log");
}

}  // namespace
}  // namespace troupe
