#include "ipc/link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "support/patience.h"

namespace troupe::ipc {
namespace {

using namespace std::chrono_literals;
using Kind = Received::Kind;

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fds = create_link();
    ASSERT_TRUE(fds.ok()) << fds.status().message;
    fds_ = std::move(*fds);
    auto monitor = LinkMonitor::attach(fds_.step.get(), fds_.cache.get());
    ASSERT_TRUE(monitor.ok());
    monitor_.emplace(std::move(*monitor));
  }

  std::unique_ptr<UpperEnd> engine() {
    auto end = UpperEnd::attach(fds_.step.get(), fds_.cache.get());
    EXPECT_TRUE(end.ok()) << end.status().message;
    return std::make_unique<UpperEnd>(std::move(*end));
  }
  std::unique_ptr<LowerEnd> worker() {
    auto end = LowerEnd::attach(fds_.step.get(), fds_.cache.get());
    EXPECT_TRUE(end.ok()) << end.status().message;
    return std::make_unique<LowerEnd>(std::move(*end));
  }
  static bool send_plan(LinkEnd& end, std::uint64_t step, std::uint32_t epoch) {
    wire::RecordWriter<wire::StepPlan> writer;
    writer.begin(epoch);
    writer.record().step = step;
    return end.try_send(Channel::step, writer.finish());
  }
  static bool send_command(LinkEnd& end, std::uint64_t id) {
    wire::RecordWriter<wire::CacheCommand> writer;
    writer.begin(end.epoch());
    writer.record().id = id;
    return end.try_send(Channel::cache, writer.finish());
  }
  static Received poll(LinkEnd& end) { return end.receive(TimePoint{}); }

  LinkFds fds_;
  std::optional<LinkMonitor> monitor_;
};

TEST_F(LinkTest, RecordsGoBothWaysOnBothChannels) {
  auto e = engine();
  auto w = worker();
  EXPECT_EQ(poll(*w).kind, Kind::timeout);
  ASSERT_TRUE(send_plan(*e, 7, e->epoch()));
  Received got = w->receive(Clock::now() + test::kPatience);
  ASSERT_EQ(got.kind, Kind::record);
  EXPECT_EQ(got.channel, Channel::step);
  ASSERT_NE(got.view.as<wire::StepPlan>(), nullptr);
  EXPECT_EQ(got.view.as<wire::StepPlan>()->step, 7u);

  wire::RecordWriter<wire::CacheDone> done;
  done.begin(w->epoch());
  done.record().id = 3;
  ASSERT_TRUE(w->try_send(Channel::cache, done.finish()));
  got = e->receive(Clock::now() + test::kPatience);
  ASSERT_EQ(got.kind, Kind::record);
  EXPECT_EQ(got.channel, Channel::cache);
  EXPECT_EQ(got.view.as<wire::CacheDone>()->id, 3u);
  EXPECT_EQ(poll(*e).kind, Kind::timeout);
}

TEST_F(LinkTest, CacheCommandsComeBeforeThePlansSentAfterThem) {
  auto e = engine();
  auto w = worker();
  ASSERT_TRUE(send_command(*e, 1));
  ASSERT_TRUE(send_plan(*e, 1, e->epoch()));
  ASSERT_TRUE(send_command(*e, 2));
  ASSERT_TRUE(send_plan(*e, 2, e->epoch()));
  EXPECT_EQ(poll(*w).view.as<wire::CacheCommand>()->id, 1u);
  EXPECT_EQ(poll(*w).view.as<wire::CacheCommand>()->id, 2u);
  EXPECT_EQ(poll(*w).view.as<wire::StepPlan>()->step, 1u);
  EXPECT_EQ(poll(*w).view.as<wire::StepPlan>()->step, 2u);
}

TEST_F(LinkTest, ASleepingReceiverIsWokenByEitherChannel) {
  auto e = engine();
  auto w = worker();
  Duration shortest[] = {Duration::max(), Duration::max()};
  for (int round = 0; round < 20; ++round) {
    std::jthread sender([&] {
      std::this_thread::sleep_for(2ms);
      EXPECT_TRUE(round % 2 == 0 ? send_plan(*e, 1, e->epoch()) : send_command(*e, 1));
    });
    const TimePoint start = Clock::now();
    EXPECT_EQ(w->receive(start + test::kPatience).kind, Kind::record);
    shortest[round % 2] = std::min(shortest[round % 2], Clock::now() - start);
  }
  // Woken by the doorbell, not by the interval of the heartbeat.
  EXPECT_LT(shortest[0], 300ms);
  EXPECT_LT(shortest[1], 300ms);
}

TEST_F(LinkTest, DoneFreesTheRoomAtOnce) {
  auto e = engine();
  auto w = worker();
  ASSERT_TRUE(send_plan(*e, 1, e->epoch()));
  ASSERT_EQ(poll(*w).kind, Kind::record);
  EXPECT_EQ(monitor_->depths()[0].records, 1u);
  w->done();
  EXPECT_EQ(monitor_->depths()[0].records, 0u);
  w->done();  // no record is held: no effect
  ASSERT_TRUE(send_plan(*e, 2, e->epoch()));
  EXPECT_EQ(poll(*w).view.as<wire::StepPlan>()->step, 2u);
}

