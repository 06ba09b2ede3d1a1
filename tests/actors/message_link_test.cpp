// The link between front and engine: messages in order and whole, across full rings and the death of either
// end.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "actors/link/link.h"
#include "support/patience.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;

/// An end with its receiving thread, which keeps what comes.
class Peer {
 public:
  explicit Peer(ipc::LinkEnd end) : link(std::move(end)) {}
  ~Peer() { stop(); }
  void start() {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      link.receive(stop, pulse,
                   {[this](const Arrival& arrival) {
                      while (slow) std::this_thread::sleep_for(1ms);
                      const std::lock_guard lock(mutex_);
                      tags_.push_back(arrival.tag);
                      texts_.emplace_back(reinterpret_cast<const char*>(arrival.bytes.data()),
                                          arrival.bytes.size());
                    },
                    [this](std::uint32_t epoch) {
                      const std::lock_guard lock(mutex_);
                      epochs_.push_back(epoch);
                    },
                    [this](const std::string& why) {
                      const std::lock_guard lock(mutex_);
                      broken_ = why;
                    }});
    });
  }
  void stop() { thread_ = {}; }
  std::uint32_t send(std::uint64_t tag, const std::string& text, std::uint32_t epoch = Link::kAnyEpoch) {
    return link.send(MessageType::submit, tag, std::as_bytes(std::span(text)), epoch);
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return tags_.size();
  }
  std::vector<std::uint64_t> tags() const {
    const std::lock_guard lock(mutex_);
    return tags_;
  }
  std::string text(std::size_t i) const {
    const std::lock_guard lock(mutex_);
    return texts_.at(i);
  }
  std::vector<std::uint32_t> epochs() const {
    const std::lock_guard lock(mutex_);
    return epochs_;
  }
  std::string broken() const {
    const std::lock_guard lock(mutex_);
    return broken_;
  }

  Link link;
  Pulse pulse;
  std::atomic<bool> slow{false};

 private:
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> tags_;
  std::vector<std::string> texts_;
  std::vector<std::uint32_t> epochs_;
  std::string broken_;
  std::jthread thread_;
};

class MessageLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fds =
        ipc::create_link({.step_down = 1u << 20, .step_up = 1u << 20, .cache_down = 4096, .cache_up = 4096});
    ASSERT_TRUE(fds.ok());
    fds_ = std::move(*fds);
    auto monitor = ipc::LinkMonitor::attach(fds_.step.get(), fds_.cache.get());
    ASSERT_TRUE(monitor.ok());
    monitor_.emplace(std::move(*monitor));
  }
  std::unique_ptr<Peer> front() {
    auto end = ipc::UpperEnd::attach(fds_.step.get(), fds_.cache.get());
    EXPECT_TRUE(end.ok());
    return std::make_unique<Peer>(*std::move(end));
  }
  std::unique_ptr<Peer> engine() {
    auto end = ipc::LowerEnd::attach(fds_.step.get(), fds_.cache.get());
    EXPECT_TRUE(end.ok());
    return std::make_unique<Peer>(*std::move(end));
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    for (const TimePoint end = Clock::now() + test::kPatience; Clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  ipc::LinkFds fds_;
  std::optional<ipc::LinkMonitor> monitor_;
};

TEST_F(MessageLinkTest, MessagesOfEveryLengthArriveWholeAndInOrder) {
  const auto a = front(), b = engine();
  b->start();
  std::vector<std::string> sent;
  for (const std::size_t length : {0u, 1u, 7u, 8u, 4000u, 400'000u, 524'000u, 3'000'000u, 5u, 9'000'000u}) {
    sent.emplace_back(length, static_cast<char>('a' + sent.size()));
    a->send(sent.size(), sent.back());
  }
  a->start();  // sends what found no room
  ASSERT_TRUE(eventually([&] { return b->count() == sent.size(); })) << b->broken();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(b->tags()[i], i + 1);
    EXPECT_EQ(b->text(i), sent[i]);
  }
  EXPECT_LE(a->link.counts().longest_record, wire::kMaxRecordBytes);
  EXPECT_GT(a->link.counts().pieces, a->link.counts().messages);
}

