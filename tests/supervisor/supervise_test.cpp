// Whole servers with fake children: starts, deaths, ends.

#include <sys/un.h>

#include "ipc/rendezvous.h"
#include "supervisor/server_process.h"

namespace troupe::supervisor {
namespace {

TEST_F(SuperviseTest, StartsDrainsAndLeavesNothing) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_TRUE(
      eventually([&] { return read("stdout").find("ready     http://127.0.0.1:") != std::string::npos; }));
  const std::string summary = read("stdout");
  EXPECT_NE(summary.find("model     fake\n"), std::string::npos);
  EXPECT_NE(summary.find("http " + std::to_string(setup_.options.http.port)), std::string::npos);
  EXPECT_LE(std::count(summary.begin(), summary.end(), '\n'), 10);

  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_TRUE(nothing_left());
  EXPECT_TRUE(children_gone());
  // The front finishes its requests before the others are told to stop.
  auto lines = events();
  std::erase_if(lines,
                [](const std::string& line) { return line.find(" sees epoch ") != std::string::npos; });
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[3], "front drains 5");
  EXPECT_EQ(lines[4], "front drained");
  EXPECT_EQ(lines[5], "engine stopped");
  EXPECT_EQ(lines[6], "worker stopped");
  EXPECT_EQ(read("stderr"), "");
  EXPECT_NE(read("stdout").find("stopped   after "), std::string::npos);
}

TEST_F(SuperviseTest, QuietPrintsDeathsAlone) {
  setup_.console.quiet = true;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("worker"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return read("stderr").find("worker-0 is back") != std::string::npos; }));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_EQ(read("stdout"), "");
}

TEST_F(SuperviseTest, AServiceManagerIsToldOfStartAndStop) {
  setup_.notify_socket = base_ + "/notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  setup_.notify_socket.copy(address.sun_path, sizeof address.sun_path - 1);
  const ipc::Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const auto hears = [&](const std::string& word) {
    return eventually([&] {
      char text[64] = {};
      return recv(socket.get(), text, sizeof text - 1, 0) > 0 && text == word;
    });
  };
  const pid_t server = start();
  EXPECT_TRUE(hears("READY=1"));
  kill(server, SIGTERM);
  EXPECT_TRUE(hears("STOPPING=1"));
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, ARehearsalChecksPortsAndDirectoriesAndLeavesNothing) {
  const auto fine = rehearse(setup_);
  ASSERT_TRUE(fine.ok()) << fine.status().message;
  EXPECT_NE(fine->find("model     fake\nports     http "), std::string::npos) << *fine;
  EXPECT_TRUE(nothing_left());
  {
    const ipc::Fd other = listen_at(setup_.options.http.port);
    ASSERT_TRUE(other.valid());
    EXPECT_NE(rehearse(setup_).status().message.find("is in use by another process"), std::string::npos);
  }
  std::ofstream(base_ + "/file") << "x";
  setup_.options.log.dir = base_ + "/file/log";
  const std::string message = rehearse(setup_).status().message;
  EXPECT_NE(message.find("cannot make the log directory"), std::string::npos) << message;
}

