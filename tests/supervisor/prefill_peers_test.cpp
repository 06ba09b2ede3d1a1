// A decode instance's side of its prefill instances.
#include "actors/supervisor/prefill_peers.h"

#include <sys/socket.h>

#include "actors/supervisor/local_requests.h"
#include "actors/supervisor/peer_facts.h"
#include "actors/supervisor/resources.h"
#include "ipc/patch_region.h"
#include "ipc/rendezvous.h"
#include "supervisor/peer_rig.h"

namespace troupe::supervisor {
namespace {

class PrefillPeersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options.split.role = config::SplitRole::decode;
    options.split.prefill_ports = {kPort};
    options.parallel.tensor_parallel_size = 2;
    auto taken = Resources::take(options, {1, 2});
    ASSERT_TRUE(taken.ok()) << taken.status().message;
    resources = std::move(*taken);
    peers.emplace(PrefillPeers::Setup{options.process.runtime_dir, facts_of(options), 2, -1, said.log(),
                                      said.tell(), said.warn()},
                  resources->peers, resources->monitors);
  }
  // The prefill instance is there.
  void open_port() {
    auto lock =
        ipc::PortLock::acquire(options.process.runtime_dir, ipc::PortKind::engine_worker_queue, kPort);
    ASSERT_TRUE(lock.ok()) << lock.status().message;
    port.emplace(*std::move(lock));
  }
  void tick() { peers->tick(now, -1, 0); }
  void run() { serve(*peers, now); }
  PeerRow row() const { return peers->rows().at(0); }

  /// The prefill instance's end of the channel, after the line; not open: nobody has asked.
  Control asked() {
    ipc::Fd client = port->accept_peer();
    if (!client) return {};
    connection.emplace().add(std::move(client), now);
    auto request = connection->read(connection->descriptors().at(0));
    EXPECT_TRUE(request.has_value());
    if (!request) return {};
    EXPECT_EQ(request->request.kind, LocalRequest::Kind::join);
    client_fd = std::move(request->client);
    return Control(std::move(request->attached));
  }
  Control accepted() {
    now += PrefillPeers::kRetryRefused;
    tick();
    Control control = asked();
    EXPECT_TRUE(control.open());
    EXPECT_EQ(next(control).text("do"), "offer");
    EXPECT_EQ(next(control).text("do"), "link_cache");
    EXPECT_EQ(next(control).text("do"), "names");
    EXPECT_TRUE(control.send({{"event", "accepted"}}).ok());
    run();
    EXPECT_EQ(row().state, "joining");
    return control;
  }
  Control joined(const ChildProcess& engine) {
    Control control = accepted();
    EXPECT_TRUE(control.send({{"event", "engine"}}, engine.pidfd()).ok());
    run();
    EXPECT_EQ(row().state, "joined");
    return control;
  }
  std::vector<Json> orders_for(int rank, int pid) {
    std::vector<Json> orders;
    peers->tell_worker(rank, pid, [&](const Json& order, int file) {
      orders.push_back(order);
      orders.back()["attached"] = file >= 0;
      return true;
    });
    return orders;
  }

  const test::TempDirectory directory;
  config::Options options = options_of((directory.path() / "run").string());
  std::optional<Resources> resources;
  std::optional<ipc::PortLock> port;
  std::optional<LocalRequests> connection;
  ipc::Fd client_fd;
  Said said;
  TimePoint now = Clock::now();
  std::optional<PrefillPeers> peers;
};

