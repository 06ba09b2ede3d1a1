// A prefill instance's side of its decode instance.
#include "actors/supervisor/decode_peer.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "actors/supervisor/peer_facts.h"
#include "actors/supervisor/resources.h"
#include "ipc/patch_region.h"
#include "supervisor/peer_rig.h"

namespace troupe::supervisor {
namespace {

class DecodePeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options.split.role = config::SplitRole::prefill;
    auto taken = Resources::take(decode_options(), {});
    ASSERT_TRUE(taken.ok()) << taken.status().message;
    theirs = std::move(*taken);
    make();
  }
  config::Options decode_options() const {
    config::Options decode = options_of((directory.path() / "decode").string());
    decode.split.role = config::SplitRole::decode;
    decode.split.prefill_ports = {kPort};
    return decode;
  }
  void make(std::string cannot = "", int ranks = 1) {
    peer.emplace(
        DecodePeer::Setup{facts_of(options), std::move(cannot), ranks, said.log(), said.tell(), said.warn()},
        DecodePeer::Events{
            [this](DecodePeer::Offer one) { offers.push_back(std::move(one)); }, [this] { ++lost; },
            [this] { ++left; }, [this] { ++fronts_ended; },
            [this](std::int64_t rank, ipc::Fd socket) { pair_ranks.push_back(socket ? rank : -2); }});
  }

  /// The decode instance's end of a new channel.
  Control join() {
    auto pair = make_control_pair();
    EXPECT_TRUE(pair.ok());
    peer->join(std::move(pair->theirs), now);
    return std::move(pair->ours);
  }
  void run() { serve(*peer, now); }
  /// The first `packets` of a whole offer.
  void offer(const Control& control, const Json& facts, int packets = 3) {
    const PeerResources& shared = theirs->peers.front();
    if (packets > 0) {
      ASSERT_TRUE(control.send({{"do", "offer"}, {"facts", facts}}, shared.link.step.get()).ok());
    }
    if (packets > 1) {
      ASSERT_TRUE(control.send({{"do", "link_cache"}}, shared.link.cache.get()).ok());
    }
    if (packets > 2) {
      ASSERT_TRUE(control.send({{"do", "names"}}, shared.block_names.get()).ok());
    }
    run();
  }
  Control accepted() {
    Control control = join();
    offer(control, facts_of(options));
    EXPECT_EQ(next(control).text("event"), "accepted");
    return control;
  }
  static std::string refusal(Control& control) {
    const Packet packet = next(control);
    EXPECT_EQ(packet.text("event"), "refused") << packet.message;
    EXPECT_EQ(next(control).kind, Packet::Kind::closed);
    return packet.text("why");
  }

  const test::TempDirectory directory;
  config::Options options = options_of((directory.path() / "prefill").string());
  std::optional<Resources> theirs;
  Said said;
  std::vector<DecodePeer::Offer> offers;
  std::vector<std::int64_t> pair_ranks;  // of sockets that have come
  int lost = 0, left = 0, fronts_ended = 0;
  TimePoint now = Clock::now();
  std::optional<DecodePeer> peer;
};

TEST_F(DecodePeerTest, AnOfferIsAcceptedAndItsLinkIsThatOfTheDecodeInstance) {
  Control control = accepted();
  ASSERT_EQ(offers.size(), 1u);
  EXPECT_EQ(offers[0].monitor.reaped(ipc::Side::lower), 2u);
  EXPECT_EQ(theirs->monitors.peer(0).epoch(), 2u);
  const auto names = ipc::BlockNames::attach(offers[0].block_names.get());
  ASSERT_TRUE(names.ok());
  const auto own = ipc::BlockNames::attach(theirs->engines[0].block_names.get());
  EXPECT_EQ(names->key().low, own->key().low) << "the decode instance names its own blocks alike";
  ASSERT_EQ(peer->rows().size(), 1u);
  EXPECT_EQ(peer->rows()[0].state, "joining");
  EXPECT_EQ(peer->rows()[0].pid, getpid());
  EXPECT_EQ(said.told.size(), 1u);

  ChildProcess engine = sleeper();
  peer->tell_engine(engine.pid(), engine.pidfd());
  peer->tell_engine(engine.pid(), engine.pidfd());
  Packet packet = next(control);
  EXPECT_EQ(packet.text("event"), "engine");
  EXPECT_TRUE(packet.attached.valid());
  EXPECT_EQ(control.receive(TimePoint{}).kind, Packet::Kind::timeout) << "once";
  EXPECT_EQ(peer->rows()[0].state, "joined");
  EXPECT_EQ(lost, 0);
}

