// Text processes of whole servers with fake children: what a client's text can do to one costs no other
// child.
#include "supervisor/server_process.h"

namespace troupe::supervisor {
namespace {

class TextChildTest : public SuperviseTest {
 protected:
  void SetUp() override {
    SuperviseTest::SetUp();
    setup_.counts.texts = 2;
    setup_.options.process.max_restarts = 0;  // a death that counts ends the server
  }
  /// Another process has taken the place of text-0, and of no other child.
  bool replaced(std::size_t lives) {
    return eventually([&] { return pids_of("text-0").size() == lives; }) && state_becomes("ready") &&
           pids_of("front").size() + pids_of("engine").size() + pids_of("worker").size() +
                   pids_of("text-1").size() ==
               4;
  }
  void expect_end(pid_t server) {
    kill(server, SIGTERM);
    EXPECT_EQ(wait_for(server), 0);
    EXPECT_TRUE(children_gone());
    EXPECT_TRUE(nothing_left());
  }
};

TEST_F(TextChildTest, ItsDeathsNeverCountOnceItIsReady) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  for (std::size_t lives = 2; lives <= 6; ++lives) {
    kill(newest("text-0"), SIGKILL);
    ASSERT_TRUE(replaced(lives)) << read("stderr");
  }
  const std::string said = read("stderr");
  EXPECT_NE(said.find("text-0 was killed by signal 9 (Killed); it is started again\n"), std::string::npos)
      << said;
  EXPECT_NE(said.find("text-0 is back after "), std::string::npos) << said;
  EXPECT_NE(said.find(", 5 restarts so far\n"), std::string::npos) << said;
  const Json processes = status()["processes"];
  ASSERT_EQ(processes.size(), 6u);
  EXPECT_EQ(processes[4]["name"], "text-0");
  EXPECT_EQ(processes[4]["restarts"], 5);
  EXPECT_EQ(processes[4]["pid"], newest("text-0"));
  EXPECT_EQ(processes[5]["restarts"], 0);
  EXPECT_EQ(count("text-0 start " + std::to_string(newest("text-0")) + " epoch 6"), 1);
  EXPECT_EQ(count("text-1 sees epoch"), 0) << "each has a link of its own";
  kill(newest("worker"), SIGKILL);  // the first that counts
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_NE(read("stderr").find("giving up after 1 death"), std::string::npos) << read("stderr");
}

TEST_F(TextChildTest, OneThatNeverComesUpEndsTheServer) {
  setup_.options.process.max_restarts = 3;
  script("text-1=early");
  EXPECT_EQ(wait_for(start()), 1);
  EXPECT_EQ(pids_of("text-1").size(), 4u);
  const std::string why = read("stderr");
  EXPECT_NE(why.find("giving up after 4 deaths (text-1 4)"), std::string::npos) << why;
  EXPECT_NE(why.find("text-1 exited with code 7"), std::string::npos) << why;
  EXPECT_TRUE(children_gone());
}

TEST_F(TextChildTest, WhatItSaysBeforeItIsReadyIsTheReason) {
  script("text-0=fatal");
  EXPECT_EQ(wait_for(start()), 1);
  EXPECT_EQ(pids_of("text-0").size(), 1u);
  EXPECT_EQ(read("stderr"), "troupe: text-0 finds no model here\n");
}

TEST_F(TextChildTest, OneThatIsNeverReadyIsKilled) {
  setup_.options.process.start_timeout_s = 1;
  script("text-0=silent");
  EXPECT_EQ(wait_for(start()), 1);
  EXPECT_NE(read("stderr").find("(Killed) because it was not ready after 1 s"), std::string::npos)
      << read("stderr");
}

// The text that has ended it may be forgiven, a program that does not start any more may not.
TEST_F(TextChildTest, OneThatDoesNotComeBackEndsTheServer) {
  setup_.options.process.max_restarts = 2;
  script("text-0=declining");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("text-0"), SIGKILL);
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_EQ(pids_of("text-0").size(), 4u) << "the one that was ready, and three that count";
  EXPECT_NE(read("stderr").find("giving up after 3 deaths (text-0 4)"), std::string::npos) << read("stderr");
}

TEST_F(TextChildTest, OneThatStandsStillIsReplaced) {
  setup_.options.process.worker_timeout_s = 1;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("text-0"), SIGSTOP);
  ASSERT_TRUE(replaced(2)) << read("stderr");
  EXPECT_NE(read("stderr").find("(Killed) because it gave no sign of life for 1 s;"), std::string::npos)
      << read("stderr");
  expect_end(server);
}

TEST_F(TextChildTest, OneThatTheFrontDistrustsIsReplaced) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  const auto distrust = [&](const std::string& child) {
    std::ofstream(base_ + "/distrusted.new") << child << '\n';
    std::filesystem::rename(base_ + "/distrusted.new", base_ + "/distrusted");
    return eventually([&] { return !std::filesystem::exists(base_ + "/distrusted"); });
  };
  for (const char* other : {"engine", "worker-0", "text-7", ""}) EXPECT_TRUE(distrust(other));
  EXPECT_TRUE(distrust("text-0"));
  ASSERT_TRUE(replaced(2)) << read("stderr");
  EXPECT_NE(read("stderr").find("because it was distrusted by the front: it sent nonsense;"),
            std::string::npos)
      << read("stderr");
  EXPECT_EQ(status()["processes"][4]["restarts"], 1);
  expect_end(server);
}

TEST_F(TextChildTest, ItOutlivesTheFrontAndIsToldOfTheNext) {
  setup_.options.process.max_restarts = 1;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("front"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return pids_of("front").size() == 2; }));
  ASSERT_TRUE(state_becomes("ready"));
  for (const std::string text : {"text-0", "text-1"}) {
    EXPECT_TRUE(eventually([&] { return count(text + " sees epoch 2") == 1; }));
    EXPECT_EQ(pids_of(text).size(), 1u);
  }
  expect_end(server);
}

}  // namespace
}  // namespace troupe::supervisor
