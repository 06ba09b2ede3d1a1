// Lines that a child writes which may have been taken over: bounded in length and in number.
#include "actors/supervisor/child_output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace troupe::supervisor {
namespace {

using namespace std::chrono_literals;

class ChildOutputTest : public ::testing::Test {
 protected:
  LogEvent log() {
    return [this](LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
      EXPECT_EQ(level, LogLevel::warning);
      ASSERT_EQ(fields.size(), 1u);
      const LogField& field = *fields.begin();
      if (event == "output_dropped") {
        dropped_.push_back(field.integer);
      } else {
        lines_.emplace_back(field.text);
      }
    };
  }
  void flood(OutputLines& output, int lines) {
    for (int i = 0; i < lines; ++i) output.take("x\n", now_);
  }

  std::vector<std::string> lines_;
  std::vector<std::int64_t> dropped_;
  TimePoint now_ = TimePoint{} + 100s;
};

TEST_F(ChildOutputTest, LinesMayComeInPieces) {
  OutputLines output(log());
  for (const char* piece : {"one\ntw", "o\n\n", "three"}) output.take(piece, now_);
  EXPECT_EQ(lines_, (std::vector<std::string>{"one", "two"}));
  output.end(now_);
  EXPECT_EQ(lines_.back(), "three");
  EXPECT_TRUE(dropped_.empty());
}

TEST_F(ChildOutputTest, ALongLineIsCut) {
  OutputLines output(log());
  for (int i = 0; i < 100; ++i) output.take(std::string(1000, 'a'), now_);
  output.take("\nnext\n", now_);
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0], std::string(OutputLines::kLongest, 'a') + "…");
  EXPECT_EQ(lines_[1], "next");
}

TEST_F(ChildOutputTest, WhatComesTooFastIsCounted) {
  OutputLines output(log());
  const auto burst = static_cast<std::size_t>(OutputLines::kBurst);
  flood(output, 1000);
  EXPECT_EQ(lines_.size(), burst);
  EXPECT_TRUE(dropped_.empty());
  output.tick(now_);
  EXPECT_TRUE(dropped_.empty()) << "there is no room for it";
  now_ += 1s;
  output.tick(now_);
  EXPECT_EQ(dropped_, std::vector<std::int64_t>{950});
  flood(output, 1000);
  EXPECT_EQ(lines_.size(), burst + static_cast<std::size_t>(OutputLines::kPerSecond));
  output.end(now_);
  EXPECT_EQ(dropped_, (std::vector<std::int64_t>{950, 990}));
  now_ += 1h;
  flood(output, 1000);
  EXPECT_EQ(lines_.size(), 2 * burst + static_cast<std::size_t>(OutputLines::kPerSecond));
}

TEST_F(ChildOutputTest, APipeIsReadAtABoundedRate) {
  ChildOutput output(log());
  auto end = output.open();
  ASSERT_TRUE(end.ok());
  const std::string much(32 * 1024, 'a');
  std::size_t taken = 0;
  while (output.fd(now_) >= 0 && taken < 2 * ChildOutput::kBytesPerSecond) {
    ASSERT_EQ(::write(end->get(), much.data(), much.size()), static_cast<ssize_t>(much.size()));
    for (int i = 0; i < 2; ++i) output.read(now_);
    taken += much.size();
  }
  EXPECT_EQ(taken, ChildOutput::kBytesPerSecond);
  EXPECT_GE(output.fd(now_ + 1s), 0);
  ASSERT_EQ(::write(end->get(), "\nlast words", 11), 11);
  end->reset();
  output.close(now_);
  EXPECT_EQ(lines_.back(), "last words") << "what it has left is read whatever the rate";
  EXPECT_LT(output.fd(now_ + 1s), 0);
}

}  // namespace
}  // namespace troupe::supervisor