TEST_F(SuperviseTest, WithoutATerminalSighupRenewsKeysAndCertificate) {
  // Stands in for the files: what read_credentials() finds.
  const std::string found = base_ + "/found";
  const auto write = [&](const std::string& text) { std::ofstream(found, std::ios::trunc) << text; };
  setup_.read_credentials = [found](config::HttpOptions& http) -> Status {
    std::ifstream file(found);
    std::string key;
    if (!(file >> key)) return invalid("--api-key-file " + found + ": holds no key");
    http.file_api_keys = {key};
    http.certificate_pem = "C";
    http.private_key_pem = "K";
    return {};
  };
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGHUP);  // there is no file yet
  EXPECT_TRUE(eventually(
      [&] { return read("stderr").find("stay as they were: --api-key-file") != std::string::npos; }));
  EXPECT_EQ(count("front renewed"), 0);
  write("one");
  kill(server, SIGHUP);
  EXPECT_TRUE(eventually([&] { return count("front renewed [\"one\"]CK") == 1; }));
  EXPECT_TRUE(
      eventually([&] { return read("stdout").find("renewed   certificate and keys") != std::string::npos; }));
  EXPECT_EQ(count("front has"), 0);
  kill(pids_of("front").front(), SIGKILL);  // its successor is started with what was renewed
  EXPECT_TRUE(eventually([&] { return count("front has one") == 1; }));
  ASSERT_TRUE(state_becomes("ready"));
  write("two");
  kill(server, SIGHUP);
  EXPECT_TRUE(eventually([&] { return count("front renewed [\"two\"]CK") == 1; }));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, SighupThatWasIgnoredAtTheStartStaysIgnored) {
  setup_.read_credentials = [](config::HttpOptions&) -> Status { return {}; };
  signal(SIGHUP, SIG_IGN);
  const pid_t server = start();
  signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGHUP);
  kill(pids_of("engine").front(), SIGHUP);  // the children are not told by signals either
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(read("stdout").find("renewed"), std::string::npos);
  EXPECT_EQ(count("front renewed"), 0);
  EXPECT_EQ(pids_of("engine").size(), 1u);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, TheAddressOfAnIPv6HostCanBeOpened) {
  const ipc::Fd socket(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    GTEST_SKIP() << "no IPv6 on this machine";
  }
  setup_.options.http.host = "::1";
  const pid_t server = start();
  const std::string url = "http://[::1]:" + std::to_string(setup_.options.http.port) + " after ";
  EXPECT_TRUE(eventually([&] { return read("stdout").find(" after ") != std::string::npos; }));
  EXPECT_NE(read("stdout").find(url), std::string::npos) << read("stdout");
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, StatusIsComplete) {
  setup_.options.http.metrics_port = free_port();
  script("engine=ok");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  const Json page = status();
  EXPECT_EQ(page["model"], "engine=ok");
  EXPECT_EQ(page["ports"]["http"], setup_.options.http.port);
  EXPECT_EQ(page["ports"]["metrics"], *setup_.options.http.metrics_port);
  EXPECT_GT(page["ports"]["engine_worker_queue"], 0);
  EXPECT_GT(page["ports"]["cache_queue"], 0);
  ASSERT_EQ(page["processes"].size(), 4u);
  EXPECT_EQ(page["processes"][0]["name"], "supervisor");
  EXPECT_EQ(page["processes"][0]["pid"], server);
  EXPECT_EQ(page["processes"][1]["name"], "front");
  EXPECT_EQ(page["processes"][1]["pid"], newest("front"));
  EXPECT_EQ(page["processes"][2]["name"], "engine");
  EXPECT_EQ(page["processes"][2]["pid"], newest("engine"));
  EXPECT_EQ(page["processes"][3]["name"], "worker-0");
  EXPECT_EQ(page["processes"][3]["state"], "ready");
  EXPECT_EQ(page["processes"][3]["restarts"], 0);
  ASSERT_EQ(page["queues"].size(), 5u);
  EXPECT_EQ(page["queues"][0], (Json{{"name", "plan"}, {"depth", 0}, {"capacity", 16 << 20}}));
  EXPECT_EQ(page["queues"][4], (Json{{"name", "waiting"}, {"depth", 3}, {"capacity", 1024}}));
  EXPECT_EQ(page["kv_blocks"],
            (Json{{"total", 10}, {"free", 7}, {"cached", 1}, {"leased", 2}, {"moving", 0}}));
  EXPECT_EQ(page["url"], "http://127.0.0.1:" + std::to_string(setup_.options.http.port));
  EXPECT_TRUE(page["logs"]["dir"].get<std::string>().starts_with('/'));
  EXPECT_EQ(query_status(setup_.options.process.runtime_dir, 1).status().code, Code::not_found);
  EXPECT_EQ(query_status(base_ + "/absent", setup_.options.http.port).status().code, Code::not_found);
}