TEST_F(PrefillPeersTest, WaitsForAPrefillInstanceAndOffersItALink) {
  tick();
  EXPECT_EQ(row().state, "absent");
  EXPECT_EQ(row().port, kPort);
  EXPECT_TRUE(peers->descriptors().empty());
  open_port();
  tick();
  EXPECT_FALSE(port->accept_peer().valid()) << "once a second";
  now += PrefillPeers::kRetry;
  tick();
  Control control = asked();
  Packet packet = next(control);
  EXPECT_EQ(packet.text("do"), "offer");
  EXPECT_EQ(packet.texts("facts"), facts_of(options));
  const ipc::Fd step = std::move(packet.attached);
  packet = next(control);
  EXPECT_EQ(packet.text("do"), "link_cache");
  EXPECT_TRUE(ipc::LinkMonitor::attach(step.get(), packet.attached.get()).ok());
  packet = next(control);
  EXPECT_EQ(packet.text("do"), "names");
  EXPECT_TRUE(ipc::BlockNames::attach(packet.attached.get()).ok());
  EXPECT_EQ(row().state, "absent");
  EXPECT_EQ(row().pid, getpid());
  ASSERT_TRUE(control.send({{"event", "accepted"}}).ok());
  run();
  EXPECT_EQ(row().state, "joining");
  const ChildProcess engine = sleeper();
  ASSERT_TRUE(control.send({{"event", "engine"}}, engine.pidfd()).ok());
  run();
  EXPECT_EQ(row().state, "joined");
  EXPECT_EQ(said.told, std::vector<std::string>{"joined    the prefill instance at queue port 7013 (pid " +
                                                std::to_string(getpid()) + ")\n"});
  // It is told of the front, and of each new one.
  const ChildProcess front = sleeper();
  peers->tick(now, front.pidfd(), 1000);
  peers->tick(now, front.pidfd(), 1000);
  peers->tick(now, -1, 0);
  peers->tick(now, front.pidfd(), 1001);
  for (int i = 0; i < 2; ++i) {
    packet = next(control);
    EXPECT_EQ(packet.text("do"), "front");
    EXPECT_TRUE(packet.attached.valid());
  }
  EXPECT_EQ(control.receive(TimePoint{}).kind, Packet::Kind::timeout);
}

TEST_F(PrefillPeersTest, ItsMemoryForImagesIsOffered) {
  const auto region = ipc::PatchRegion::create(1 << 16);
  ASSERT_TRUE(region.ok());
  peers.emplace(PrefillPeers::Setup{options.process.runtime_dir, facts_of(options), 2, region->get(),
                                    said.log(), said.tell(), said.warn()},
                resources->peers, resources->monitors);
  open_port();
  tick();
  Control control = asked();
  EXPECT_EQ(next(control).text("do"), "offer");
  EXPECT_EQ(next(control).text("do"), "link_cache");
  Packet packet = next(control);
  EXPECT_EQ(packet.text("do"), "patches");
  EXPECT_TRUE(ipc::PatchRegion::attach(packet.attached.get()).ok());
  EXPECT_EQ(next(control).text("do"), "names");
}

TEST_F(PrefillPeersTest, ARefusalIsShownSaidOnceAndTriedAgainLater) {
  open_port();
  for (int i = 0; i < 3; ++i) {
    tick();
    Control control = asked();
    ASSERT_TRUE(control.send({{"event", "refused"}, {"why", "model differs"}}).ok());
    run();
    EXPECT_EQ(row().state, "refused");
    EXPECT_EQ(row().why, "model differs");
    now += PrefillPeers::kRetry;
    tick();
    EXPECT_FALSE(port->accept_peer().valid()) << "rarely";
    now += PrefillPeers::kRetryRefused;
  }
  ASSERT_EQ(said.warned.size(), 1u);
  EXPECT_EQ(said.warned[0],
            "troupe: the prefill instance at queue port 7013 has not joined: model differs; "
            "prompts are computed here");
  port.reset();
  tick();
  EXPECT_EQ(row().state, "absent");
  EXPECT_EQ(row().why, "");
}

TEST_F(PrefillPeersTest, AnInstanceThatSaysNothingOrDoesNotKnowTheWordIsRefused) {
  open_port();
  tick();
  Control silent = asked();
  now += PrefillPeers::kPatience;
  tick();
  EXPECT_EQ(row().state, "refused");
  EXPECT_NE(row().why.find("does not answer"), std::string::npos) << row().why;
  now += PrefillPeers::kRetryRefused;
  tick();
  {
    const Control control = asked();
    answer(client_fd, R"({"error":"\"join\" is no request: known are status and restart"})");
  }
  run();
  EXPECT_EQ(row().state, "refused");
  EXPECT_EQ(row().why, "\"join\" is no request: known are status and restart");
}