TEST_F(LinkTest, WhatMustLeaveRoomIsRefusedBeforeTheRingIsFull) {
  auto e = engine();
  auto w = worker();
  const std::size_t half = e->capacity(Channel::step) / 2;
  std::vector<std::byte> record(half / 4);
  wire::Header header{wire::RecordKind::step_masks, static_cast<std::uint32_t>(record.size()), 1, 0};
  std::memcpy(record.data(), &header, sizeof header);
  int sent = 0;
  while (e->try_send(Channel::step, record, half)) ++sent;
  EXPECT_EQ(sent, 3) << "with their frames, four would take more than half";
  EXPECT_TRUE(e->try_send(Channel::step, record)) << "what need not leave any is taken";
  for (int i = 0; i < 4; ++i) EXPECT_EQ(poll(*w).kind, Kind::record);
  w->done();
  EXPECT_TRUE(e->try_send(Channel::step, record, e->capacity(Channel::step))) << "the ring is empty";
  EXPECT_FALSE(e->try_send(Channel::step, record, e->capacity(Channel::step)));
}

TEST(LinkSizes, HalfOfTheStepRingHoldsTheMasksOfAStep) {
  for (const std::uint32_t sequences : {1u, 32u, 256u, 512u, 1024u, 100000u}) {
    const std::uint32_t down = LinkSizes::for_sequences(sequences).step_down;
    EXPECT_TRUE(RingMemory::valid_capacity(down));
    EXPECT_GE(down / 2, kRoomForPlans);
    if (sequences <= 1024) {
      EXPECT_GE(down / 2, sequences * ((103424 + 31) / 32 * 4 + sizeof(wire::RowMask) + 8));
    }
  }
  EXPECT_EQ(LinkSizes::for_sequences(32).step_down, 8u << 20);
  EXPECT_EQ(LinkSizes::for_sequences(512).step_down, 16u << 20);
}

TEST_F(LinkTest, DepthsAreReportedForAllFourQueues) {
  auto e = engine();
  auto w = worker();
  ASSERT_TRUE(send_plan(*e, 1, 1));
  ASSERT_TRUE(send_plan(*e, 2, 1));
  ASSERT_TRUE(send_command(*e, 1));
  const auto depths = monitor_->depths();
  ASSERT_EQ(depths.size(), 4u);
  EXPECT_STREQ(depths[0].name, "plan");
  EXPECT_EQ(depths[0].records, 2u);
  EXPECT_EQ(depths[0].bytes, 2 * (8 + sizeof(wire::StepPlan)));
  EXPECT_EQ(depths[0].capacity_bytes, LinkSizes{}.step_down);
  EXPECT_STREQ(depths[1].name, "result");
  EXPECT_EQ(depths[1].records, 0u);
  EXPECT_STREQ(depths[2].name, "cache_down");
  EXPECT_EQ(depths[2].records, 1u);
  EXPECT_EQ(depths[2].capacity_bytes, 256u << 10);
  EXPECT_STREQ(depths[3].name, "cache_up");
}

TEST_F(LinkTest, AFullRingIsRefused) {
  auto e = engine();
  auto w = worker();
  int sent = 0;
  while (send_plan(*e, sent + 1, 1)) ++sent;
  EXPECT_EQ(sent, static_cast<int>(LinkSizes{}.step_down / (8 + sizeof(wire::StepPlan))));
  for (int i = 0; i < sent; ++i) ASSERT_EQ(poll(*w).view.as<wire::StepPlan>()->step, i + 1u);
  EXPECT_EQ(poll(*w).kind, Kind::timeout);
  EXPECT_TRUE(send_plan(*e, 1, 1));
}

TEST_F(LinkTest, TheLongestRecordFits) {
  auto e = engine();
  auto w = worker();
  EXPECT_EQ(e->max_record(Channel::step), wire::kMaxRecordBytes);
  EXPECT_EQ(e->max_record(Channel::cache), (128u << 10) - 8);
  const std::vector<TokenId> ids(wire::kMaxTokensInPlan, 5);
  for (int round = 0; round < 20; ++round) {
    wire::RecordWriter<wire::StepPlan> writer;
    writer.begin(e->epoch());
    const auto span = writer.array(ids);
    wire::TokenRun run{{}, 0, 0, span};
    const auto runs = writer.array(std::span<const wire::TokenRun>(&run, 1));
    writer.record().tokens = runs;
    ASSERT_TRUE(e->try_send(Channel::step, writer.finish()));
    const Received got = poll(*w);
    ASSERT_EQ(got.kind, Kind::record);
    const auto tokens = got.view.array(got.view.as<wire::StepPlan>()->tokens);
    ASSERT_EQ(tokens.size(), 1u);
    EXPECT_EQ(got.view.array(tokens[0].ids).back(), 5);
  }
}

