#include "base/trial.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/log_file.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

class TrialTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(base_); }
  void TearDown() override { fs::remove_all(base_); }
  bool nothing_left() const { return fs::is_empty(base_); }

  const fs::path base_ = fs::path(::testing::TempDir()) / ("trial_" + std::to_string(::getpid()));
};

TEST_F(TrialTest, ADirectoryThatCanBeMadeIsRemovedAgain) {
  EXPECT_TRUE(try_directory(base_ / "a/b/c").ok());
  EXPECT_TRUE(try_directory(base_ / "a/").ok());
  EXPECT_TRUE(try_directory(base_).ok());
  EXPECT_TRUE(nothing_left());
}

TEST_F(TrialTest, WhereNoFileCanBeMadeIsNamed) {
  std::ofstream(base_ / "file") << "x";
  const Status below_a_file = try_directory(base_ / "file/cache");
  EXPECT_EQ(below_a_file.code, Code::unavailable);
  EXPECT_NE(below_a_file.message.find("file/cache"), std::string::npos) << below_a_file.message;
  // Permissions allow root to write there; the file system does not.
  EXPECT_EQ(try_directory("/proc/self/fdinfo").code, Code::unavailable);
  EXPECT_EQ(fs::file_size(base_ / "file"), 1u);
}

TEST_F(TrialTest, WhatOthersPutThereStays) {
  {
    const TrialCleanup cleanup(base_ / "a/b/c");
    fs::create_directories(base_ / "a/b/c");
    std::ofstream(base_ / "a/other") << "x";
  }
  EXPECT_FALSE(fs::exists(base_ / "a/b"));
  EXPECT_TRUE(fs::exists(base_ / "a/other"));
}

TEST_F(TrialTest, LogsAreTriedAsTheyAreOpened) {
  LogOptions options;
  options.dir = (base_ / "logs").string();
  EXPECT_TRUE(try_log_file("supervisor", options).ok());
  EXPECT_TRUE(nothing_left());
  // Writable for everyone, and refused by a start: logs follow no symbolic link.
  fs::create_directories(base_ / "target");
  fs::create_directory_symlink(base_ / "target", base_ / "logs");
  const Status link = try_log_file("supervisor", options);
  EXPECT_NE(link.message.find("it is a symbolic link"), std::string::npos) << link.message;
  EXPECT_EQ(open_log_file(log_path("supervisor", options), options).status().message, link.message);
  // A directory in the place of the file, in a directory that can be written.
  options.dir = (base_ / "target").string();
  fs::create_directories(base_ / "target/supervisor/supervisor.log");
  EXPECT_FALSE(try_log_file("supervisor", options).ok());
  fs::remove(base_ / "target/supervisor/supervisor.log");
  std::ofstream(base_ / "target/supervisor/supervisor.log") << "line\n";
  EXPECT_TRUE(try_log_file("supervisor", options).ok());
  EXPECT_EQ(fs::file_size(base_ / "target/supervisor/supervisor.log"), 5u);
}

}  // namespace
}  // namespace troupe