TEST_F(PrefillPeersTest, TheChannelMayCloseInEveryState) {
  open_port();
  for (int packets = 0; packets <= 3; ++packets) {
    tick();
    {
      Control control = asked();
      for (int i = 0; i < packets; ++i) next(control);
    }
    run();
    EXPECT_EQ(row().state, "absent") << "after " << packets;
    now += PrefillPeers::kRetry;
  }
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 1u);
  { const Control control = accepted(); }
  run();
  EXPECT_EQ(row().state, "absent");
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 2u) << "an engine may have been started";
  EXPECT_EQ(said.warned.size(), 1u);
}

TEST_F(PrefillPeersTest, AfterItsLossItsEngineIsWaitedForBeforeAnotherMayJoin) {
  open_port();
  ChildProcess engine = sleeper();
  { const Control control = joined(engine); }
  run();
  EXPECT_EQ(row().state, "absent");
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 1u) << "its engine may still write to the link";
  now += PrefillPeers::kRetryRefused;
  tick();
  EXPECT_FALSE(port->accept_peer().valid());
  engine.kill(SIGKILL);
  engine.reap();
  run();
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 2u);
  EXPECT_NE(said.warned.at(0).find("is gone; prompts are computed here until one is there again"),
            std::string::npos);
  const ChildProcess next_engine = sleeper();
  const Control control = joined(next_engine);
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 2u);
}

TEST_F(PrefillPeersTest, AnInstanceWhoseMemoryCannotBeReadIsSentAwayAndAskedNoMore) {
  open_port();
  ChildProcess engine = sleeper();
  Control control = joined(engine);
  peers->cannot_read(-1, "no peer", now);
  peers->cannot_read(1, "no peer", now);
  EXPECT_EQ(row().state, "joined");
  for (int rank = 0; rank < 2; ++rank) peers->cannot_read(0, "GPU 0 cannot read it", now);
  EXPECT_EQ(row().state, "refused");
  EXPECT_EQ(row().why, "GPU 0 cannot read it");
  const Packet packet = next(control);
  EXPECT_EQ(packet.text("do"), "leave");
  EXPECT_EQ(packet.text("why"), "GPU 0 cannot read it");
  EXPECT_EQ(next(control).kind, Packet::Kind::closed);
  EXPECT_EQ(said.warned,
            std::vector<std::string>{"troupe: the prefill instance at queue port 7013 (pid " +
                                     std::to_string(getpid()) +
                                     ") is of no use: GPU 0 cannot read it; prompts are computed here"});
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 1u) << "its engine may still write to the link";
  engine.kill(SIGKILL);
  engine.reap();
  run();
  EXPECT_EQ(resources->monitors.peer(0).epoch(), 2u);
  for (int i = 0; i < 3; ++i) {
    now += PrefillPeers::kRetryRefused;
    tick();
    EXPECT_FALSE(port->accept_peer().valid() && asked().open()) << "it is the same process";
    EXPECT_EQ(row().state, "refused");
    EXPECT_EQ(row().why, "GPU 0 cannot read it");
  }
}

TEST_F(PrefillPeersTest, GarbageIsIgnored) {
  open_port();
  const ChildProcess engine = sleeper();
  Control control = joined(engine);
  for (const char* bytes :
       {"x", "[]", "{}", "{\"event\":7}", "{\"event\":\"engine\"}", "{\"event\":\"refused\"}",
        "{\"event\":\"memory\"}", "{\"event\":\"memory_gone\"}", "{\"event\":\"memory_gone\",\"rank\":2}",
        "{\"do\":\"offer\"}"}) {
    ASSERT_GT(send(control.fd(), bytes, strlen(bytes), 0), 0);
  }
  const ipc::Fd file = memory_file(1024);
  for (const Json& change :
       {Json{{"rank", 2}}, Json{{"rank", -1}}, Json{{"rank", "0"}}, Json{{"ranks", 0}}, Json{{"ranks", "2"}},
        Json{{"ranks", 33}}, Json{{"life", "0"}}, Json{{"life", "x"}}, Json{{"life", 7}}, Json{{"blocks", 3}},
        Json{{"blocks", 0}}, Json{{"block_bytes", -1}},
        Json{{"blocks", 1ll << 62}, {"block_bytes", 1ll << 62}}}) {
    Json event{{"event", "memory"}, {"rank", 0},   {"ranks", 2},
               {"life", "5"},       {"blocks", 2}, {"block_bytes", 512}};
    event.update(change);
    ASSERT_TRUE(control.send(event, file.get()).ok());
  }
  ASSERT_TRUE(control
                  .send({{"event", "memory"},
                         {"rank", 0},
                         {"ranks", 2},
                         {"life", "5"},
                         {"blocks", 2},
                         {"block_bytes", 512}})
                  .ok());
  run();
  EXPECT_EQ(row().state, "joined");
  EXPECT_TRUE(orders_for(0, 100).empty());
}