TEST_F(DecodePeerTest, AnOfferMayHaveMemoryForImages) {
  const auto region = ipc::PatchRegion::create(1 << 16);
  ASSERT_TRUE(region.ok());
  for (const bool sound : {false, true}) {
    Control control = join();
    offer(control, facts_of(options), 2);
    const ipc::Fd other = memory_file(4096);
    ASSERT_TRUE(control.send({{"do", "patches"}}, sound ? region->get() : other.get()).ok());
    ASSERT_TRUE(control.send({{"do", "names"}}, theirs->peers.front().block_names.get()).ok());
    run();
    if (sound) {
      EXPECT_EQ(next(control).text("event"), "accepted");
      ASSERT_EQ(offers.size(), 1u);
      EXPECT_TRUE(ipc::PatchRegion::attach(offers[0].patches.get()).ok());
    } else {
      EXPECT_NE(refusal(control).find("its memory for images cannot be used: "), std::string::npos);
    }
  }
  run();  // that one is gone
  accepted();
  EXPECT_FALSE(offers.back().patches) << "of a model that does not see";
}

TEST_F(DecodePeerTest, EachFactThatDiffersIsNamedWithBothValues) {
  const PeerFacts facts = facts_of(options);
  ASSERT_GE(facts.size(), 12u);
  for (const auto& [name, value] : facts) {
    PeerFacts other = facts;
    other[name] = "something else";
    Control control = join();
    offer(control, other);
    const std::string pid = std::to_string(getpid());
    const std::string mine = value.empty() ? "unset" : value;
    EXPECT_EQ(refusal(control), name + " differs: the prefill instance (pid " + pid + ") has " + mine +
                                    ", the decode instance (pid " + pid + ") something else");
    other.erase(name);
    control = join();
    offer(control, other);
    EXPECT_NE(refusal(control).find("the decode instance (pid " + pid + ") unknown"), std::string::npos)
        << name;
  }
  EXPECT_TRUE(offers.empty());
  EXPECT_TRUE(peer->rows().empty());
}

TEST_F(DecodePeerTest, WhatDecidesTheContentsOfBlocksIsAFact) {
  const auto facts_with = [this](const auto& change) {
    config::Options other = options;
    change(other);
    return difference({facts_of(options), "the prefill instance (pid 1)"},
                      {facts_of(other), "the decode instance (pid 2)"});
  };
  EXPECT_EQ(facts_with([](config::Options& o) { o.http.port = 1; }), "");
  EXPECT_EQ(facts_with([](config::Options& o) { o.scheduler.max_num_seqs = 7; }), "");
  EXPECT_EQ(
      facts_with([](config::Options& o) { o.quantization.kv_cache = config::KvCacheDType::int8; }),
      "--kv-cache-dtype differs: the prefill instance (pid 1) has auto, the decode instance (pid 2) int8");
  EXPECT_EQ(
      facts_with([](config::Options& o) { o.model.directory = "/models/two"; }),
      "model differs: the prefill instance (pid 1) has /models/one, the decode instance (pid 2) /models/two");
  EXPECT_NE(facts_with([](config::Options& o) { o.device.device = config::Device::cuda; }), "");
  EXPECT_NE(facts_with([](config::Options& o) { o.model.dtype = config::DTypeOption::float32; }), "");
  EXPECT_EQ(facts_with([](config::Options& o) { o.parallel.tensor_parallel_size = 2; }), "")
      << "a rank copies its heads from the ranks that have them";
  EXPECT_NE(facts_with([](config::Options& o) { o.quantization.method = "wint8"; }), "");
  EXPECT_NE(facts_with([](config::Options& o) { o.speculation.method = config::DraftMethod::mtp; }), "");
  EXPECT_EQ(facts_with([](config::Options& o) { o.model.seed = 5; }), "")
      << "weights come from the checkpoint";
  options.model.load_choices = config::LoadChoice::dummy;
  EXPECT_EQ(facts_with([](config::Options& o) { o.model.seed = 5; }),
            "--seed differs: the prefill instance (pid 1) has 0, the decode instance (pid 2) 5");
}