// The worker dies with unread plans. The next worker starts in the new epoch, sees none of them and gets no
// report of a new epoch; the engine gets one.
TEST_F(LinkTest, ARestartedWorkerSeesNoOldRecords) {
  auto e = engine();
  auto w = worker();
  ASSERT_TRUE(send_plan(*e, 1, e->epoch()));
  ASSERT_TRUE(send_plan(*e, 2, e->epoch()));
  ASSERT_EQ(poll(*w).kind, Kind::record);
  w.reset();
  EXPECT_EQ(monitor_->reaped(Side::lower), 2u);
  w = worker();
  EXPECT_EQ(w->epoch(), 2u);
  EXPECT_EQ(poll(*w).kind, Kind::timeout);
  EXPECT_EQ(w->stale_records(), 2u);

  EXPECT_EQ(e->epoch(), 1u);  // not reported yet
  EXPECT_EQ(poll(*e).kind, Kind::epoch_changed);
  EXPECT_EQ(e->epoch(), 2u);
  EXPECT_EQ(poll(*e).kind, Kind::timeout);
  ASSERT_TRUE(send_plan(*e, 1, e->epoch()));
  EXPECT_EQ(poll(*w).kind, Kind::record);
}

// A side that has not seen the new epoch yet must not drop a record of it.
TEST_F(LinkTest, ANewEpochIsReportedBeforeItsFirstRecord) {
  auto e = engine();
  auto w = worker();
  ASSERT_TRUE(send_plan(*e, 1, 1));
  e.reset();
  monitor_->reaped(Side::upper);
  e = engine();
  ASSERT_TRUE(send_plan(*e, 10, e->epoch()));
  EXPECT_EQ(poll(*w).kind, Kind::epoch_changed);
  const Received got = poll(*w);
  ASSERT_EQ(got.kind, Kind::record);
  EXPECT_EQ(got.view.as<wire::StepPlan>()->step, 10u);
  EXPECT_EQ(w->stale_records(), 1u);
}

TEST_F(LinkTest, ADeathWakesTheSleepingSurvivor) {
  auto e = engine();
  Duration shortest = Duration::max();
  for (int round = 0; round < 10; ++round) {
    std::jthread supervisor([&] {
      std::this_thread::sleep_for(20ms);
      monitor_->reaped(Side::lower);
    });
    const TimePoint start = Clock::now();
    EXPECT_EQ(e->receive(start + test::kPatience).kind, Kind::epoch_changed);
    shortest = std::min(shortest, Clock::now() - start);
  }
  EXPECT_LT(shortest, 300ms);  // woken by the doorbell, not by the interval of the heartbeat
}

TEST_F(LinkTest, InvalidRecordsAreReportedAndLaterOnesArrive) {
  auto e = engine();
  auto w = worker();
  wire::RecordWriter<wire::StepPlan> writer;
  writer.begin(1);
  std::vector<std::byte> bytes(writer.finish().begin(), writer.finish().end());
  bytes.resize(bytes.size() + 8);  // longer than its header says
  ASSERT_TRUE(e->try_send(Channel::step, bytes));
  ASSERT_TRUE(send_command(*e, 1));
  Received got = poll(*w);
  EXPECT_EQ(got.kind, Kind::corrupt);
  EXPECT_EQ(got.channel, Channel::step);
  EXPECT_EQ(poll(*w).view.as<wire::CacheCommand>()->id, 1u);
  ASSERT_TRUE(send_plan(*e, 5, 1));
  EXPECT_EQ(poll(*w).view.as<wire::StepPlan>()->step, 5u);
  const std::vector<std::byte> tiny(3);
  ASSERT_TRUE(e->try_send(Channel::step, tiny));
  EXPECT_EQ(poll(*w).kind, Kind::corrupt);
}

TEST_F(LinkTest, HeartbeatsAreSetWhileAttached) {
  EXPECT_EQ(monitor_->heartbeat_ns(Side::lower), 0);
  auto w = worker();
  const std::int64_t first = monitor_->heartbeat_ns(Side::lower);
  EXPECT_GT(first, 0);
  EXPECT_LE(first, now_ns());
  EXPECT_EQ(monitor_->heartbeat_ns(Side::upper), 0);
  // receive() writes heartbeats while it waits.
  std::atomic<std::int64_t> slept{0};
  std::jthread idle([&] {
    slept = now_ns();
    EXPECT_EQ(w->receive(Clock::now() + 2s).kind, Kind::timeout);
  });
  const TimePoint end = Clock::now() + test::kPatience;
  const auto beats = [&] { return slept != 0 && monitor_->heartbeat_ns(Side::lower) > slept + 100'000'000; };
  while (!beats() && Clock::now() < end) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(beats());
  idle.join();
  w.reset();
  EXPECT_EQ(monitor_->heartbeat_ns(Side::lower), 0);
}

TEST_F(LinkTest, SwappedDescriptorsAreAnError) {
  EXPECT_FALSE(UpperEnd::attach(fds_.cache.get(), fds_.step.get()).ok());
  EXPECT_FALSE(LowerEnd::attach(-1, -1).ok());
}

}  // namespace
}  // namespace troupe::ipc