TEST_F(PrefillPeersTest, EveryWorkerProcessIsToldOfTheMemoriesOfAllRanks) {
  open_port();
  ChildProcess engine = sleeper();
  EXPECT_TRUE(orders_for(0, 100).empty());
  std::optional<Control> control(joined(engine));
  int ranks = 3;  // this instance has two
  const auto say = [&](int rank, std::uint64_t life) {
    Json event = memory(life).members();
    event.update({{"event", "memory"}, {"rank", rank}, {"ranks", ranks}});
    ASSERT_TRUE(control->send(event, memory_file(4 * 512).get()).ok());
    run();
  };
  const auto order = [&](int rank, const char* life) {
    return Json{{"do", "peer_memory"}, {"peer", 0},   {"rank", rank},       {"ranks", ranks},
                {"life", life},        {"blocks", 4}, {"block_bytes", 512}, {"attached", true}};
  };
  const auto gone = [](int rank) {
    return Json{{"do", "peer_gone"}, {"peer", 0}, {"rank", rank}, {"attached", false}};
  };
  const char* const longest = "18446744073709551615";
  say(0, 18446744073709551615u);
  EXPECT_EQ(orders_for(0, 100), std::vector<Json>{order(0, longest)});
  EXPECT_TRUE(orders_for(0, 100).empty()) << "once";
  EXPECT_EQ(orders_for(1, 200), std::vector<Json>{order(0, longest)}) << "whose heads it may have";
  EXPECT_EQ(orders_for(0, 101), std::vector<Json>{order(0, longest)}) << "a new process";
  say(2, 9);
  EXPECT_EQ(orders_for(0, 101), std::vector<Json>{order(2, "9")});
  EXPECT_EQ(orders_for(1, 200), std::vector<Json>{order(2, "9")});
  say(0, 9);
  peers->tell_worker(0, 101, [](const Json&, int) { return false; });
  EXPECT_EQ(orders_for(0, 101), std::vector<Json>{order(0, "9")}) << "tried again";
  ASSERT_TRUE(control->send({{"event", "memory_gone"}, {"rank", 2}}).ok());
  run();
  EXPECT_EQ(orders_for(1, 200), (std::vector<Json>{order(0, "9"), gone(2)})) << "its worker there has died";
  EXPECT_EQ(orders_for(0, 101), std::vector<Json>{gone(2)});
  say(2, 10);
  EXPECT_EQ(orders_for(1, 200), std::vector<Json>{order(2, "10")});
  control.reset();
  run();
  EXPECT_EQ(orders_for(0, 101), (std::vector<Json>{gone(0), gone(2)}));
  EXPECT_TRUE(orders_for(0, 101).empty());
  EXPECT_TRUE(orders_for(1, 201).empty()) << "a new process has none";

  engine.kill(SIGKILL);
  engine.reap();
  run();
  ranks = 1;  // the next instance at that port has fewer
  const ChildProcess other = sleeper();
  control.emplace(joined(other));
  say(0, 11);
  EXPECT_EQ(orders_for(0, 101), std::vector<Json>{order(0, "11")});
}

TEST_F(PrefillPeersTest, AWorkersSocketGoesToTheInstance) {
  open_port();
  const ipc::Fd socket = memory_file(1);
  peers->send_pair(0, 1, socket);  // it is not there yet
  const ChildProcess engine = sleeper();
  Control control = joined(engine);
  peers->send_pair(1, 0, socket);  // there is no such instance
  peers->send_pair(0, 0, {});
  peers->send_pair(0, 1, socket);
  const Packet packet = next(control);
  EXPECT_EQ(packet.text("do"), "kv_pair");
  EXPECT_EQ(packet.number("rank"), 1);
  EXPECT_TRUE(packet.attached.valid());
  EXPECT_EQ(control.receive(TimePoint{}).kind, Packet::Kind::timeout);
}

}  // namespace
}  // namespace troupe::supervisor
