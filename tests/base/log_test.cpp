#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/log_writer.h"
#include "base/logfmt.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// Keeps lines in memory; the test can make it fail or hang as a disk does.
class MemorySink : public LogSink {
 public:
  bool write(std::string_view line) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !stuck_; });
    if (full_) return false;
    lines_.emplace_back(line);
    return true;
  }
  void flush() override {}

  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  void set_full(bool full) {
    const std::lock_guard lock(mutex_);
    full_ = full;
  }
  void set_stuck(bool stuck) {
    const std::lock_guard lock(mutex_);
    stuck_ = stuck;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  bool full_ = false;
  bool stuck_ = false;
};

std::string value(std::string_view text, std::size_t max = 100) {
  std::string out;
  append_logfmt_value(out, text, max);
  return out;
}

std::string after_time(const std::string& line) { return line.substr(line.find(' ') + 1); }

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

class LogFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/log_test_" + std::to_string(::getpid()) + "_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    options_.dir = directory_;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string directory_;
  LogOptions options_;
};

TEST(Logfmt, QuotesWhatNeedsIt) {
  EXPECT_EQ(value("plain-7.5/x:y"), "plain-7.5/x:y");
  EXPECT_EQ(value("größe"), "größe");
  EXPECT_EQ(value(""), "\"\"");
  EXPECT_EQ(value("two words"), "\"two words\"");
  EXPECT_EQ(value("a=b"), "\"a=b\"");
  EXPECT_EQ(value("say \"hi\"\\"), "\"say \\\"hi\\\"\\\\\"");
  EXPECT_EQ(value("a\nb\t\x01"), "\"a\\nb\\t\\x01\"");
  EXPECT_EQ(value("x\x1b[31m"), "\"x\\x1b[31m\"") << "no terminal escapes";
  EXPECT_EQ(value("x\xc2\x9b"
                  "31m"),
            "\"x\\u009b31m\"")
      << "nor U+009B, which is one character of that";
  EXPECT_EQ(value("\xc2\xa0\xc3\x9b"), "\xc2\xa0\xc3\x9b") << "U+00A0 and U+00DB";
  EXPECT_EQ(value("\xc2"), "\xc2");
}

TEST(Logfmt, CutsOnlyBetweenCharacters) {
  EXPECT_EQ(value("abcdef", 4), "abcd…");
  EXPECT_EQ(value("abcd", 4), "abcd");
  EXPECT_EQ(value("aéé", 2), "a…") << "é has two bytes";
  EXPECT_EQ(value("a bcdef", 4), "\"a bc…\"");
}

TEST(Logfmt, OneEvent) {
  using namespace std::chrono;
  const auto when =
      system_clock::time_point(duration_cast<system_clock::duration>(microseconds(1795269080123456)));
  const LogField fields[] = {kv("req", "chatcmpl-7"), kv("tokens", 12), kv("big", std::uint64_t{1} << 40),
                             kv("rate", 0.5), kv("done", true)};
  EXPECT_EQ(format_event(when, LogLevel::info, "scheduler", "admitted", fields, 5, 100),
            "2026-11-21T13:51:20.123456Z level=info actor=scheduler event=admitted req=chatcmpl-7 tokens=12 "
            "big=1099511627776 rate=0.5 done=true");
}

TEST(Log, DefaultWritesNowhere) {
  const Log log;
  EXPECT_FALSE(log.enabled(LogLevel::error));
  log.error("nothing", kv("a", 1));
  EXPECT_EQ(log.dropped(), 0u);
}

TEST(Log, LevelsBelowTheConfiguredOneAreOff) {
  auto sink = std::make_shared<MemorySink>();
  LogOptions options;
  options.level = LogLevel::warning;
  const Log log = Log::to_sink("cache", sink, options);
  log.info("no");
  log.debug("no");
  log.warning("yes", kv("n", 1));
  log.error("too");
  ASSERT_TRUE(Log::flush(5000));
  const auto lines = sink->lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(after_time(lines[0]), "level=warning actor=cache event=yes n=1");
  EXPECT_EQ(after_time(lines[1]), "level=error actor=cache event=too");
}