TEST_F(DecodePeerTest, ASecondDecodeInstanceIsRefusedAndToldWhoWasFirst) {
  const Control first = accepted();
  Control second = join();
  offer(second, facts_of(options));
  EXPECT_NE(refusal(second).find("computes for another decode instance already (pid " +
                                 std::to_string(getpid()) + ")"),
            std::string::npos);
  EXPECT_EQ(offers.size(), 1u);
  EXPECT_EQ(lost, 0);
}

TEST_F(DecodePeerTest, AnInstanceOfAnotherRoleSaysSo) {
  make("the instance at that queue port has --splitwise-role mixed");
  Control control = join();
  offer(control, facts_of(options), 1);
  EXPECT_EQ(refusal(control), "the instance at that queue port has --splitwise-role mixed");
}

TEST_F(DecodePeerTest, GarbageIsRefusedOrIgnored) {
  {
    Control control = join();  // descriptors that are no link
    const ipc::Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(control.send({{"do", "offer"}, {"facts", facts_of(options)}}, null.get()).ok());
    ASSERT_TRUE(control.send({{"do", "link_cache"}}, null.get()).ok());
    ASSERT_TRUE(control.send({{"do", "names"}}, null.get()).ok());
    run();
    EXPECT_NE(refusal(control).find("its link cannot be used: "), std::string::npos);
  }
  {
    Control control = join();  // none at all
    offer(control, facts_of(options), 1);
    ASSERT_TRUE(control.send({{"do", "link_cache"}}).ok());
    ASSERT_TRUE(control.send({{"do", "names"}}).ok());
    run();
    EXPECT_NE(refusal(control).find("its link cannot be used: "), std::string::npos);
  }
  {
    Control control = join();  // a table that is none
    offer(control, facts_of(options), 2);
    ASSERT_TRUE(control.send({{"do", "names"}}, memory_file(4096).get()).ok());
    run();
    EXPECT_NE(refusal(control).find("its table of block names cannot be used: "), std::string::npos);
  }
  for (const Json& facts : {Json(), Json(7), Json::array({1}), Json{{"model", 3}}}) {
    Control control = join();
    offer(control, facts);
    EXPECT_NE(refusal(control).find(" differs: "), std::string::npos) << facts;
  }
  Control control = join();
  for (const char* bytes :
       {"x", "{\"do\":", "[]", "{}", "{\"do\":7}", "{\"do\":\"dance\"}", "{\"event\":\"accepted\"}"})
    ASSERT_GT(send(control.fd(), bytes, strlen(bytes), 0), 0);
  offer(control, facts_of(options));
  EXPECT_EQ(next(control).text("event"), "accepted");
  for (const char* bytes : {"x", "{\"do\":\"front\"}", "{\"do\":\"offer\"}", "{\"do\":\"names\"}"})
    ASSERT_GT(send(control.fd(), bytes, strlen(bytes), 0), 0);
  run();
  EXPECT_EQ(offers.size(), 1u);
  EXPECT_EQ(lost, 0);
}

TEST_F(DecodePeerTest, AnOfferThatDoesNotComeWholeIsGivenUp) {
  for (int packets = 0; packets < 3; ++packets) {
    { offer(join(), facts_of(options), packets); }
    run();
    EXPECT_TRUE(peer->descriptors().empty()) << "closed after " << packets;
    Control slow = join();
    offer(slow, facts_of(options), packets);
    EXPECT_EQ(peer->descriptors().size(), 1u);
    peer->tick(now + DecodePeer::kPatience);
    EXPECT_TRUE(peer->descriptors().empty()) << "stuck after " << packets;
    EXPECT_EQ(next(slow).kind, Packet::Kind::closed);
  }
  std::vector<Control> many;
  for (std::size_t i = 0; i < 3 * DecodePeer::kMostWaiting; ++i) many.push_back(join());
  EXPECT_EQ(peer->descriptors().size(), DecodePeer::kMostWaiting);
  Control one_more = join();
  EXPECT_EQ(next(one_more).kind, Packet::Kind::closed);
}

TEST_F(DecodePeerTest, ADecodeInstanceThatHasGoneBeforeTheAnswerIsNotAccepted) {
  Control control = join();
  const PeerResources& shared = theirs->peers.front();
  (void)control.send({{"do", "offer"}, {"facts", facts_of(options)}}, shared.link.step.get());
  (void)control.send({{"do", "link_cache"}}, shared.link.cache.get());
  (void)control.send({{"do", "names"}}, shared.block_names.get());
  control.close();
  run();
  EXPECT_TRUE(offers.empty());
  EXPECT_EQ(lost, 0);
}

