// Several ranks: their links change their epoch together, and what ends one epoch of all counts as one death.
#include "actors/supervisor/rank_links.h"

#include <signal.h>

#include "actors/supervisor/children.h"
#include "actors/supervisor/resources.h"
#include "supervisor/server_process.h"

namespace troupe::supervisor {
namespace {

constexpr int kRanks = 8;

// The links of a server; the test speaks for the processes.
class RankLinksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config::Options options;
    options.http.port = 0;
    options.process.runtime_dir = (directory.path() / "run").string();
    auto taken = take(options);
    ASSERT_TRUE(taken.ok()) << taken.status().message;
    resources = std::move(*taken);
    for (const ipc::LinkFds& fds : resources->engines[0].links) {
      ends.push_back(
          std::make_unique<ipc::LowerEnd>(*ipc::LowerEnd::attach(fds.step.get(), fds.cache.get())));
    }
  }
  Result<Resources> take(const config::Options& options) {
    std::vector<RanksMemory> memories(1);
    memories[0].set_epoch = [this](std::uint32_t epoch) { tell(epoch); };
    return Resources::take(options, {1, kRanks}, std::move(memories));
  }
  // The epochs that the ranks' memory is given, and the links' epochs at that time.
  void tell(std::uint32_t epoch) {
    reported.push_back(epoch);
    if (resources) epochs_then = epochs();
  }
  std::vector<std::uint32_t> epochs() const {
    std::vector<std::uint32_t> all;
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      all.push_back(resources->monitors.engine(0)[rank].epoch());
    return all;
  }
  static std::vector<std::uint32_t> all_in(std::uint32_t epoch) {
    return std::vector<std::uint32_t>(kRanks, epoch);
  }
  // Every rank greets in the newest epoch.
  void meet() {
    for (const auto& end : ends) {
      while (end->receive(Clock::now()).kind == ipc::Received::Kind::epoch_changed) {
      }
      end->join();
    }
  }

  const troupe::test::TempDirectory directory;
  std::optional<Resources> resources;
  std::vector<std::unique_ptr<ipc::LowerEnd>> ends;
  std::vector<std::uint32_t> reported, epochs_then;
};

TEST_F(RankLinksTest, ALossRaisesTheEpochOfAllAndTheMemorysFirst) {
  RankLinks& links = resources->monitors.engine(0);
  EXPECT_EQ(links.worker_reaped(3), 2u);
  EXPECT_EQ(epochs(), all_in(2));
  EXPECT_EQ(reported, std::vector<std::uint32_t>{2});
  EXPECT_EQ(epochs_then, all_in(1));
  EXPECT_EQ(links.engine_reaped(), 3u);
  EXPECT_EQ(epochs(), all_in(3));
  EXPECT_EQ(epochs_then, all_in(2));
}

TEST_F(RankLinksTest, TheFrontsLossIsTheEnginesToLearnAndTheEnginesTheFronts) {
  RankLinks& links = resources->monitors.engine(0);
  links.front_reaped();
  EXPECT_EQ(links.front().epoch(), 2u);
  EXPECT_EQ(epochs(), all_in(1));
  links.engine_reaped();
  EXPECT_EQ(links.front().epoch(), 3u);
  links.worker_reaped(0);
  EXPECT_EQ(links.front().epoch(), 3u);
}

TEST_F(RankLinksTest, ADecodeInstancesFrontLearnsOfTheEnginesEndAndTheEngineOfThatFronts) {
  const auto made = ipc::create_link();
  ASSERT_TRUE(made.ok());
  const auto attach = [&] { return *ipc::LinkMonitor::attach(made->step.get(), made->cache.get()); };
  const ipc::LinkMonitor theirs = attach();
  RankLinks& links = resources->monitors.engine(0);
  links.set_decode_front(attach());
  links.engine_reaped();
  EXPECT_EQ(theirs.epoch(), 2u);
  links.front_reaped();
  EXPECT_EQ(theirs.epoch(), 2u) << "that is the other front";
  links.decode_front_reaped();
  EXPECT_EQ(theirs.epoch(), 3u);
  EXPECT_EQ(links.front().epoch(), 3u);
  links.engine_reaped();
  EXPECT_EQ(theirs.epoch(), 3u) << "it is none of this server's any more";
}

