// Log files when the file system fails: disk full, directory removed, next file cannot be opened.
#include "base/log_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

class LogFile : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.dir = base_ + "/log";
    path_ = log_path("cache", options_);
  }

  Log open() {
    Result<Log> log = Log::open("cache", options_);
    EXPECT_TRUE(log.ok()) << log.status().message;
    return log.ok() ? *log : Log();
  }
  static bool flush() { return Log::flush(static_cast<int>(test::kPatience.count())); }
  std::vector<std::string> lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  const test::TempDirectory directory_;
  const std::string base_ = directory_.path().string();
  std::string path_;
  LogOptions options_;
};

TEST_F(LogFile, LinesLostToAFullDiskAreCountedAndNoLineIsCut) {
  const Log log = open();
  log.info("before");
  ASSERT_TRUE(flush());
  // Limits the size of this process's files so that half of the next line fits.
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit full{fs::file_size(path_) + 40, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  for (int i = 0; i < 3; ++i) log.info("lost", kv("text", std::string(200, 'x')));
  const bool flushed = flush();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_TRUE(flushed);
  EXPECT_EQ(log.dropped(), 3u);
  log.info("after");
  ASSERT_TRUE(flush());
  const auto written = lines();
  ASSERT_EQ(written.size(), 3u);
  EXPECT_TRUE(written[0].ends_with("event=before")) << written[0];
  EXPECT_TRUE(written[1].ends_with("event=after")) << written[1];
  EXPECT_TRUE(written[2].ends_with("event=log_lines_dropped lines=3 total=3")) << written[2];
}

TEST_F(LogFile, ANextFileThatCannotBeOpenedLosesLinesOnly) {
  options_.rotate_bytes = 1000;
  const Log log = open();
  log.info("before", kv("text", std::string(800, 'x')));
  ASSERT_TRUE(flush());
  fs::rename(options_.dir, base_ + "/away");
  std::ofstream(options_.dir) << "no directory";
  log.info("lost", kv("text", std::string(300, 'x')));  // does not fit: rotates
  log.info("lost");                                     // would fit, but the rotation has failed
  ASSERT_TRUE(flush());
  EXPECT_EQ(log.dropped(), 2u);
  fs::remove(options_.dir);
  log.info("after");
  ASSERT_TRUE(flush());
  const auto written = lines();
  ASSERT_EQ(written.size(), 2u);
  EXPECT_TRUE(written[0].ends_with("event=after")) << written[0];
  EXPECT_TRUE(written[1].ends_with("event=log_lines_dropped lines=2 total=2")) << written[1];
}

TEST_F(LogFile, ARemovedDirectoryIsCreatedAgain) {
  const Log log = open();
  log.info("before");
  ASSERT_TRUE(flush());
  fs::remove_all(options_.dir);
  log.info("after");
  ASSERT_TRUE(flush());
  const auto written = lines();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_TRUE(written[0].ends_with("event=after")) << written[0];
}

TEST_F(LogFile, KeepsItsSizeLimitWhenAFileCannotBeRenamed) {
  options_.rotate_bytes = 1000;
  options_.rotate_files = 1;
  fs::create_directories(options_.dir + "/cache/cache.1.log/in the way");
  const Log log = open();
  for (int i = 0; i < 10; ++i) {
    log.info("line", kv("i", i), kv("text", std::string(300, 'x')));
    ASSERT_TRUE(flush());
    EXPECT_LE(fs::file_size(path_), 1000u);
  }
  ASSERT_FALSE(lines().empty());
  EXPECT_NE(lines().back().find(" i=9 "), std::string::npos);
}

TEST_F(LogFile, IsNotInherited) {
  const Log log = open();
  log.info("line");
  ASSERT_TRUE(flush());
  int found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error) != path_) continue;
    ++found;
    EXPECT_NE(fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(LogFile, PlantedSymbolicLinksAreNotFollowed) {
  const fs::path elsewhere = directory_.path() / "elsewhere";
  fs::create_directory(elsewhere);
  const auto refusal = [&] {
    const Result<Log> log = Log::open("cache", options_);
    EXPECT_FALSE(log.ok());
    return log.status().message;
  };
  const fs::path dir = options_.dir;
  fs::create_directory_symlink(elsewhere, dir);  // in place of the directory of all logs
  EXPECT_NE(refusal().find("symbolic link"), std::string::npos) << refusal();
  fs::remove(dir);
  fs::create_directory(dir);
  fs::create_directory_symlink(elsewhere, dir / "cache");  // of the actor's directory
  EXPECT_NE(refusal().find("cache"), std::string::npos) << refusal();
  fs::remove(dir / "cache");
  fs::create_directory(dir / "cache");
  fs::create_symlink(elsewhere / "target", path_);  // of the file
  EXPECT_NE(refusal().find("symbolic link"), std::string::npos) << refusal();
  EXPECT_TRUE(fs::is_empty(elsewhere));
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find(path_), std::string::npos) << refusal();  // and is not waited for
  fs::remove(path_);
  fs::create_directory(path_);
  EXPECT_NE(refusal().find(path_), std::string::npos) << refusal();
  fs::remove(path_);
  EXPECT_TRUE(Log::open("cache", options_).ok());
}

TEST_F(LogFile, ALinkAboveTheNamedDirectoryIsItsOwnersChoice) {
  fs::create_directory(directory_.path() / "real");
  fs::create_directory_symlink(directory_.path() / "real", directory_.path() / "link");
  options_.dir = base_ + "/link/log";
  path_ = log_path("cache", options_);
  const Log log = open();
  log.info("here", {});
  ASSERT_TRUE(flush());
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(LogFile, ALinkThatTakesThePlaceOfAnOpenLogIsNotFollowed) {
  const fs::path target = directory_.path() / "target";
  const Log log = open();
  log.info("before", {});
  ASSERT_TRUE(flush());
  fs::remove(path_);
  fs::create_symlink(target, path_);
  log.info("lost", {});
  ASSERT_TRUE(flush());
  EXPECT_FALSE(fs::exists(target));
  EXPECT_EQ(log.dropped(), 1u);
}

}  // namespace
}  // namespace troupe
