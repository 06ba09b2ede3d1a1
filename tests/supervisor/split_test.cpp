// Two servers with fake children, a prefill and a decode instance: they find each other, and each outlives
// the other.
#include "actors/supervisor/resources.h"
#include "ipc/block_names.h"
#include "supervisor/server_process.h"

namespace troupe::supervisor {
namespace {

class SplitTest : public SuperviseTest {
 protected:
  void SetUp() override {
    SuperviseTest::SetUp();
    queue_port_ = free_port();
    setup_.options.split.role = config::SplitRole::decode;
    setup_.options.split.prefill_ports = {queue_port_};
    prefill_ = setup_;
    prefill_.options.http.port = free_port();
    prefill_.options.split = {.role = config::SplitRole::prefill};
    prefill_.options.process.engine_worker_queue_ports = {queue_port_};
    prefill_.options.log.dir = base_ + "/prefill";
    std::filesystem::create_directory(prefill_.options.log.dir);
  }

  Json status_of(const SupervisorSetup& setup) const {
    const auto text = query_status(setup.options.process.runtime_dir, setup.options.http.port);
    return text.ok() ? Json::parse(*text) : Json();
  }
  /// Its only peer; null while there is none.
  Json peer_of(const SupervisorSetup& setup) const {
    const Json page = status_of(setup);
    return page.is_object() && page["peers"].size() == 1 ? page["peers"][0] : Json();
  }
  bool peer_becomes(const SupervisorSetup& setup, const std::string& state, pid_t pid) const {
    return eventually([&] {
      const Json peer = peer_of(setup);
      return peer.is_object() && peer["state"] == state && (pid == 0 || peer["pid"] == pid);
    });
  }
  bool is_ready(const SupervisorSetup& setup) const {
    return eventually([&] {
      const Json page = status_of(setup);
      return page.is_object() && page["state"] == "ready";
    });
  }
  std::vector<std::string> prefill_events() const {
    std::ifstream file(prefill_.options.log.dir + "/events");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  /// To fronts, of the one that was started last.
  int links_of_prefill_engine() const {
    int links = 0;
    std::ifstream(prefill_.options.log.dir + "/events.links") >> links;
    return links;
  }
  void end(pid_t server) {
    kill(server, SIGTERM);
    EXPECT_EQ(wait_for(server), 0) << read("stderr");
  }

  int queue_port_ = 0;
  SupervisorSetup prefill_;
};

TEST(Resources, TheFrontHasLinksToPrefillInstancesBehindItsOwnAndTheEngineTheirNames) {
  const test::TempDirectory directory;
  config::Options options;
  options.http.port = 0;
  options.process.runtime_dir = (directory.path() / "run").string();
  options.split.role = config::SplitRole::decode;
  options.split.prefill_ports = {7013, 7023};
  auto resources = Resources::take(options, {});
  ASSERT_TRUE(resources.ok()) << resources.status().message;
  const std::vector<Child> children = resources->make_children({});
  const ChildArguments& front = children[0].arguments;
  const auto& peers = resources->peers;
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_EQ(front.link_step_fds, (std::vector<int>{resources->engines[0].front_link.step.get(),
                                                   peers[0].link.step.get(), peers[1].link.step.get()}));
  EXPECT_EQ(front.link_cache_fds.size(), 3u);
  EXPECT_EQ(front.names_fds, (std::vector<int>{resources->engines[0].block_names.get(),
                                               peers[0].block_names.get(), peers[1].block_names.get()}));
  const ChildArguments& engine = children[1].arguments;
  EXPECT_EQ(engine.names_fds.size(), 1u);
  EXPECT_EQ(engine.peer_names_fds,
            (std::vector<int>{peers[0].block_names.get(), peers[1].block_names.get()}));
  const auto own = ipc::BlockNames::attach(front.names_fds[0]),
             theirs = ipc::BlockNames::attach(front.names_fds[2]);
  EXPECT_EQ(own->key().low, theirs->key().low);
  EXPECT_EQ(own->key().high, theirs->key().high);
  // A dead front is told on all of its links.
  resources->monitors.front_reaped();
  EXPECT_EQ(resources->monitors.peer(1).epoch(), 2u);
  const std::string summary = resources->summary();
  EXPECT_NE(summary.find("until a prefill instance joins at queue port 7013,7023"), summary.npos) << summary;
}

TEST(Ports, ThoseOfPrefillInstancesAreLeftToThem) {
  const test::TempDirectory directory;
  config::Options options;
  options.process.runtime_dir = (directory.path() / "run").string();
  options.http.port = 0;
  {
    const auto first = take_ports(options, {});
    ASSERT_TRUE(first.ok()) << first.status().message;
  }
  const int free = options.process.engine_worker_queue_ports.at(0);
  options.process.engine_worker_queue_ports.clear();
  options.process.cache_queue_ports.clear();
  options.split.prefill_ports = {free};
  const auto ports = take_ports(options, {});
  ASSERT_TRUE(ports.ok()) << ports.status().message;
  EXPECT_NE(options.process.engine_worker_queue_ports.at(0), free);
  EXPECT_NE(options.process.cache_queue_ports.at(0), free);
}

TEST_F(SplitTest, WhicheverStartsFirstTheyJoinAndEachOutlivesTheOther) {
  const pid_t decode = start();
  ASSERT_TRUE(is_ready(setup_));
  EXPECT_EQ(status()["role"], "decode");
  EXPECT_EQ(peer_of(setup_)["state"], "absent");
  EXPECT_NE(read("stdout").find("computes every prompt itself, as mixed, until a prefill instance joins"),
            std::string::npos);

  pid_t prefill = start(prefill_);
  ASSERT_TRUE(peer_becomes(setup_, "joined", prefill)) << status_of(setup_) << read("stderr");
  ASSERT_TRUE(peer_becomes(prefill_, "joined", decode));
  ASSERT_TRUE(is_ready(prefill_));
  EXPECT_EQ(status_of(prefill_)["role"], "prefill");

  kill(prefill, SIGKILL);
  wait_for(prefill);
  ASSERT_TRUE(peer_becomes(setup_, "absent", 0));
  ASSERT_TRUE(is_ready(setup_));
  EXPECT_EQ(pids_of("engine").size(), 1u) << "the decode instance goes on";
  // Nobody restarts it: a process that is started anew joins again.
  prefill = start(prefill_);
  ASSERT_TRUE(peer_becomes(setup_, "joined", prefill)) << status_of(setup_) << read("stderr");

  kill(decode, SIGKILL);
  wait_for(decode);
  ASSERT_TRUE(eventually([&] { return status_of(prefill_)["peers"].empty(); }));
  ASSERT_TRUE(is_ready(prefill_));
  const pid_t second = start();
  ASSERT_TRUE(peer_becomes(prefill_, "joined", second)) << status_of(prefill_) << read("stderr");
  ASSERT_TRUE(peer_becomes(setup_, "joined", prefill));
  end(second);
  end(prefill);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SplitTest, ItsEngineIsStartedAgainForTheDecodeInstanceWhichCountsAsNoDeath) {
  prefill_.options.process.max_restarts = 0;
  const pid_t prefill = start(prefill_);
  ASSERT_TRUE(is_ready(prefill_));
  const pid_t decode = start();
  ASSERT_TRUE(peer_becomes(setup_, "joined", prefill));
  ASSERT_TRUE(is_ready(prefill_));
  EXPECT_EQ(links_of_prefill_engine(), 2);
  int engines = 0, workers = 0;
  for (const std::string& line : prefill_events()) {
    engines += line.starts_with("engine start");
    workers += line.starts_with("worker start");
  }
  EXPECT_EQ(engines, 2);
  EXPECT_EQ(workers, 1) << "it keeps the weights";
  EXPECT_NE(
      read("stdout").find("joined    the prefill instance at queue port " + std::to_string(queue_port_)),
      std::string::npos)
      << read("stdout");
  end(prefill);
  ASSERT_TRUE(peer_becomes(setup_, "absent", 0));
  EXPECT_NE(read("stderr").find("is gone; prompts are computed here"), std::string::npos);
  end(decode);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SplitTest, ADifferenceIsRefusedWithASentenceOnBothSides) {
  prefill_.options.quantization.kv_cache = config::KvCacheDType::int8;
  const pid_t prefill = start(prefill_);
  const pid_t decode = start();
  ASSERT_TRUE(peer_becomes(setup_, "refused", prefill));
  EXPECT_EQ(peer_of(setup_)["why"], "--kv-cache-dtype differs: the prefill instance (pid " +
                                        std::to_string(prefill) + ") has int8, the decode instance (pid " +
                                        std::to_string(decode) + ") auto");
  EXPECT_TRUE(is_ready(setup_));
  EXPECT_TRUE(is_ready(prefill_));
  EXPECT_TRUE(status_of(prefill_)["peers"].empty());
  end(decode);
  end(prefill);
}

TEST_F(SplitTest, OneThatCannotReadTheMemoryGoesOnAloneUntilAnotherProcessIsThere) {
  script("worker=blind");
  prefill_.options.model.served_model_names = {"worker=sharing"};
  const pid_t decode = start();
  for (int i = 0; i < 2; ++i) {
    const pid_t prefill = start(prefill_);
    ASSERT_TRUE(peer_becomes(setup_, "refused", prefill)) << status_of(setup_) << read("stderr");
    EXPECT_EQ(peer_of(setup_)["why"], "GPU 0 cannot read it");
    ASSERT_TRUE(eventually([&] { return status_of(prefill_)["peers"].empty(); }));
    ASSERT_TRUE(eventually([&] { return links_of_prefill_engine() == 1; }));
    ASSERT_TRUE(is_ready(prefill_));
    ASSERT_TRUE(is_ready(setup_));
    EXPECT_NE(read("stderr").find("computes its prompts itself: GPU 0 cannot read it"), std::string::npos);
    end(prefill);
    ASSERT_TRUE(peer_becomes(setup_, "absent", 0)) << status_of(setup_);
  }
  end(decode);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SplitTest, EachOfSeveralPrefillInstancesJoinsAndLeavesByItself) {
  SupervisorSetup other = prefill_;
  const int other_port = free_port();
  other.options.http.port = free_port();
  other.options.process.engine_worker_queue_ports = {other_port};
  other.options.log.dir = base_ + "/other";
  std::filesystem::create_directory(other.options.log.dir);
  setup_.options.split.prefill_ports = {queue_port_, other_port};
  const auto become = [&](const std::string& first, const std::string& second) {
    return eventually([&] {
      const Json page = status();
      return page.is_object() && page["peers"].size() == 2 && page["peers"][0]["state"] == first &&
             page["peers"][1]["state"] == second;
    });
  };
  const pid_t decode = start();
  const pid_t second = start(other);
  ASSERT_TRUE(become("absent", "joined")) << status();
  const pid_t first = start(prefill_);
  ASSERT_TRUE(become("joined", "joined")) << status();
  EXPECT_EQ(status()["peers"][0]["pid"], first);
  EXPECT_EQ(status()["peers"][1]["pid"], second);
  end(second);
  ASSERT_TRUE(become("joined", "absent")) << status();
  end(decode);
  end(first);
  EXPECT_TRUE(nothing_left());
}

TEST_F(SplitTest, AKilledFrontOrEngineIsReplacedOnTheSameLink) {
  const pid_t prefill = start(prefill_);
  const pid_t decode = start();
  ASSERT_TRUE(peer_becomes(prefill_, "joined", decode));
  ASSERT_TRUE(is_ready(setup_));
  kill(newest("front"), SIGKILL);
  ASSERT_TRUE(eventually([&] { return pids_of("front").size() == 2; }));
  ASSERT_TRUE(is_ready(setup_));
  const auto engines = [&] {
    std::vector<pid_t> pids;
    for (const std::string& line : prefill_events()) {
      int pid = 0;
      if (std::sscanf(line.c_str(), "engine start %d", &pid) == 1) pids.push_back(pid);
    }
    return pids;
  };
  ASSERT_TRUE(is_ready(prefill_));
  const std::size_t before = engines().size();
  kill(engines().back(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return engines().size() == before + 1; }));
  ASSERT_TRUE(is_ready(prefill_));
  EXPECT_EQ(peer_of(setup_)["state"], "joined");
  EXPECT_EQ(peer_of(prefill_)["state"], "joined");
  // The decode instance knows the new engine: it waits for that one's end.
  kill(prefill, SIGKILL);
  wait_for(prefill);
  ASSERT_TRUE(peer_becomes(setup_, "absent", 0));
  end(decode);
}

TEST_F(SplitTest, AServerOfRoleMixedSaysWhatItIs) {
  prefill_.options.split.role = config::SplitRole::mixed;
  const pid_t mixed = start(prefill_);
  const pid_t decode = start();
  ASSERT_TRUE(peer_becomes(setup_, "refused", mixed));
  EXPECT_EQ(peer_of(setup_)["why"], "the instance at that queue port (pid " + std::to_string(mixed) +
                                        ") has --splitwise-role mixed, a prefill instance is needed");
  end(decode);
  end(mixed);
}

}  // namespace
}  // namespace troupe::supervisor