TEST_F(SuperviseTest, AKilledWorkerIsReplacedAndTheEngineTold) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  for (int round = 1; round <= 3; ++round) {
    kill(newest("worker"), SIGKILL);
    ASSERT_TRUE(eventually([&] { return pids_of("worker").size() == static_cast<std::size_t>(round) + 1; }));
    ASSERT_TRUE(eventually([&] { return count("engine sees epoch " + std::to_string(round + 1)) == 1; }));
    ASSERT_TRUE(state_becomes("ready"));
  }
  const std::string said = read("stderr");
  EXPECT_NE(said.find("worker-0 was killed by signal 9"), std::string::npos) << said;
  EXPECT_NE(said.find("worker-0 is back after "), std::string::npos) << said;
  EXPECT_NE(said.find(", 1 restart so far\n"), std::string::npos) << said;
  EXPECT_NE(said.find(", 3 restarts so far\n"), std::string::npos) << said;
  EXPECT_NE(status()["processes"][3]["last_end"].get<std::string>().find("signal 9"), std::string::npos);
  EXPECT_EQ(status()["processes"][2]["last_end"], "");
  EXPECT_EQ(count("engine sees epoch"), 3);
  EXPECT_EQ(pids_of("engine").size(), 1u);
  EXPECT_EQ(status()["processes"][3]["restarts"], 3);
  EXPECT_EQ(count("worker start " + std::to_string(newest("worker")) + " epoch 4"), 1);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, BothChildrenKilledAtOnceAreReplaced) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("engine"), SIGKILL);
  kill(newest("worker"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return pids_of("engine").size() == 2 && pids_of("worker").size() == 2; }));
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(status()["processes"][2]["restarts"], 1);
  EXPECT_EQ(status()["processes"][3]["restarts"], 1);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_TRUE(children_gone());
  EXPECT_TRUE(nothing_left());
}

TEST_F(SuperviseTest, AKilledEngineIsReplacedWhileFrontAndWorkerLive) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(newest("engine"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return pids_of("engine").size() == 2; }));
  EXPECT_TRUE(eventually([&] { return count("front sees epoch 2") == 1; }));
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(pids_of("worker").size(), 1u);
  EXPECT_EQ(pids_of("front").size(), 1u);
  EXPECT_EQ(status()["processes"][2]["restarts"], 1);
  // The listening socket has been there all the time.
  const ipc::Fd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(setup_.options.http.port));
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, ACrashLoopEndsTheServerAndSaysWhy) {
  script("worker=crash");
  const pid_t server = start();
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_EQ(pids_of("worker").size(), 4u);  // the first and three restarts
  const std::string why = read("stderr");
  EXPECT_NE(why.find("4 deaths within 60 s"), std::string::npos) << why;
  EXPECT_NE(why.find("worker-0 4"), std::string::npos) << why;
  EXPECT_NE(why.find("signal 11"), std::string::npos) << why;
  EXPECT_TRUE(nothing_left());
  EXPECT_TRUE(children_gone());
}

TEST_F(SuperviseTest, ServedRequestsForgiveDeaths) {
  script("worker=serving");
  const pid_t server = start();
  ASSERT_TRUE(eventually([&] { return pids_of("worker").size() >= 7; }));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, ASilentEarlyExitIsTriedAgainThenGivenUp) {
  script("engine=early");
  const pid_t server = start();
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_EQ(pids_of("engine").size(), 4u);
  EXPECT_NE(read("stderr").find("engine exited with code 7"), std::string::npos) << read("stderr");
}

TEST_F(SuperviseTest, AFatalWordBeforeReadyEndsTheServerAtOnce) {
  script("worker=fatal");
  const pid_t server = start();
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_EQ(pids_of("worker").size(), 1u);
  EXPECT_EQ(read("stderr"), "troupe: worker finds no model here\n");
  EXPECT_TRUE(nothing_left());
  EXPECT_TRUE(children_gone());
}

TEST_F(SuperviseTest, AFailedPreflightOpensNothing) {
  setup_.preflight = [](config::Options&) -> Result<std::string> {
    return invalid("config.json is missing");
  };
  const pid_t server = start();
  EXPECT_EQ(wait_for(server), 2);
  EXPECT_EQ(read("stderr"), "troupe: config.json is missing\n");
  EXPECT_TRUE(events().empty());
  EXPECT_FALSE(std::filesystem::exists(setup_.options.process.runtime_dir));
}

