#include "base/file_writes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/owned_fd.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

class FileWrites : public ::testing::Test {
 protected:
  FileWrites() {
    std::string name = ::testing::TempDir() + "file_writes.XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~FileWrites() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  fs::path folder_;
};

TEST_F(FileWrites, APipeThatTakesLessAtOnceGetsAll) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text(1 << 20, 'x');
  const pid_t reader = ::fork();
  if (reader == 0) {
    ::close(ends[1]);
    std::size_t count = 0;
    char part[4096];
    for (ssize_t n; (n = ::read(ends[0], part, sizeof part)) > 0;) count += static_cast<std::size_t>(n);
    ::_exit(count == text.size() ? 0 : 1);
  }
  ::close(ends[0]);
  EXPECT_EQ(write_all(ends[1], text), text.size());
  ::close(ends[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
}

TEST_F(FileWrites, CountsWhatWasWrittenBeforeTheFileWasFull) {
  const pid_t child = ::fork();  // the limit is this process's alone
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const OwnedFd fd(::open(path("full").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::size_t written = write_all(fd.get(), std::string(1500, 'x'));
    ::_exit(written == 1000 && errno == EFBIG ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FileWrites, ReplacesAFileAndLeavesNothingBeside) {
  ASSERT_TRUE(replace_file(path("record"), "old"));
  ASSERT_TRUE(replace_file(path("record"), "new"));
  EXPECT_EQ(text_of(path("record")), "new");
  EXPECT_FALSE(fs::exists(path("record.new")));
  struct stat found {};
  ASSERT_EQ(::stat(path("record").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(FileWrites, AFileThatCannotBeReplacedStaysAsItWas) {
  ASSERT_TRUE(replace_file(path("record"), "old"));
  ASSERT_TRUE(fs::create_directory(path("record.new")));
  EXPECT_FALSE(replace_file(path("record"), "new"));
  EXPECT_EQ(errno, EISDIR);
  EXPECT_EQ(text_of(path("record")), "old");
}

TEST_F(FileWrites, RenamesInTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const bool replaced = replace_file("record", "text");
  fs::current_path(before);
  EXPECT_TRUE(replaced);
  EXPECT_EQ(text_of(path("record")), "text");
}

}  // namespace
}  // namespace troupe
