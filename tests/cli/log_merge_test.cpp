#include "cli/log_merge.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "cli/log_follow.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

class LogMerge : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.dir = ::testing::TempDir() + "/log_merge_" + std::to_string(::getpid());
    fs::create_directories(options_.dir);
  }
  void TearDown() override { fs::remove_all(options_.dir); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }
  std::string merged(const std::vector<std::string>& actors) {
    std::string out;
    merge_logs(actors, options_,
               [&](const std::string& line) { out += line.substr(line.find(' ') + 1) + "|"; });
    return out;
  }

  LogOptions options_;
};

TEST(Logfmt, FindsValues) {
  const std::string line = R"(2026-11-21T13:51:20.1Z level=info event="a \"b\" req=no" req=chatcmpl-7-1 n=3)";
  EXPECT_EQ(logfmt_value(line, "req"), "chatcmpl-7-1");
  EXPECT_EQ(logfmt_value(line, "event"), R"(a "b" req=no)");
  EXPECT_EQ(logfmt_value(line, "n"), "3");
  EXPECT_EQ(logfmt_value(line, "level"), "info");
  EXPECT_EQ(logfmt_value(line, "eq"), std::nullopt);
  EXPECT_EQ(logfmt_value("", "x"), std::nullopt);
  EXPECT_EQ(logfmt_value("x=\"open", "x"), "open");
  EXPECT_EQ(logfmt_value("x=", "x"), "");
}

TEST(Logfmt, ARequestAndItsParts) {
  EXPECT_TRUE(is_about_request("t req=chatcmpl-7", "chatcmpl-7"));
  EXPECT_TRUE(is_about_request("t req=chatcmpl-7-0", "chatcmpl-7"));
  EXPECT_FALSE(is_about_request("t req=chatcmpl-71", "chatcmpl-7"));
  EXPECT_FALSE(is_about_request("t other=chatcmpl-7", "chatcmpl-7"));
}

TEST(Logfmt, AnAnswersIdNamesItsRequest) {
  EXPECT_TRUE(is_about_request("t req=7e", "chatcmpl-7e"));
  EXPECT_TRUE(is_about_request("t req=7e", "cmpl-7e"));
  EXPECT_TRUE(is_about_request("t req=7e-1", "cmpl-7e"));
  EXPECT_TRUE(is_about_request("t req=7e", "chatcmpl-someone-7e")) << "with the user that the request named";
  EXPECT_FALSE(is_about_request("t req=7e", "chatcmpl-17e"));
  EXPECT_FALSE(is_about_request("t req=7e", "x-7e"));
  EXPECT_FALSE(is_about_request("t req=\"\"", "chatcmpl-"));
}

TEST_F(LogMerge, LinesOfAllActorsInTimeOrder) {
  write(options_.dir + "/gateway/gateway.log", "2026-01-01T00:00:01.5Z g1\n2026-01-01T00:00:03.0Z g2\n");
  write(options_.dir + "/scheduler/scheduler.log", "2026-01-01T00:00:02.0Z s2\n2026-01-01T00:00:04.0Z s3\n");
  write(options_.dir + "/scheduler/scheduler.1.log", "2026-01-01T00:00:01.6Z s1\n");
  write(options_.dir + "/scheduler/scheduler.2.log", "2025-12-31T23:59:59.9Z s0\n");
  write(options_.dir + "/notes.txt", "no actor\n");
  EXPECT_EQ(list_actors(options_), (std::vector<std::string>{"gateway", "scheduler"}));
  EXPECT_EQ(merged({"gateway", "scheduler"}), "s0|g1|s1|s2|g2|s3|");
  EXPECT_EQ(merged({"gateway"}), "g1|g2|");
  EXPECT_EQ(merged({"nobody"}), "");
}

TEST_F(LogMerge, ALineWithoutTimeStaysBehindTheOneBefore) {
  write(options_.dir + "/a/a.log",
        "2026-01-01T00:00:01.0Z a1\nterminate called\n2026-01-01T00:00:03.0Z a2\n");
  write(options_.dir + "/b/b.log", "2026-01-01T00:00:02.0Z b1\n");
  EXPECT_EQ(merged({"a", "b"}), "a1|called|b1|a2|");
}