TEST_F(SuperviseTest, AHungWorkerIsKilled) {
  setup_.options.process.worker_timeout_s = 1;
  setup_.options.process.max_restarts = 0;
  script("worker=hung");
  const pid_t server = start();
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_NE(read("stderr").find("no sign of life for 1 s"), std::string::npos) << read("stderr");
}

// A container that is paused, a machine that is moved: nobody hung, time passed for all.
TEST_F(SuperviseTest, AServerThatWasStoppedAsAWholeGoesOn) {
  setup_.options.process.worker_timeout_s = 5;
  setup_.status_patience = 10ms;
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  const std::vector<pid_t> all{server, newest("front"), newest("engine"), newest("worker")};
  for (const pid_t pid : all) kill(pid, SIGSTOP);
  std::this_thread::sleep_for(6s);
  kill(server, SIGCONT);
  EXPECT_TRUE(status().is_object()) << "it is the first to run again";
  for (const pid_t pid : all) kill(pid, SIGCONT);
  ASSERT_TRUE(state_becomes("ready"));
  EXPECT_EQ(pids_of("engine").size(), 1u);
  EXPECT_EQ(pids_of("worker").size(), 1u);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, AChildThatNeverGetsReadyIsKilled) {
  setup_.options.process.start_timeout_s = 1;
  setup_.options.process.max_restarts = 0;
  script("worker=silent,engine=silent,front=silent");
  const pid_t server = start();
  EXPECT_EQ(wait_for(server), 1);
  EXPECT_NE(read("stderr").find("not ready after 1 s"), std::string::npos) << read("stderr");
}

TEST_F(SuperviseTest, StubbornChildrenAreKilledAfterTheGrace) {
  setup_.options.process.drain_timeout_s = 0;
  script("front=stubborn,engine=stubborn,worker=stubborn");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_TRUE(nothing_left());
  EXPECT_TRUE(children_gone());
}

TEST_F(SuperviseTest, ASecondSignalEndsTheDrain) {
  setup_.options.process.drain_timeout_s = 1000;
  script("front=busy");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGINT);
  ASSERT_TRUE(eventually([&] { return count("front drains 1000") == 1; }));
  EXPECT_EQ(status()["state"], "draining");
  kill(server, SIGINT);
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_TRUE(nothing_left());
  EXPECT_TRUE(children_gone());
}

TEST_F(SuperviseTest, ADrainEndsAtItsDeadline) {
  setup_.options.process.drain_timeout_s = 0;
  script("front=busy");
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
  EXPECT_EQ(count("front drains 0"), 1);
  EXPECT_EQ(count("front drained"), 0);
  EXPECT_TRUE(children_gone());
}

TEST_F(SuperviseTest, KillingTheSupervisorLeavesNoChildAndTheNextStartWorks) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGKILL);
  EXPECT_EQ(wait_for(server), -1);
  EXPECT_TRUE(eventually([&] { return children_gone(); }));
  EXPECT_FALSE(nothing_left());  // kill -9 leaves lock files, without an owner
  const pid_t next = start();
  ASSERT_TRUE(state_becomes("ready")) << read("stderr");
  kill(next, SIGTERM);
  EXPECT_EQ(wait_for(next), 0);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SuperviseTest, WhatAKilledSupervisorLeavesGoesWithTheNextStartOnWhateverPort) {
  setup_.options.http.metrics_port = free_port();
  const pid_t killed = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(killed, SIGKILL);
  EXPECT_EQ(wait_for(killed), -1);
  ASSERT_TRUE(eventually([&] { return children_gone(); }));
  EXPECT_FALSE(nothing_left());
  const int old = setup_.options.http.port;
  ASSERT_TRUE(eventually([&] { return listen_at(old).valid(); }));
  setup_.options.http.port = free_port();
  setup_.options.http.metrics_port.reset();
  const pid_t next = start();
  ASSERT_TRUE(state_becomes("ready")) << read("stderr");
  for (const auto& entry : std::filesystem::directory_iterator(setup_.options.process.runtime_dir)) {
    EXPECT_EQ(entry.path().string().find(std::to_string(old)), std::string::npos) << entry.path();
    if (entry.path().extension() != ".lock") continue;
    std::string pid;
    std::ifstream(entry.path()) >> pid;
    EXPECT_EQ(pid, std::to_string(next)) << entry.path();
  }
  kill(next, SIGTERM);
  EXPECT_EQ(wait_for(next), 0);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SuperviseTest, ThousandsOfKeysAreRenewed) {
  setup_.read_credentials = [](config::HttpOptions& http) -> Status {
    for (int i = 0; i < 15'000; ++i) http.file_api_keys.push_back(std::string(60, 'k') + std::to_string(i));
    return {};
  };
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGHUP);
  const std::string key(60, 'k');
  EXPECT_TRUE(eventually([&] { return read("events").find(key + "14999\"]") != std::string::npos; }))
      << read("stderr");
  EXPECT_EQ(count("front renewed [\"" + key + "0\""), 1);
  EXPECT_EQ(count("worker has"), 0);
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
}