TEST_F(RankLinksTest, WhatARankHasJoinedIsForgottenWithIt) {
  RankLinks& links = resources->monitors.engine(0);
  EXPECT_EQ(links[3].joined(ipc::Side::lower), 0u);
  meet();
  EXPECT_EQ(links[3].joined(ipc::Side::lower), 1u);
  EXPECT_EQ(links[3].joined(ipc::Side::upper), 0u);
  ends[3].reset();
  EXPECT_EQ(links[3].joined(ipc::Side::lower), 1u) << "until it is waited for";
  links.worker_reaped(3);
  EXPECT_EQ(links[3].joined(ipc::Side::lower), 0u);
  EXPECT_EQ(links[2].joined(ipc::Side::lower), 1u);
  ends[3] = std::make_unique<ipc::LowerEnd>(*ipc::LowerEnd::attach(
      resources->engines[0].links[3].step.get(), resources->engines[0].links[3].cache.get()));
  meet();
  for (std::size_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(links[rank].joined(ipc::Side::lower), 2u);
}

class ChildrenOfRanksTest : public RankLinksTest {
 protected:
  void SetUp() override {
    RankLinksTest::SetUp();
    ChildLimits limits;
    limits.restarts = {.max_restarts = 2, .window = 1h, .first_delay = {}, .max_delay = {}};
    children.emplace("/bin/sh", limits, [](LogLevel, std::string_view, std::initializer_list<LogField>) {});
    std::vector<Child> made = resources->make_children({});
    for (Child& child : made) child.words = {"-c", "exec sleep 1000"};
    ASSERT_TRUE(children->start(std::move(made), resources->monitors).ok());
    meet();
  }
  void TearDown() override { children->clear(); }

  Child& worker(int rank) { return children->all()[static_cast<std::size_t>(rank) + 2]; }
  // Ends it and plans what comes next.
  Status lose(Child& child) {
    child.process.kill(SIGKILL);
    return children->plan_restart(child, children->take_exit(child));
  }
  Status lose_all() {
    Status status;
    for (int rank = 0; rank < kRanks && status.ok(); ++rank) status = lose(worker(rank));
    return status;
  }
  void start_again() {
    ASSERT_TRUE(children->restart_due(Clock::now()).ok());
    ASSERT_EQ(children->next_restart(), std::nullopt);
  }

  std::optional<Children> children;
};

TEST_F(ChildrenOfRanksTest, TheLossOfAllInOneEpochCountsOnce) {
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(lose_all().ok()) << "round " << round;
    EXPECT_FALSE(worker(0).follows);
    EXPECT_TRUE(worker(1).follows);
    start_again();
    meet();
  }
  const Status status = lose_all();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message.find("giving up after 3 deaths within 3600 s (worker-0 3, worker-1 2, "), 0u)
      << status.message;
}

TEST_F(ChildrenOfRanksTest, OneThatHasGoneOnWithTheOthersCountsForItself) {
  EXPECT_TRUE(lose(worker(1)).ok());
  start_again();
  meet();
  EXPECT_TRUE(lose(worker(0)).ok()) << "from the first epoch, but it has met the others in the second";
  EXPECT_FALSE(worker(0).follows);
  start_again();
  meet();
  EXPECT_FALSE(lose(worker(2)).ok());
}

TEST_F(ChildrenOfRanksTest, OneThatNeverGetsReadyCountsEveryTime) {
  EXPECT_TRUE(lose(worker(1)).ok());
  start_again();
  EXPECT_TRUE(lose(worker(1)).ok());
  start_again();
  EXPECT_FALSE(lose(worker(1)).ok());
}

TEST_F(ChildrenOfRanksTest, RanksThatGoWithTheEngineDoNotCount) {
  EXPECT_TRUE(lose(children->all()[1]).ok());
  EXPECT_TRUE(lose_all().ok());
  EXPECT_TRUE(worker(0).follows);
}

// With processes and a supervisor: one is killed, the other three end by themselves.
class RankGroupServerTest : public SuperviseTest {
 protected:
  static constexpr int kTogether = 4;
  void SetUp() override {
    SuperviseTest::SetUp();
    setup_.counts.ranks = kTogether;
    setup_.options.process.max_restarts = 1;
    script("worker=together");
  }
  // All of them have met in an epoch in which all live.
  bool meet_anew(int before) {
    return eventually([&] { return count("rank has met") == before + kTogether; });
  }
};

TEST_F(RankGroupServerTest, OneKillThatTakesAllRanksDownCountsOnce) {
  const pid_t server = start();
  ASSERT_TRUE(meet_anew(0));
  ASSERT_TRUE(state_becomes("ready"));
  const Json ports = status()["ports"];
  EXPECT_EQ(ports["engine_worker_queue"].size(), 4u) << ports;
  EXPECT_EQ(ports["cache_queue"].size(), 4u) << ports;
  kill(pids_of("worker").front(), SIGKILL);
  ASSERT_TRUE(meet_anew(kTogether)) << read("stderr");
  EXPECT_EQ(pids_of("worker").size(), 2u * kTogether);
  EXPECT_EQ(pids_of("engine").size(), 1u);
  kill(newest("worker"), SIGKILL);
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_NE(read("stderr").find("giving up after 2 deaths within 60 s"), std::string::npos) << read("stderr");
  EXPECT_TRUE(children_gone());
  EXPECT_TRUE(nothing_left());
}

}  // namespace
}  // namespace troupe::supervisor