TEST_F(LogMerge, ActorsWithDirectoriesOfTheirOwn) {
  options_.actor_dirs["cache"] = options_.dir + "/elsewhere";
  write(options_.dir + "/elsewhere/cache.log", "2026-01-01T00:00:02.0Z c1\n");
  EXPECT_EQ(list_actors(options_), (std::vector<std::string>{"cache"}));
  EXPECT_EQ(merged({"cache"}), "c1|");
}

// A server with several engines has scheduler.log and scheduler-1.log in the directory named for the
// scheduler.
TEST_F(LogMerge, FurtherActorsOfAKindAreInTheDirectoryOfTheFirst) {
  options_.actor_dirs = {{"scheduler", options_.dir + "/apart/"}, {"cache-1", options_.dir + "/apart"}};
  write(options_.dir + "/apart/scheduler.log", "2026-01-01T00:00:01.0Z s0\n");
  write(options_.dir + "/apart/scheduler-1.1.log", "2026-01-01T00:00:02.0Z s1 old\n");
  write(options_.dir + "/apart/scheduler-1.log", "2026-01-01T00:00:03.0Z s1\n");
  write(options_.dir + "/apart/cache-1.log", "2026-01-01T00:00:04.0Z c1\n");
  write(options_.dir + "/apart/cache.log", "2026-01-01T00:00:05.0Z another server's\n");
  EXPECT_EQ(list_actors(options_), (std::vector<std::string>{"cache-1", "scheduler", "scheduler-1"}));
  EXPECT_EQ(merged(list_actors(options_)), "s0|s1 old|s1|c1|");
}

TEST_F(LogMerge, FollowingGoesOnWhereMergingEnded) {
  const std::string current = options_.dir + "/a/a.log";
  write(current, "2026-01-01T00:00:01.0Z a1\n2026-01-01T00:00:02.0Z cut in");
  std::string out;
  const auto each = [&](const std::string& line) { out += line.substr(line.find(' ') + 1) + "|"; };
  const auto positions = merge_logs({"a"}, options_, each);
  EXPECT_EQ(out, "a1|") << "a line that is being written comes later";
  std::ofstream(current, std::ios::app) << " two\n2026-01-01T00:00:03.0Z a3\n";
  fs::rename(current, options_.dir + "/a/a.1.log");
  write(current, "2026-01-01T00:00:04.0Z a4\n");
  int rounds = 0;
  follow_logs({"a"}, options_, positions, each, [&] { return ++rounds < 3; });
  EXPECT_EQ(out, "a1|cut in two|a3|a4|");
}

TEST_F(LogMerge, FollowedLinesAreInTheOrderOfTimes) {
  write(options_.dir + "/a/a.log", "");
  write(options_.dir + "/b/b.log", "");
  std::string out;
  const auto each = [&](const std::string& line) { out += line.substr(line.find(' ') + 1) + "|"; };
  const auto positions = merge_logs({"a", "b"}, options_, each);
  write(options_.dir + "/a/a.log", "2026-01-01T00:00:02.0Z a2\n2026-01-01T00:00:03.0Z a3\n");
  write(options_.dir + "/b/b.log", "2026-01-01T00:00:01.0Z b1\n2026-01-01T00:00:02.5Z b2\n");
  int rounds = 0;
  follow_logs({"a", "b"}, options_, positions, each, [&] { return ++rounds < 2; });
  EXPECT_EQ(out, "b1|a2|b2|a3|");
}

TEST_F(LogMerge, ReadsWhatLogWrites) {
  const Result<Log> log = Log::open("session", options_);
  log->info("finished", kv("req", "cmpl \"odd\""), kv("tokens", 5));
  ASSERT_TRUE(Log::flush(5000));
  int found = 0;
  merge_logs({"session"}, options_,
             [&](const std::string& line) { found += is_about_request(line, "cmpl \"odd\""); });
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace troupe::cli