TEST_F(SuperviseTest, ATakenPortNamesThePid) {
  const pid_t first = start();
  ASSERT_TRUE(state_becomes("ready"));
  const pid_t second = start();
  EXPECT_EQ(wait_for(second), 1);
  const std::string why = read("stderr");
  EXPECT_NE(why.find("pid " + std::to_string(first)), std::string::npos) << why;
  EXPECT_NE(why.find("--port"), std::string::npos) << why;
  EXPECT_EQ(pids_of("engine").size(), 1u);

  const int queue = status()["ports"]["engine_worker_queue"];
  SupervisorSetup third = setup_;
  third.options.http.port = free_port();
  third.options.process.engine_worker_queue_ports = {queue};
  EXPECT_EQ(wait_for(start(third)), 1);
  EXPECT_NE(read("stderr").find("--engine-worker-queue-port"), std::string::npos);
  EXPECT_EQ(status()["state"], "ready");
}

TEST_F(SuperviseTest, AFrontThatOutlivesItsKilledSupervisorForAMomentIsWaitedFor) {
  const pid_t server = start();
  ASSERT_TRUE(state_becomes("ready"));
  kill(server, SIGKILL);
  EXPECT_EQ(wait_for(server), -1);
  ASSERT_TRUE(eventually([&] { return children_gone(); }));
  const pid_t engine = fork();
  if (engine == 0) {
    ipc::Fd port;
    if (!eventually([&] { return (port = listen_at(setup_.options.http.port)).valid(); })) _exit(1);
    std::ofstream(base_ + "/holds") << "the port";
    std::this_thread::sleep_for(500ms);
    _exit(0);
  }
  ASSERT_TRUE(eventually([&] { return !read("holds").empty(); }));
  const pid_t next = start();
  ASSERT_TRUE(state_becomes("ready")) << read("stderr");
  EXPECT_EQ(wait_for(engine), 0);
  kill(next, SIGTERM);
  EXPECT_EQ(wait_for(next), 0);
}

TEST_F(SuperviseTest, APortOfAnotherProgramIsInUse) {
  const ipc::Fd socket = listen_at(setup_.options.http.port);
  ASSERT_TRUE(socket.valid());
  EXPECT_EQ(wait_for(start()), 1);
  EXPECT_NE(read("stderr").find("in use by another process"), std::string::npos) << read("stderr");
  EXPECT_TRUE(nothing_left());
}

TEST_F(SuperviseTest, ABlockedStdoutStallsNothing) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const std::string filler(1 << 16, 'x');
  ASSERT_EQ(write(pipe_fds[1], filler.data(), filler.size()), static_cast<ssize_t>(filler.size()));  // full
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipe_fds[1], STDOUT_FILENO);
    _exit(supervise(setup_));
  }
  servers_.insert(server);
  EXPECT_TRUE(state_becomes("ready"));
  kill(server, SIGTERM);
  EXPECT_EQ(wait_for(server), 0);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

}  // namespace
}  // namespace troupe::supervisor