TEST(Log, ThreadsLoseNothingAndKeepTheirOrder) {
  auto sink = std::make_shared<MemorySink>();
  const Log log = Log::to_sink("gateway", sink, {});
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) log.info("line", kv("thread", t), kv("i", i));
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(Log::flush(10'000));
  const auto lines = sink->lines();
  ASSERT_EQ(lines.size(), std::size_t{kThreads * kEach});
  std::vector<int> next(kThreads, 0);
  for (const std::string& line : lines) {
    int thread = -1;
    int i = -1;
    ASSERT_EQ(std::sscanf(after_time(line).c_str(), "level=info actor=gateway event=line thread=%d i=%d",
                          &thread, &i),
              2)
        << line;
    EXPECT_EQ(i, next[static_cast<std::size_t>(thread)]++);
  }
}

TEST(Log, AHangingDiskBlocksNoThreadAndDropsTheOldestLines) {
  auto sink = std::make_shared<MemorySink>();
  const Log log = Log::to_sink("worker-0", sink, {});
  sink->set_stuck(true);
  constexpr std::size_t kLines = LogWriter::kMaxLines + 5000;
  for (std::size_t i = 0; i < kLines; ++i) log.info("line", kv("i", i));
  // All lines were accepted although none could be written.
  EXPECT_FALSE(Log::flush(10)) << "the sink hangs";
  EXPECT_GE(log.dropped(), 5000u - 256u) << "one batch may still be with the writer";
  sink->set_stuck(false);
  ASSERT_TRUE(Log::flush(10'000));
  const auto lines = sink->lines();
  EXPECT_EQ(lines.size() - 1 + log.dropped(), kLines) << "plus one line that reports the loss";
  EXPECT_NE(lines.back().find("i=" + std::to_string(kLines - 1)), std::string::npos) << "the newest are kept";
  bool reported = false;
  for (const std::string& line : lines) {
    reported |=
        line.find("event=log_lines_dropped lines=" + std::to_string(log.dropped())) != std::string::npos;
  }
  EXPECT_TRUE(reported);
}

TEST(Log, LinesLostToAFullDiskAreReportedAfterwards) {
  auto sink = std::make_shared<MemorySink>();
  const Log log = Log::to_sink("metrics", sink, {});
  sink->set_full(true);
  log.info("lost");
  log.info("lost");
  ASSERT_TRUE(Log::flush(5000));
  EXPECT_EQ(log.dropped(), 2u);
  sink->set_full(false);
  log.info("kept");
  ASSERT_TRUE(Log::flush(5000));
  const auto lines = sink->lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("event=log_lines_dropped lines=2 total=2"), std::string::npos);
}

TEST_F(LogFiles, OneDirectoryPerActor) {
  options_.actor_dirs["scheduler"] = directory_ + "/elsewhere";
  Result<Log> scheduler = Log::open("scheduler", options_);
  Result<Log> worker = Log::open("worker-0", options_);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status().message;
  ASSERT_TRUE(worker.ok()) << worker.status().message;
  scheduler->info("admitted", kv("req", "a"));
  worker->info("ready");
  Result<Log> again = Log::open("worker-0", options_);
  again->info("again");
  ASSERT_TRUE(Log::flush(5000));
  EXPECT_EQ(read_lines(directory_ + "/elsewhere/scheduler.log").size(), 1u);
  EXPECT_EQ(read_lines(directory_ + "/worker-0/worker-0.log").size(), 2u);
  EXPECT_EQ(log_path("worker-0", options_), directory_ + "/worker-0/worker-0.log");
  LogOptions apart = options_;
  apart.actor_dirs = {{"worker", "/w"}, {"worker-1", "/w1"}, {"-", "/never"}};
  EXPECT_EQ(log_path("worker", apart), "/w/worker.log");
  EXPECT_EQ(log_path("worker-0", apart), "/w/worker-0.log");
  EXPECT_EQ(log_path("worker-1", apart), "/w1/worker-1.log");
  EXPECT_EQ(log_path("worker-10", apart), "/w/worker-10.log");
  for (const char* other : {"worker-", "worker0", "worker-a", "-0", "0"})
    EXPECT_EQ(log_path(other, apart), directory_ + "/" + other + "/" + other + ".log");
  EXPECT_EQ(fs::status(directory_ + "/worker-0").permissions() & fs::perms::others_all, fs::perms::none);
}

TEST_F(LogFiles, AppendsAcrossRestarts) {
  { Log::open("cache", options_)->info("first"); }
  ASSERT_TRUE(Log::flush(5000));
  { Log::open("cache", options_)->info("second"); }
  ASSERT_TRUE(Log::flush(5000));
  EXPECT_EQ(read_lines(log_path("cache", options_)).size(), 2u);
}

TEST_F(LogFiles, RotatesBySize) {
  options_.rotate_bytes = 4096;
  options_.rotate_files = 2;
  const Result<Log> log = Log::open("session", options_);
  for (int i = 0; i < 400; ++i) log->info("line", kv("i", i));
  ASSERT_TRUE(Log::flush(5000));
  EXPECT_TRUE(fs::exists(directory_ + "/session/session.1.log"));
  EXPECT_TRUE(fs::exists(directory_ + "/session/session.2.log"));
  EXPECT_FALSE(fs::exists(directory_ + "/session/session.3.log"));
  EXPECT_LE(fs::file_size(directory_ + "/session/session.log"), 4096u);
  EXPECT_NE(read_lines(directory_ + "/session/session.log").back().find("i=399"), std::string::npos);
}

TEST_F(LogFiles, APathThatCannotBeMadeIsAnError) {
  std::ofstream(directory_) << "a file";
  const Result<Log> log = Log::open("cache", options_);
  ASSERT_FALSE(log.ok());
  EXPECT_NE(log.status().message.find(directory_), std::string::npos);
}

}  // namespace
}  // namespace troupe
