// The supervisor's parts, each alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <thread>

#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/child_process.h"
#include "actors/supervisor/control.h"
#include "actors/supervisor/descriptor_limit.h"
#include "actors/supervisor/ports.h"
#include "actors/supervisor/resources.h"
#include "actors/supervisor/restart_policy.h"
#include "actors/supervisor/status_page.h"
#include "config/dump.h"
#include "ipc/block_names.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::supervisor {
namespace {

using namespace std::chrono_literals;

TEST(RestartPolicy, BacksOffAndGivesUp) {
  RestartPolicy policy({3, 60s, 100ms, 5s});
  const TimePoint t0{};
  EXPECT_EQ(policy.died(t0), 100ms);
  EXPECT_EQ(policy.died(t0 + 1s), 200ms);
  EXPECT_EQ(policy.died(t0 + 2s), 400ms);
  EXPECT_EQ(policy.died(t0 + 59s), std::nullopt);
  EXPECT_EQ(policy.deaths(), 4);
}

TEST(RestartPolicy, ForgetsWhatIsOlderThanTheWindow) {
  RestartPolicy policy({3, 60s, 100ms, 5s});
  const TimePoint t0{};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(policy.died(t0 + i * 60s), 100ms);
  EXPECT_EQ(policy.died(t0 + 99 * 60s + 1s), 200ms);
}

TEST(RestartPolicy, DeathsBeforeReadyCountHoweverFarApart) {
  RestartPolicy policy({3, 60s, 100ms, 5s});
  for (int i = 0; i < 3; ++i) EXPECT_NE(policy.died(TimePoint{} + i * 1800s, false), std::nullopt);
  EXPECT_EQ(policy.died(TimePoint{} + 3 * 1800s, false), std::nullopt) << "it would go on for ever";
}

TEST(RestartPolicy, DelayIsCapped) {
  RestartPolicy policy({20, 600s, 100ms, 5s});
  Duration last{};
  for (int i = 0; i < 20; ++i) last = *policy.died(TimePoint{} + i * 1s);
  EXPECT_EQ(last, 5s);
}

TEST(RestartPolicy, ServedRequestsForgive) {
  RestartPolicy policy({1, 60s, 100ms, 5s});
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(policy.died(TimePoint{} + i * 1ms), 100ms);
    policy.served();
  }
  RestartPolicy none({0, 60s, 100ms, 5s});
  EXPECT_EQ(none.died(TimePoint{}), std::nullopt);
}

TEST(Control, CarriesObjectsBothWays) {
  auto pair = make_control_pair();
  ASSERT_TRUE(pair.ok());
  Control theirs(std::move(pair->theirs));
  EXPECT_EQ(pair->ours.receive(Clock::now() + 5ms).kind, Packet::Kind::timeout);
  ASSERT_TRUE(theirs.send({{"event", "fatal"}, {"message", "no memory"}, {"id", 7}}).ok());
  const Packet packet = pair->ours.receive(Clock::now() + test::kPatience);
  ASSERT_EQ(packet.kind, Packet::Kind::message);
  EXPECT_EQ(packet.text("message"), "no memory");
  EXPECT_EQ(packet.number("id"), 7);
  EXPECT_EQ(packet.text("id"), "");  // another type
  EXPECT_EQ(packet.number("absent", 5), 5);
  theirs.close();
  EXPECT_EQ(pair->ours.receive(Clock::now() + test::kPatience).kind, Packet::Kind::closed);
  EXPECT_FALSE(pair->ours.send({{"do", "stop"}}).ok());
}

TEST(Control, TheLastWordOfAPeerThatHasNotReadEverythingIsHeard) {
  auto pair = make_control_pair();
  ASSERT_TRUE(pair.ok());
  Control theirs(std::move(pair->theirs));
  ASSERT_TRUE(pair->ours.send({{"do", "status"}}).ok());
  ASSERT_TRUE(theirs.send({{"event", "fatal"}}).ok());
  theirs.close();
  EXPECT_EQ(pair->ours.receive(TimePoint{}).text("event"), "fatal");
  EXPECT_EQ(pair->ours.receive(TimePoint{}).kind, Packet::Kind::closed);
}

