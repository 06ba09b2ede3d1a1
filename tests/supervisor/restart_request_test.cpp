// Children that are replaced one at a time: by a request, or because the front alone has died.
#include "actors/supervisor/restart_request.h"

#include <sys/socket.h>

#include "ipc/wire.h"
#include "supervisor/server_process.h"

namespace troupe::supervisor {
namespace {

TEST_F(SuperviseTest, AKilledFrontIsReplacedWhileEngineAndWorkerLive) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("front"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return pids_of("front").size() == 2; }));
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(count("front start " + std::to_string(newest("front")) + " epoch 2"), 1);
  EXPECT_EQ(pids_of("engine").size(), 1u);
  EXPECT_EQ(pids_of("worker").size(), 1u);
  EXPECT_EQ(count("engine sees epoch"), 0) << "the workers' links do not change";
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

LocalRequest restart_of(const std::string& child) {
  return {LocalRequest::Kind::restart, child, wire::kVersion, wire::kMessagesVersion};
}

class RestartRequestTest : public SuperviseTest {
 protected:
  Json ask(const LocalRequest& request) const {
    const auto answer =
        ask_supervisor(setup_.options.process.runtime_dir, setup_.options.http.port, request, kPatience);
    EXPECT_TRUE(answer.ok()) << answer.status().message;
    return answer.ok() ? Json::parse(*answer) : Json();
  }
};

TEST_F(RestartRequestTest, EachKindIsReplacedWhichCountsAsNoDeath) {
  setup_.options.process.max_restarts = 0;  // a death would end the server
  setup_.counts.texts = 2;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  for (const std::string kind : {"engine", "front", "worker", "text-1"}) {
    EXPECT_EQ(ask(restart_of(kind == "worker" ? "worker-0" : kind)), (Json{{"ok", true}}));
    ASSERT_TRUE(eventually([&] { return pids_of(kind).size() == 2; })) << kind;
    ASSERT_TRUE(state_becomes("ready"));
  }
  EXPECT_EQ(count("front drained"), 1) << "it finishes its requests first";
  EXPECT_EQ(count("engine stopped"), 1);
  EXPECT_EQ(count("text-1 stopped"), 1);
  EXPECT_EQ(pids_of("text-0").size(), 1u);
  EXPECT_EQ(read("stderr").find("started again"), std::string::npos) << read("stderr");
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(RestartRequestTest, OneThatDoesNotEndIsKilledAndReplaced) {
  setup_.options.process.max_restarts = 0;
  script("engine=stubborn");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  ask(restart_of("engine"));
  ASSERT_TRUE(eventually([&] { return pids_of("engine").size() == 2; }));
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(RestartRequestTest, OneOfSeveralRanksIsRestartedWithTheServersProgramAlone) {
  setup_.options.process.max_restarts = 0;
  setup_.counts.ranks = 2;
  const std::string installed = base_ + "/installed";
  std::filesystem::create_symlink(TROUPE_FAKE_CHILD, installed);
  setup_.installed = installed;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(ask(restart_of("worker-1")), (Json{{"ok", true}}));
  ASSERT_TRUE(eventually([&] { return pids_of("worker").size() == 3; }));
  ASSERT_TRUE(state_becomes("ready"));
  std::filesystem::remove(installed);
  std::filesystem::copy_file(TROUPE_FAKE_CHILD, installed);
  EXPECT_EQ(
      ask(restart_of("worker-0")),
      (Json{{"error",
             "worker-0 is one of several ranks, which have to be of one build, and " + installed +
                 " is no longer the program that the server runs: the whole server has to be restarted"}}));
  EXPECT_EQ(ask(restart_of("engine")), (Json{{"ok", true}})) << "an engine is alone";
  ASSERT_TRUE(eventually([&] { return pids_of("engine").size() == 2; }));
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(RestartRequestTest, TheProgramThatIsInstalledNowIsRun) {
  const std::string installed = base_ + "/installed";
  std::filesystem::copy_file(TROUPE_FAKE_CHILD, installed);
  setup_.installed = installed;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  ask(restart_of("engine"));
  ASSERT_TRUE(eventually([&] { return pids_of("engine").size() == 2; }));
  ASSERT_TRUE(state_becomes("ready"));
  const auto program = [](pid_t pid) {
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe").string();
  };
  EXPECT_EQ(program(newest("engine")), installed);
  EXPECT_NE(program(newest("worker")), installed);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(RestartRequestTest, WhatCannotBeDoneIsRefusedWithTheReason) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(ask(restart_of("worker-7"))["error"],
            "there is no worker-7: the server has front, engine, worker-0");
  LocalRequest other = restart_of("engine");
  other.wire += 1;
  const std::string why = ask(other)["error"];
  EXPECT_NE(why.find("version " + std::to_string(other.wire) + " of the wire format"), std::string::npos)
      << why;
  EXPECT_NE(why.find("this server " + std::to_string(wire::kVersion)), std::string::npos) << why;
  EXPECT_EQ(pids_of("engine").size(), 1u);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST(LocalRequest, LinesAreReadAndWritten) {
  const auto restart = parse_local_request("restart worker-3 7 1");
  ASSERT_TRUE(restart.ok());
  EXPECT_EQ(restart->child, "worker-3");
  EXPECT_EQ(restart->wire, 7u);
  EXPECT_EQ(to_line(*restart), "restart worker-3 7 1\n");
  EXPECT_EQ(to_line(*parse_local_request("status")), "status\n");
  for (const char* bad : {"", "stop", "restart", "restart engine", "restart engine x 1"}) {
    EXPECT_EQ(parse_local_request(bad).status().code, Code::invalid_argument) << bad;
  }
}

TEST(LocalRequests, AClientThatSendsNothingOrTooMuchIsLetGo) {
  LocalRequests requests;
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const ipc::Fd client(pair[0]);
  const TimePoint now = Clock::now();
  requests.add(ipc::Fd(pair[1]), now);
  ASSERT_EQ(requests.descriptors().size(), 1u);
  EXPECT_FALSE(requests.read(requests.descriptors().front()).has_value()) << "nothing has come";
  const std::string much(LocalRequests::kLongest + 1, 'x');
  ASSERT_EQ(send(client.get(), much.data(), much.size(), 0), static_cast<ssize_t>(much.size()));
  EXPECT_FALSE(requests.read(requests.descriptors().front()).has_value());
  if (!requests.descriptors().empty()) {
    EXPECT_FALSE(requests.read(requests.descriptors().front()).has_value());
  }
  EXPECT_TRUE(requests.descriptors().empty());
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const ipc::Fd silent(pair[0]);
  requests.add(ipc::Fd(pair[1]), now);
  requests.expire(now + LocalRequests::kPatience);
  EXPECT_TRUE(requests.descriptors().empty());
}

}  // namespace
}  // namespace troupe::supervisor