TEST_F(DecodePeerTest, AfterItsLossItsFrontIsWaitedFor) {
  ChildProcess front = sleeper();
  Control control = accepted();
  ASSERT_TRUE(control.send({{"do", "front"}}, front.pidfd()).ok());
  run();
  control.close();
  run();
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(peer->rows().empty());
  EXPECT_EQ(fronts_ended, 0) << "it may still write to the link";
  front.kill(SIGKILL);
  front.reap();
  run();
  EXPECT_EQ(fronts_ended, 1);
  EXPECT_TRUE(peer->descriptors().empty());
  EXPECT_EQ(said.warned.size(), 1u);

  control = accepted();  // and without having told of a front
  EXPECT_EQ(offers.size(), 2u);
  control.close();
  run();
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(fronts_ended, 2);
}

TEST_F(DecodePeerTest, OneThatCannotReadTheMemoryLeavesAndItsFrontIsWaitedForLikewise) {
  ChildProcess front = sleeper();
  Control control = accepted();
  ASSERT_TRUE(control.send({{"do", "front"}}, front.pidfd()).ok());
  ASSERT_TRUE(control.send({{"do", "leave"}, {"why", "GPU 0 cannot read it"}}).ok());
  control.close();
  run();
  EXPECT_EQ(left, 1);
  EXPECT_EQ(lost, 0);
  EXPECT_TRUE(peer->rows().empty());
  EXPECT_EQ(said.warned,
            std::vector<std::string>{"troupe: the decode instance with pid " + std::to_string(getpid()) +
                                     " computes its prompts itself: GPU 0 cannot read it"});
  EXPECT_EQ(fronts_ended, 0) << "it may still write to the link";
  front.kill(SIGKILL);
  front.reap();
  run();
  EXPECT_EQ(fronts_ended, 1);
  control = accepted();  // another one
}

TEST_F(DecodePeerTest, MemoriesAreToldWhenAllRanksHaveOne) {
  make("", 2);
  peer->set_memory(0, 100, memory(11));
  Control control = accepted();
  peer->tick(now);
  EXPECT_EQ(control.receive(TimePoint{}).kind, Packet::Kind::timeout);
  peer->set_memory(1, 101, memory(12, 8));
  const std::string together = std::to_string(ipc::lives_together(11, 12));
  for (int rank = 0; rank < 2; ++rank) {
    Packet packet = next(control);
    EXPECT_EQ(packet.text("event"), "memory");
    EXPECT_EQ(packet.number("rank"), rank);
    EXPECT_EQ(packet.number("ranks"), 2);
    EXPECT_EQ(packet.text("life"), together);
    EXPECT_EQ(packet.number("blocks"), rank == 0 ? 4 : 8);
    EXPECT_TRUE(kv_memory_of(packet).has_value());
  }
  peer->tick(now);
  EXPECT_EQ(control.receive(TimePoint{}).kind, Packet::Kind::timeout) << "once";
  peer->keep_memory_of(0, 100);
  for (int i = 0; i < 2; ++i) peer->keep_memory_of(1, 0);  // that worker has died
  Packet gone = next(control);
  EXPECT_EQ(gone.text("event"), "memory_gone");
  EXPECT_EQ(gone.number("rank"), 1);
  peer->tick(now);
  EXPECT_EQ(control.receive(TimePoint{}).kind, Packet::Kind::timeout);
  peer->set_memory(1, 102, memory(13));
  EXPECT_EQ(next(control).text("life"), std::to_string(ipc::lives_together(11, 13)));
  EXPECT_EQ(next(control).number("rank"), 1);
  control.close();
  run();
  control = accepted();
  peer->tick(now);
  EXPECT_EQ(next(control).number("rank"), 0) << "the next decode instance is told, too";
  peer->set_memory(2, 7, memory(5));
  peer->set_memory(-1, 7, memory(5));
}

TEST_F(DecodePeerTest, ASocketForAWorkerIsGivenToItsOwner) {
  Control control = accepted();
  const ipc::Fd socket = memory_file(1);
  ASSERT_TRUE(control.send({{"do", "kv_pair"}, {"rank", 3}}, socket.get()).ok());
  ASSERT_TRUE(control.send({{"do", "kv_pair"}, {"rank", 3}}).ok());
  run();
  EXPECT_EQ(pair_ranks, std::vector<std::int64_t>{3}) << "one without a socket is none";
}

}  // namespace
}  // namespace troupe::supervisor