TEST(Control, CarriesADescriptorWithAMessage) {
  auto pair = make_control_pair();
  ASSERT_TRUE(pair.ok());
  const Control theirs(std::move(pair->theirs));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const ipc::Fd reader(ends[0]);
  ipc::Fd writer(ends[1]);
  ASSERT_TRUE(theirs.send({{"do", "renew"}}, writer.get()).ok());
  ASSERT_TRUE(theirs.send({{"do", "stop"}}).ok());
  writer.reset();
  {
    const Packet packet = pair->ours.receive(Clock::now() + test::kPatience);
    EXPECT_EQ(packet.text("do"), "renew");
    ASSERT_TRUE(packet.attached.valid());
    EXPECT_EQ(fcntl(packet.attached.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_EQ(write(packet.attached.get(), "x", 1), 1);
  }
  char bytes[2];
  EXPECT_EQ(read(reader.get(), bytes, 2), 1);
  EXPECT_EQ(read(reader.get(), bytes, 2), 0) << "the descriptor is closed with its packet";
  EXPECT_FALSE(pair->ours.receive(Clock::now() + test::kPatience).attached.valid());
}

TEST(Control, SkipsWhatIsNoObjectAndNeverBlocks) {
  auto pair = make_control_pair();
  ASSERT_TRUE(pair.ok());
  ASSERT_EQ(write(pair->theirs.get(), "{\"do\":", 6), 6);
  ASSERT_EQ(write(pair->theirs.get(), "[1]", 3), 3);
  ASSERT_EQ(write(pair->theirs.get(), "{\"do\":1}", 8), 8);
  EXPECT_EQ(pair->ours.receive(Clock::now() + test::kPatience).number("do"), 1);
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) status = pair->ours.send({{"do", "status"}});
  EXPECT_EQ(status.code, Code::overloaded);
  EXPECT_EQ(pair->ours.send({{"text", std::string(100'000, 'x')}}).code, Code::too_large);
}

TEST(ChildArguments, GoThroughWordsAndBack) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ChildArguments sent;
  sent.options_fd = sent.metrics_fd = fds[0];
  sent.control_fd = sent.ranks_fd = sent.vocabulary_fd = sent.patches_fd = fds[1];
  sent.names_fds = sent.step_fds = {fds[0], fds[1]};
  sent.peer_names_fds = {fds[1]};
  sent.cache_fds = {fds[1], fds[0]};
  sent.rank = 3;
  sent.engine = 2;
  auto got = parse_child_arguments(to_words(sent));
  ASSERT_TRUE(got.ok()) << got.status().message;
  EXPECT_EQ(got->options_fd, fds[0]);
  EXPECT_EQ(got->control_fd, fds[1]);
  EXPECT_EQ(got->peer_names_fds, std::vector<int>{fds[1]});
  EXPECT_EQ(got->listen_fd, -1);
  EXPECT_EQ(got->metrics_fd, fds[0]);
  EXPECT_EQ(got->ranks_fd, fds[1]);
  EXPECT_EQ(got->names_fds, sent.names_fds);
  EXPECT_EQ(got->engine, 2);
  EXPECT_EQ(got->vocabulary_fd, fds[1]);
  EXPECT_EQ(got->patches_fd, fds[1]);
  EXPECT_EQ(got->step_fds, sent.step_fds);
  EXPECT_EQ(got->cache_fds, sent.cache_fds);
  EXPECT_EQ(got->rank, 3);
  close(fds[0]);
  close(fds[1]);
  EXPECT_FALSE(parse_child_arguments(to_words(sent)).ok());  // closed
  EXPECT_FALSE(parse_child_arguments({}).ok());
  EXPECT_FALSE(parse_child_arguments({"--options-fd=x"}).ok());
  EXPECT_FALSE(parse_child_arguments({"--options-fd=-4"}).ok());
  EXPECT_FALSE(parse_child_arguments({"--model=x"}).ok());
  for (const char* bad : {"--step-fd=", "--step-fd=0,", "--step-fd=0,x", "--step-fd=,0"}) {
    EXPECT_FALSE(parse_child_arguments({"--options-fd=0", "--control-fd=0", "--cache-fd=0,0", bad}).ok())
        << bad;
  }
  EXPECT_FALSE(
      parse_child_arguments({"--options-fd=0", "--control-fd=0", "--cache-fd=0,0", "--step-fd=0"}).ok());
}

TEST(OptionsFile, HoldsTheOptionsAndCannotBeChanged) {
  config::Options options;
  options.http.port = 4711;
  options.http.api_keys = {"secret"};
  auto file = make_options_file(options);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(write(file->get(), "x", 1), -1);
  for (int reader = 0; reader < 2; ++reader) {
    auto read = read_options_file(file->get());
    ASSERT_TRUE(read.ok()) << read.status().message;
    EXPECT_EQ(read->http.port, 4711);
    EXPECT_EQ(read->http.api_keys, options.http.api_keys);
  }
  EXPECT_FALSE(read_options_file(-1).ok());
}

// Workers and the engine need no key; the front gets them all, however many there are.
TEST(Resources, OnlyTheFrontIsToldKeys) {
  const test::TempDirectory directory;
  config::Options options;
  options.process.runtime_dir = (directory.path() / "run").string();
  options.http.port = 0;
  options.http.api_keys = {"sesame-flag"};
  options.http.private_key_pem = "sesame-pem";
  for (int i = 0; i < 20'000; ++i) options.http.file_api_keys.push_back("sesame-" + std::to_string(i));
  const auto resources = Resources::take(options, {1, 2});
  ASSERT_TRUE(resources.ok()) << resources.status().message;
  const std::vector<Child> children = resources->make_children({});
  ASSERT_EQ(children.size(), 4u);
  for (const Child& child : children) {
    const auto read = read_options_file(child.arguments.options_fd);
    ASSERT_TRUE(read.ok()) << read.status().message;
    EXPECT_EQ(read->http.port, resources->options.http.port);
    const bool has_key = config::to_json(*read).find("sesame") != std::string::npos;
    EXPECT_EQ(has_key, child.kind == ChildKind::front) << child.name;
    EXPECT_EQ(read->http.file_api_keys.size(), has_key ? 20'000u : 0u);
  }
}

TEST(Resources, EveryEngineHasItsOwnLinksAndNames) {
  const troupe::test::TempDirectory directory;
  config::Options options;
  options.process.runtime_dir = (directory.path() / "run").string();
  options.http.port = 0;
  auto resources = Resources::take(options, {2, 2, 1});
  ASSERT_TRUE(resources.ok()) << resources.status().message;
  ASSERT_TRUE(resources->add_media({.pictures = 2, .videos = 1}).ok());
  const std::vector<Child> children = resources->make_children({});
  std::vector<std::string> names;
  for (const Child& child : children) names.push_back(child.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"front", "engine-0", "engine-1", "worker-0", "worker-1", "worker-2",
                                      "worker-3", "text-0", "media-0", "media-1", "video-0"}));
  const ChildArguments &front = children[0].arguments, &second = children[2].arguments;
  EXPECT_EQ(front.link_step_fds.size(), 2u);
  EXPECT_EQ(second.link_step_fds, std::vector<int>{front.link_step_fds[1]});
  const ChildArguments& video = children.back().arguments;
  EXPECT_EQ(video.descriptors(), std::vector<int>{video.socket_fd});
  EXPECT_EQ(front.media_fds.size(), 2u);
  EXPECT_EQ(front.video_fds.size(), 1u);
  EXPECT_EQ(second.names_fds, std::vector<int>{front.names_fds.at(1)});
  EXPECT_EQ(second.engine, 1);
  EXPECT_EQ(children[6].arguments.engine, 1);
  EXPECT_EQ(children[6].arguments.rank, 1);
  EXPECT_EQ(children[6].arguments.step_fds, std::vector<int>{second.step_fds.at(1)});
  const auto key = [&](int fd) { return ipc::BlockNames::attach(fd)->key(); };
  EXPECT_EQ(key(front.names_fds[0]).low, key(front.names_fds[1]).low)
      << "the front names contents once for all";
  // The loss of an engine is none of the other's.
  resources->monitors.engine(1).engine_reaped();
  EXPECT_EQ(resources->monitors.engine(0).epoch(), 1u);
  EXPECT_EQ(resources->monitors.engine(1).epoch(), 2u);
  resources->monitors.front_reaped();
  EXPECT_EQ(resources->monitors.engine(0).front().epoch(), 2u);
  EXPECT_EQ(resources->monitors.engine(1).front().epoch(), 3u);
  EXPECT_EQ(resources->page().engine_worker_queue_ports.size(), 4u);
}

TEST(ChildProcess, EndsAreSeenAndTold) {
  auto child = ChildProcess::start("/bin/sh", {"-c", "exit 9"}, {}, {});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(to_string(child->reap()), "exited with code 9");
  EXPECT_FALSE(child->running());
  child = ChildProcess::start("/bin/sleep", {"100"}, {}, {});
  ASSERT_TRUE(child.ok());
  child->kill(SIGKILL);
  EXPECT_EQ(to_string(child->reap()), "was killed by signal 9 (Killed)");
  child = ChildProcess::start("/nonexistent", {}, {}, {});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->reap().code, 127);
}

TEST(ChildProcess, InheritsWhatItIsGivenAndNothingElse) {
  int kept[2], other[2];
  ASSERT_EQ(pipe2(kept, O_CLOEXEC), 0);
  ASSERT_EQ(pipe(other), 0);  // without close-on-exec, as libraries open some
  setenv("TROUPE_API_KEY", "sesame", 1);
  const std::string script = "test -e /proc/self/fd/" + std::to_string(kept[1]) +
                             " && ! test -e /proc/self/fd/" + std::to_string(other[1]) +
                             " && test \"$(readlink /proc/self/fd/0)\" = /dev/null" +
                             " && test -z \"$TROUPE_API_KEY\" && test \"$ONE\" = 1";
  auto child = ChildProcess::start("/bin/sh", {"-c", script}, {kept[1]}, {"ONE=1", "PATH=/usr/bin:/bin"});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->reap().code, 0);
  unsetenv("TROUPE_API_KEY");
  for (const int fd : {kept[0], kept[1], other[0], other[1]}) close(fd);
}

TEST(ChildProcess, GoesWithItsOwner) {
  pid_t pid = 0;
  {
    auto child = ChildProcess::start("/bin/sleep", {"100"}, {}, {});
    ASSERT_TRUE(child.ok());
    pid = child->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

// A number for each rank: as given, or far above the first, or above the HTTP port; none twice.
TEST(Ports, EveryRankHasItsQueues) {
  const test::TempDirectory directory;
  config::Options options;
  options.process.runtime_dir = directory.path().string();
  options.http.port = 0;
  const auto numbers = [](const std::vector<ipc::PortLock>& locks) {
    std::vector<int> ports;
    for (const ipc::PortLock& lock : locks) ports.push_back(lock.port());
    return ports;
  };
  {
    config::Options chosen = options;
    const auto ports = take_ports(chosen, {1, 3});
    ASSERT_TRUE(ports.ok()) << ports.status().message;
    std::set<int> all{chosen.http.port};
    for (const auto& locks : {numbers(ports->step_queues), numbers(ports->cache_queues)})
      all.insert(locks.begin(), locks.end());
    EXPECT_EQ(all.size(), 7u);
    EXPECT_EQ(numbers(ports->step_queues), chosen.process.engine_worker_queue_ports);
    EXPECT_EQ(numbers(ports->cache_queues), chosen.process.cache_queue_ports);
  }
  {
    config::Options counted = options;
    counted.process.engine_worker_queue_ports = {40'000};
    counted.process.cache_queue_ports = {40'001, 39'000, 40'003};
    const auto ports = take_ports(counted, {1, 3});
    ASSERT_TRUE(ports.ok()) << ports.status().message;
    EXPECT_EQ(numbers(ports->step_queues), (std::vector<int>{40'000, 41'001, 41'002}));
    EXPECT_EQ(numbers(ports->cache_queues), (std::vector<int>{40'001, 39'000, 40'003}));
  }
  config::Options too_few = options;
  too_few.process.cache_queue_ports = {40'001, 40'002};
  const auto refused = take_ports(too_few, {1, 3});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message,
            "--cache-queue-port names 2 ports for 3 workers; one is needed, or one for each");
}

// A prefill and a decode instance of four ranks as documented: each flag the next number.
TEST(Ports, WhatIsNamedForTheNextInstanceIsFree) {
  const test::TempDirectory directory;
  config::Options prefill;
  prefill.process.runtime_dir = directory.path().string();
  prefill.http.port = 0;
  config::Options decode = prefill;
  prefill.process.engine_worker_queue_ports = {40'182};
  prefill.process.cache_queue_ports = {40'183};
  decode.process.engine_worker_queue_ports = {40'186};
  decode.process.cache_queue_ports = {40'187};
  decode.split.prefill_ports = {40'182};
  const auto first = take_ports(prefill, {1, 4}), second = take_ports(decode, {1, 4});
  ASSERT_TRUE(first.ok()) << first.status().message;
  ASSERT_TRUE(second.ok()) << second.status().message;
  EXPECT_EQ(decode.process.engine_worker_queue_ports.front(), 40'186);
}

TEST(Ports, OfSeveralEnginesAListNamesTheirFirstRanksOrAllRanks) {
  const troupe::test::TempDirectory directory;
  config::Options options;
  options.process.runtime_dir = directory.path().string();
  options.http.port = 0;
  options.process.engine_worker_queue_ports = {40'100, 40'200};
  options.process.cache_queue_ports = {40'101, 40'103, 40'105, 40'107};
  ASSERT_TRUE(take_ports(options, {2, 2}).ok());
  EXPECT_EQ(options.process.engine_worker_queue_ports, (std::vector<int>{40'100, 41'101, 40'200, 41'201}));
  EXPECT_EQ(options.process.cache_queue_ports, (std::vector<int>{40'101, 40'103, 40'105, 40'107}));
  options.process.cache_queue_ports = {40'101, 40'103, 40'105};
  EXPECT_EQ(take_ports(options, {2, 2}).status().message,
            "--cache-queue-port names 3 ports for 2 engines with 4 workers; one is needed, or one for each "
            "engine or worker");
}

TEST(Ports, WithoutADescriptorLeftTheReasonIsNamed) {
  config::Options options;
  options.http.port = 0;
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const int next = dup(STDERR_FILENO);
  close(next);
  const rlimit none{static_cast<rlim_t>(next), old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto ports = take_ports(options, {});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_FALSE(ports.ok());
  EXPECT_NE(ports.status().message.find("Too many open files"), std::string::npos) << ports.status().message;
}

/// Runs `check` in a process of its own with these limits on open files; true when it did.
bool with_limits(rlim_t soft, rlim_t hard, const std::function<bool()>& check) {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limits{soft, hard};
    _exit(setrlimit(RLIMIT_NOFILE, &limits) == 0 && check() ? 0 : 1);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(DescriptorLimit, TheSoftLimitIsRaisedToWhatConnectionsNeed) {
  EXPECT_TRUE(with_limits(64, 1000, [] {
    config::Options options;
    options.limits.max_connections = 500;
    const auto said = raise_descriptor_limit(options);
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    return said.ok() && said->empty() && options.limits.max_connections == 500 && now.rlim_cur > 500 &&
           now.rlim_cur <= 1000;
  }));
}

TEST(DescriptorLimit, ALowHardLimitLowersTheConnectionsAndIsTold) {
  EXPECT_TRUE(with_limits(64, 300, [] {
    config::Options options;
    const auto said = raise_descriptor_limit(options);
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    return said.ok() && said->find("--max-connections 4096 needs") == 0 &&
           said->find("hard limit is 300") != said->npos && options.limits.max_connections < 300 &&
           options.limits.max_connections >= 8 && now.rlim_cur == 300;
  }));
  EXPECT_TRUE(with_limits(64, 64, [] {
    config::Options options;
    const auto said = raise_descriptor_limit(options);
    return !said.ok() && said.status().code == Code::unavailable && options.limits.max_connections == 4096;
  }));
}

TEST(DescriptorLimit, AHighSoftLimitStays) {
  EXPECT_TRUE(with_limits(900, 1000, [] {
    config::Options options;
    options.limits.max_connections = 100;
    const auto said = raise_descriptor_limit(options);
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    return said.ok() && said->empty() && now.rlim_cur == 900;
  }));
}

TEST(StatusPage, HasExactlyTheDocumentedMembers) {
  StatusPage page;
  page.model = "demo";
  page.state = "ready";
  page.url = "http://127.0.0.1:1";
  page.logs.dir = "/log";
  page.logs.actor_dirs = {{"cache", "/other"}};
  page.http_port = 1;
  page.metrics_port = 2;
  page.engine_worker_queue_ports = {3};
  page.cache_queue_ports = {4};
  page.role = "decode";
  page.peers.push_back({"prefill", 7013, 78, "refused", "model differs"});
  page.peers.push_back({"engine", 0, 0, "joined", "", "10.0.0.5:8200"});
  page.processes.push_back({"engine", 77, 1.26, 2, "ready", "engine was killed by signal 9"});
  page.queues.push_back({"plan", 5, 6});
  page.tokens = {7000, 300};
  page.rates = {12.54, 3};
  page.kv_blocks = {10, 4, 3, 2, 1};
  page.prefix_cache = {100, 40, 5};
  page.swap_space = {20, 9, 8, 3, 7, 6, 5, 2, 1};
  page.media = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  EXPECT_EQ(to_json(page),
            R"({"model":"demo","state":"ready","url":"http://127.0.0.1:1",)"
            R"("ports":{"http":1,"metrics":2,"engine_worker_queue":3,"cache_queue":4},)"
            R"("logs":{"dir":"/log","actor_dirs":{"cache":"/other"}},)"
            R"("role":"decode","peers":[{"role":"prefill","port":7013,"pid":78,)"
            R"("state":"refused","why":"model differs"},)"
            R"({"role":"engine","address":"10.0.0.5:8200","state":"joined","why":""}],)"
            R"("processes":[{"name":"engine","pid":77,"uptime_s":1.3,"restarts":2,"state":"ready",)"
            R"("last_end":"engine was killed by signal 9"}],)"
            R"("queues":[{"name":"plan","depth":5,"capacity":6}],)"
            R"("tokens":{"prompt":7000,"generated":300,"prompt_per_s":12.5,"generated_per_s":3.0},)"
            R"("kv_blocks":{"total":10,"free":4,"cached":3,"leased":2,"moving":1},)"
            R"("prefix_cache":{"prompt_tokens":100,"cached_tokens":40,"evicted_blocks":5},)"
            R"("swap_space":{"total":20,"free":9,"cached":8,"moving":3,"out_blocks":7,"in_blocks":6,)"
            R"("evicted_blocks":5,"failed_blocks":2,"declined_blocks":1},)"
            R"("media":{"file_bytes":1,"file_limit":2,"patch_bytes":3,"patch_limit":4,"cached_bytes":5,)"
            R"("cached_limit":6,"cached_entries":7,"hits":8,"misses":9,"decodes_running":10,)"
            R"("decodes_waiting":11,"requests_waiting":12,"refused":13}})");
  page.engine_worker_queue_ports = {3, 5};
  page.cache_queue_ports = {4, 6};
  EXPECT_NE(to_json(page).find(R"("engine_worker_queue":[3,5],"cache_queue":[4,6]})"), std::string::npos);
}

}  // namespace
}  // namespace troupe::supervisor