TEST_F(MessageLinkTest, SeveralThreadsMaySendAtOnce) {
  const auto a = front(), b = engine();
  a->start();
  b->start();
  {
    std::vector<std::jthread> senders;
    for (std::uint64_t sender = 0; sender < 4; ++sender) {
      senders.emplace_back([&, sender] {
        for (std::uint64_t i = 0; i < 500; ++i) a->send(sender * 1000 + i, std::string(i * 20, 'x'));
      });
    }
  }
  ASSERT_TRUE(eventually([&] { return b->count() == 2000; })) << b->broken();
  std::vector<std::uint64_t> next(4, 0);
  for (const std::uint64_t tag : b->tags()) EXPECT_EQ(tag % 1000, next[tag / 1000]++);
}

TEST_F(MessageLinkTest, WhatWasSentToADeadPeerIsDroppedAndTheNextOneStartsAnew) {
  const auto a = front();
  auto b = engine();
  a->start();
  b->start();
  a->send(1, "old");
  ASSERT_TRUE(eventually([&] { return b->count() == 1; }));
  b->stop();
  for (int i = 0; i < 10; ++i) a->send(2, std::string(300'000, 'o'));  // more than the ring holds
  b.reset();
  monitor_->reaped(ipc::Side::lower);
  ASSERT_TRUE(eventually([&] { return a->epochs() == std::vector<std::uint32_t>{2}; }));
  EXPECT_EQ(a->send(3, "for the dead one", 1), 0u);
  EXPECT_EQ(a->send(4, "new"), 2u);
  b = engine();
  b->start();
  ASSERT_TRUE(eventually([&] { return b->count() == 1; }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(b->tags(), std::vector<std::uint64_t>{4});
  b->send(5, "answer");
  ASSERT_TRUE(eventually([&] { return a->count() == 1; })) << a->broken();
}

TEST_F(MessageLinkTest, StepsNeedCreditAndACancellationNone) {
  const auto a = front(), b = engine();
  a->slow = true;
  a->start();
  for (std::int64_t i = 0; i < Link::kStepCredit; ++i) {
    EXPECT_FALSE(b->link.behind());
    b->link.count_step();
    b->send(7, "tokens");
  }
  EXPECT_TRUE(b->link.behind());
  a->send(1, "cancel");
  b->start();
  ASSERT_TRUE(eventually([&] { return b->count() == 1; })) << "while the front is behind";
  a->slow = false;
  ASSERT_TRUE(eventually([&] { return a->count() == static_cast<std::size_t>(Link::kStepCredit); }));
  for (std::int64_t i = 0; i < Link::kStepCredit; ++i) a->link.took_step();
  ASSERT_TRUE(eventually([&] { return b->count() == 5; }))
      << "an acknowledgement for each quarter of the credit";
  b->link.acknowledged(static_cast<std::int64_t>(b->tags().back()));
  EXPECT_FALSE(b->link.behind());
  EXPECT_EQ(b->link.counts().most_steps_open, Link::kStepCredit);
}

TEST_F(MessageLinkTest, AGapInTheRecordsBreaksTheLink) {
  auto raw = ipc::LowerEnd::attach(fds_.step.get(), fds_.cache.get());
  ASSERT_TRUE(raw.ok());
  const auto a = front();
  a->start();
  wire::RecordWriter<wire::Message> writer;
  writer.begin(1);
  writer.record().number = 2;
  raw->try_send(ipc::Channel::step, writer.finish());
  ASSERT_TRUE(eventually([&] { return !a->broken().empty(); }));
  EXPECT_EQ(a->broken(), "record 2 came in the place of 1");
}

TEST_F(MessageLinkTest, APieceThatDoesNotFitBreaksTheLink) {
  struct Piece {
    std::uint32_t first, total;
  };
  for (const Piece piece : {Piece{4, 8}, Piece{0, 2}, Piece{0, 0xffff'ffff}}) {
    SetUp();
    auto raw = ipc::LowerEnd::attach(fds_.step.get(), fds_.cache.get());
    const auto a = front();
    a->start();
    wire::RecordWriter<wire::Message> writer;
    writer.begin(1);
    writer.record().number = 1;
    writer.record().first = piece.first;
    writer.record().total = piece.total;
    const auto bytes = writer.array(std::vector<std::byte>(4));
    writer.record().bytes = bytes;
    raw->try_send(ipc::Channel::step, writer.finish());
    ASSERT_TRUE(eventually([&] { return !a->broken().empty(); })) << piece.first << " " << piece.total;
  }
}

}  // namespace
}  // namespace troupe
