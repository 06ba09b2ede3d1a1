// Two links that a pair of bridges makes into one, over TLS on loopback; what ends a connection, and what
// comes to whom afterwards.
#include "actors/remote/bridge.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <future>
#include <iostream>
#include <optional>
#include <thread>

#include "actors/link/link.h"
#include "actors/link/message_codec.h"
#include "actors/remote/cluster_keys.h"
#include "actors/remote/relay.h"
#include "ipc/block_names.h"
#include "support/heard_log.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::remote {
namespace {

constexpr auto kTurn = std::chrono::milliseconds(5);

template <class Condition>
bool wait(Condition condition) {
  const TimePoint end = Clock::now() + test::kPatience;
  while (!condition() && Clock::now() < end) std::this_thread::sleep_for(kTurn);
  return condition();
}

/// Counts the times that a gate says that it cannot accept.
struct AcceptFaults final : LogObserver {
  void event(std::string_view, std::string_view event, std::span<const LogField>) override {
    if (event == "accept_failed") ++count;
  }
  std::atomic<int> count{0};
};

/// The processor time of this process.
std::chrono::nanoseconds used_time() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// A cluster with the nodes "front" and "engine"; another authority has the node "stranger".
class BridgeTest : public ::testing::Test {
 protected:
  BridgeTest() {
    EXPECT_TRUE(make_cluster_keys(directory_.path().string() + "/c", {"front", "engine"}).ok());
    EXPECT_TRUE(make_cluster_keys(directory_.path().string() + "/other", {"stranger"}).ok());
    listen_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listen_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listen_.get(), 16), 0);
    ::getsockname(listen_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
  }

  RelaySetup setup(const std::string& node, supervisor::PeerFacts facts = {{"build", "1"}}) const {
    auto keys = load_cluster_keys(directory_.path().string() + "/" + node);
    EXPECT_TRUE(keys.ok()) << keys.status().message;
    return {{keys->node, std::move(facts)}, *std::move(keys), log_};
  }
  void open_gate(std::size_t places = 1) {
    std::vector<ipc::UpperEnd> ends;
    for (std::size_t i = 0; i < places; ++i) {
      at_engine_.push_back(*ipc::create_link());
      ends.push_back(*ipc::UpperEnd::attach(at_engine_[i].step.get(), at_engine_[i].cache.get()));
    }
    gate_ = std::make_unique<Gate>(setup("c/engine"), std::move(ends), engine_names_, listen_.get(),
                                   "the engine here", store_);
  }
  std::unique_ptr<Dialer> dial(const RelaySetup& relay) {
    at_front_ = *ipc::create_link();
    return std::make_unique<Dialer>(relay,
                                    *ipc::LowerEnd::attach(at_front_.step.get(), at_front_.cache.get()),
                                    front_names_, address_, region_);
  }
  ipc::UpperEnd front() { return *ipc::UpperEnd::attach(at_front_.step.get(), at_front_.cache.get()); }
  ipc::LowerEnd engine(std::size_t place = 0) {
    return *ipc::LowerEnd::attach(at_engine_[place].step.get(), at_engine_[place].cache.get());
  }
  static ipc::LinkMonitor monitor(const ipc::LinkFds& link) {
    return *ipc::LinkMonitor::attach(link.step.get(), link.cache.get());
  }
  /// The next message that comes to an end; waits for it.
  static std::string next(ipc::LinkEnd& end) {
    const TimePoint until = Clock::now() + test::kPatience;
    while (Clock::now() < until) {
      const ipc::Received got = end.receive(until);
      if (got.kind == ipc::Received::Kind::epoch_changed) return "(a new epoch)";
      if (got.kind != ipc::Received::Kind::record) continue;
      const auto* message = got.view.as<wire::Message>();
      const auto bytes = got.view.array(message->bytes);
      return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    return "(nothing)";
  }
  static void send(Link& link, const std::string& text) {
    link.send(MessageType::trace, 7, std::as_bytes(std::span(text)));
  }
  static std::shared_ptr<ipc::BlockNames> make_names() {
    return std::make_shared<ipc::BlockNames>(
        *ipc::BlockNames::attach(ipc::BlockNames::create(20'000)->get()));
  }
  /// A peer of one's own: a stream behind the greeting.
  std::unique_ptr<Stream> come(const std::string& node) {
    const auto relay = setup(node);
    const TimePoint deadline = Clock::now() + std::chrono::seconds(3);
    auto stream = Stream::connect(address_, relay.keys.tls, deadline, {});
    FrameReader reader;
    if (!stream.ok() || !greet(**stream, reader, relay.own, deadline, {}).ok()) return nullptr;
    return *std::move(stream);
  }

  test::TempDirectory directory_;
  Log log_;  // of gates and dialers
  ipc::Fd listen_;
  config::Address address_;
  std::shared_ptr<ipc::BlockNames> engine_names_ = make_names(), front_names_ = make_names();
  std::shared_ptr<const ipc::PatchRegion> region_;  // of a front that sees
  std::shared_ptr<PixelStore> store_;               // of an engine that does
  ipc::LinkFds at_front_;
  std::vector<ipc::LinkFds> at_engine_;
  std::unique_ptr<Gate> gate_;
};

TEST_F(BridgeTest, CarriesMessagesOfAnyLengthInOrder) {
  open_gate();
  const auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; })) << dialer->peer().why;
  Link upper(front()), lower(engine());
  const std::string large(3 << 20, 'x');
  send(upper, "down");
  send(upper, large);
  send(lower, "up");
  std::size_t down = 0;
  EXPECT_EQ(next(lower.end()), "down");
  while (down < large.size()) {
    const std::string piece = next(lower.end());
    ASSERT_EQ(piece.find_first_not_of('x'), std::string::npos);
    down += piece.size();
  }
  EXPECT_EQ(next(upper.end()), "up");
  EXPECT_EQ(gate_->peers().size(), 1u);
}

TEST_F(BridgeTest, ARequestFindsItsImageAtTheEngineAlsoWhenItComesInPieces) {
  constexpr std::uint64_t kBytes = 1 << 20;
  const PatchGrid grid{1, 4, 4};
  const std::vector<std::byte> patches(static_cast<std::size_t>(grid.patches()) * kPatchBytes, std::byte{7});
  const ipc::Fd near = *ipc::PatchRegion::create(kBytes), far = *ipc::PatchRegion::create(kBytes);
  auto writer = *ipc::PatchWriter::attach(near.get());
  region_ = std::make_shared<ipc::PatchRegion>(*ipc::PatchRegion::attach(near.get()));
  store_ = std::make_shared<PixelStore>(*ipc::PatchWriter::attach(far.get()), kBytes);
  const auto far_region = *ipc::PatchRegion::attach(far.get());
  open_gate();
  auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; })) << dialer->peer().why;
  Link upper(front()), lower(engine());
  const auto place = *writer.add(MediaKind::image, grid, patches);
  for (const std::size_t length : {std::size_t{10}, std::size_t{1} << 20}) {  // the latter takes five records
    Submit request;
    request.sequences.resize(1);
    request.sequences[0].prompt.assign(length, 5);
    request.sequences[0].media.emplace_back().place = place;
    upper.send(MessageType::submit, 0, encoded_view(request));
    Bytes whole;
    encode(request, whole);
    std::string got;
    while (got.size() < whole.size()) {
      const std::string piece = next(lower.end());
      ASSERT_NE(piece.front(), '(') << piece;  // no message
      got += piece;
    }
    Submit arrived;
    ASSERT_TRUE(decode(std::as_bytes(std::span(got)), arrived));
    EXPECT_EQ(arrived.sequences[0].prompt, request.sequences[0].prompt);
    const auto item = far_region.find(arrived.sequences[0].media[0].place);
    ASSERT_TRUE(item);
    EXPECT_TRUE(std::equal(item->patches.begin(), item->patches.end(), patches.begin(), patches.end()));
  }
  EXPECT_EQ(store_->used(), ipc::PatchRegion::bytes_of(grid));
  dialer.reset();
  EXPECT_TRUE(wait([&] { return store_->used() == 0; })) << "the front has gone";
}

TEST_F(BridgeTest, TheFrontKnowsTheNamesOfTheEnginesBlocksWhileItIsThere) {
  const auto name = [](std::uint64_t n) { return ipc::BlockName{{n, n + 1}, static_cast<std::int32_t>(n)}; };
  const auto has = [this](BlockId block, const ipc::BlockName& expected) {
    ipc::BlockName found;
    return front_names_->read(block, found) && found == expected;
  };
  open_gate();
  engine_names_->begin(11);
  for (BlockId block = 0; block < 10'000; ++block)
    engine_names_->set(block, name(static_cast<std::uint64_t>(block) + 1));
  auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return front_names_->end() == 10'000 && has(9'999, name(10'000)); }));
  EXPECT_TRUE(has(0, name(1)));
  EXPECT_EQ(front_names_->memory(), 11u);
  engine_names_->clear(5);
  engine_names_->set(6, name(77));
  EXPECT_TRUE(wait([&] { return has(6, name(77)) && !has(5, name(6)); }));
  engine_names_->begin(12);
  engine_names_->set(3, name(3));
  EXPECT_TRUE(wait([&] { return front_names_->memory() == 12 && has(3, name(3)); }));
  EXPECT_FALSE(has(6, name(77)));
  dialer.reset();
  EXPECT_EQ(front_names_->memory(), 0u);
}

TEST_F(BridgeTest, TheEndOfAConnectionIsANewEpochOnBothSides) {
  open_gate();
  auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; }));
  ipc::UpperEnd upper = front();
  ipc::LowerEnd lower = engine();
  dialer.reset();
  EXPECT_EQ(next(upper), "(a new epoch)");
  EXPECT_EQ(next(lower), "(a new epoch)");
  EXPECT_EQ(monitor(at_front_).epoch(), 2u);
  EXPECT_EQ(monitor(at_engine_[0]).epoch(), 2u);
  EXPECT_TRUE(wait([&] { return gate_->peers().empty(); }));
}

TEST_F(BridgeTest, TheEndOfAProcessOnOneSideIsOneOnTheOther) {
  open_gate();
  const auto dialer = dial(setup("c/front"));
  Link upper(front()), lower(engine());
  send(upper, "first");
  EXPECT_EQ(next(lower.end()), "first");
  monitor(at_engine_[0]).reaped(ipc::Side::lower);  // as the engine's supervisor does
  EXPECT_EQ(next(upper.end()), "(a new epoch)");
  EXPECT_EQ(next(lower.end()), "(a new epoch)");
  send(upper, "second");
  EXPECT_EQ(next(lower.end()), "second") << "of the next connection";
  EXPECT_EQ(monitor(at_engine_[0]).epoch(), 2u) << "its supervisor has raised it, and nobody else";
  monitor(at_front_).reaped(ipc::Side::upper);
  EXPECT_EQ(next(lower.end()), "(a new epoch)");
}

TEST_F(BridgeTest, WhatWasSaidInAnOldConnectionIsNotHeardInTheNext) {
  open_gate();
  const auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; }));
  ipc::UpperEnd upper = front();
  Link lower(engine());
  send(lower, "of the first");
  ASSERT_TRUE(wait([&] { return monitor(at_front_).depths()[1].records == 1; }));
  monitor(at_engine_[0]).reaped(ipc::Side::lower);
  ASSERT_TRUE(wait([&] { return monitor(at_front_).epoch() == 2; }));
  EXPECT_EQ(next(upper), "(a new epoch)");
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; }));
  EXPECT_EQ(next(lower.end()), "(a new epoch)");
  send(lower, "of the second");
  EXPECT_EQ(next(upper), "of the second");
}

TEST_F(BridgeTest, AnEngineThatBeatsIsThereAndOneThatIsStoppedIsLost) {
  open_gate();
  const auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; }));
  EXPECT_EQ(monitor(at_front_).heartbeat_ns(ipc::Side::lower), 0) << "no engine is attached";
  std::optional<ipc::LowerEnd> lower(engine());
  ASSERT_TRUE(wait([&] { return monitor(at_front_).heartbeat_ns(ipc::Side::lower) != 0; }));
  const TimePoint began = Clock::now();
  ASSERT_TRUE(wait([&] { return monitor(at_front_).epoch() == 2; })) << "the engine beats no more";
  EXPECT_GE(Clock::now() - began, std::chrono::seconds(2));
  EXPECT_EQ(monitor(at_front_).heartbeat_ns(ipc::Side::lower), 0);
}

TEST_F(BridgeTest, APeerThatSaysNothingIsLost) {
  open_gate();
  const auto stream = come("c/front");
  ASSERT_NE(stream, nullptr);
  const TimePoint began = Clock::now();
  ASSERT_TRUE(wait([&] { return monitor(at_engine_[0]).epoch() == 2; }));
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(2900));
  EXPECT_TRUE(wait([&] { return gate_->peers().empty(); }));
}

TEST_F(BridgeTest, APeerThatSendsWhatIsNoRecordIsLeftAtOnce) {
  open_gate();
  std::vector<std::byte> no_record, short_record, no_frame(4096, std::byte{0x5a}), drain;
  put_frame(no_record, FrameKind::record, std::vector<std::byte>(sizeof(wire::Message) + 8));
  wire::RecordWriter<wire::CacheDone> other;
  other.begin(1);
  std::vector<std::byte> done(other.finish().begin(), other.finish().end());
  done.resize(std::max(done.size(), sizeof(wire::Message)));
  put_frame(short_record, FrameKind::record, done);
  put_frame(drain, FrameKind::draining, {});
  std::uint32_t epoch = 1;
  for (const auto& bytes : {no_record, short_record, no_frame, drain}) {
    const auto stream = come("c/front");
    ASSERT_NE(stream, nullptr);
    const TimePoint began = Clock::now();
    EXPECT_EQ(stream->write(bytes, Clock::now() + test::kPatience, {}), Stream::Progress::done);
    ++epoch;
    ASSERT_TRUE(wait([&] { return monitor(at_engine_[0]).epoch() == epoch; }));
    EXPECT_LT(Clock::now() - began, std::chrono::milliseconds(2500));
    ASSERT_TRUE(wait([&] { return gate_->peers().empty(); }));
  }
}

TEST_F(BridgeTest, ANodeOfAnotherAuthorityGetsNothing) {
  open_gate();
  EXPECT_EQ(come("other/stranger"), nullptr);
  const auto dialer = dial(setup("other/stranger"));
  ASSERT_TRUE(wait([&] {
    return dialer->peer().why.find("is no node of this cluster") != std::string::npos;
  })) << dialer->peer().why;
  EXPECT_TRUE(gate_->peers().empty());
  EXPECT_EQ(monitor(at_engine_[0]).epoch(), 1u);
}

TEST_F(BridgeTest, WhatDiffersIsSaidInOneSentenceWithBothNames) {
  open_gate();
  const auto dialer = dial(setup("c/front", {{"build", "2"}}));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "refused"; })) << dialer->peer().why;
  EXPECT_EQ(dialer->peer().why, "build differs: the engine here has 1, the front at node front 2");
  EXPECT_TRUE(gate_->peers().empty());
}

TEST_F(BridgeTest, AsManyFrontsAsThereArePlaces) {
  open_gate(2);
  const auto first = come("c/front"), second = come("c/front");
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  const auto third = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return third->peer().state == "refused"; }));
  EXPECT_NE(third->peer().why.find("serves 2 fronts already"), std::string::npos) << third->peer().why;
  first->close();
  EXPECT_TRUE(wait([&] { return third->peer().state == "joined"; })) << third->peer().why;
}

TEST_F(BridgeTest, SilentStrangersHoldNoPlace) {
  open_gate();
  std::vector<ipc::Fd> silent;
  for (int i = 0; i < 8; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(address_.port));
    ASSERT_EQ(::connect(silent.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_NE(come("c/front"), nullptr);
}

// In a process of its own, whose limit of descriptors no other test meets.
TEST_F(BridgeTest, WithoutDescriptorsTheGateWaitsServesOnAndAcceptsAgain) {
  constexpr auto kExhausted = std::chrono::milliseconds(2000);
  const auto faults = std::make_shared<AcceptFaults>();
  const auto exhaust_and_recover = [&] {
    std::vector<ipc::Fd> taken;
    const auto fail_unless = [&](bool holds, const char* what) {
      if (holds) return;
      taken.clear();
      std::cerr << "failed: " << what << "\n";
      std::filesystem::remove_all(directory_.path());
      std::_Exit(1);
    };
    log_ = Log::to_sink("relay", std::make_shared<testing::NoFile>(), {}).observed_by(faults);
    open_gate(2);
    const auto dialer = dial(setup("c/front"));
    fail_unless(wait([&] { return dialer->peer().state == "joined"; }), "a front joins");
    Link upper(front()), lower(engine());
    const ipc::Fd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 200);
    fail_unless(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit is set");
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.emplace_back(fd);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(address_.port));
    fail_unless(::connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
                "a client comes");
    const auto before = used_time();
    std::this_thread::sleep_for(kExhausted);
    const auto used = used_time() - before;
    std::cerr << "processor time while exhausted: " << used.count() / 1'000'000 << " ms\n";
    fail_unless(used < kExhausted / 4, "little processor time is used");
    send(upper, "meanwhile");
    fail_unless(next(lower.end()) == "meanwhile", "those that are there are served");
    fail_unless(faults->count == 1, "the lack is logged once");
    taken.clear();
    fail_unless(come("c/front") != nullptr, "it accepts again");
    fail_unless(faults->count == 1, "nothing more is logged");
    std::filesystem::remove_all(directory_.path());
    std::_Exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exhaust_and_recover(), ::testing::ExitedWithCode(0), "processor time while exhausted");
}

TEST_F(BridgeTest, AnEngineThatDrainsGivesNoSignOfLifeButKeepsTheConnection) {
  open_gate();
  const auto dialer = dial(setup("c/front"));
  ASSERT_TRUE(wait([&] { return dialer->peer().state == "joined"; }));
  ipc::LowerEnd lower = engine();
  std::jthread beats([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      lower.beat();
      std::this_thread::sleep_for(kTurn);
    }
  });
  ASSERT_TRUE(wait([&] { return monitor(at_front_).heartbeat_ns(ipc::Side::lower) != 0; }));
  gate_->drain();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  const auto last = monitor(at_front_).heartbeat_ns(ipc::Side::lower);
  std::this_thread::sleep_for(std::chrono::milliseconds(4000));
  EXPECT_EQ(monitor(at_front_).heartbeat_ns(ipc::Side::lower), last);
  EXPECT_EQ(monitor(at_front_).epoch(), 1u);
  EXPECT_TRUE(gate_->idle());
}

TEST(ClusterKeys, AreMadeOnceAndReadOnlyByTheirOwner) {
  test::TempDirectory directory;
  const std::string cluster = directory.path().string() + "/c";
  ASSERT_TRUE(make_cluster_keys(cluster, {"a"}).ok());
  EXPECT_FALSE(make_cluster_keys(cluster, {"a"}).ok()) << "its keys must not change";
  ASSERT_TRUE(make_cluster_keys(cluster, {"b"}).ok());
  const auto a = load_cluster_keys(cluster + "/a"), b = load_cluster_keys(cluster + "/b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->node, "a");
  EXPECT_EQ(b->node, "b");
  EXPECT_EQ(a->names.low, b->names.low);
  EXPECT_NE(a->names.low, 0u);
  EXPECT_FALSE(make_cluster_keys(cluster, {"../x"}).ok());
  EXPECT_FALSE(load_cluster_keys(cluster).ok()) << "the authority's folder is no node's";
  std::filesystem::permissions(cluster + "/a/node.key", std::filesystem::perms(0644));
  EXPECT_NE(load_cluster_keys(cluster + "/a").status().message.find("chmod 600"), std::string::npos);
  std::filesystem::permissions(cluster + "/a/node.key", std::filesystem::perms(0640));
  EXPECT_EQ(load_cluster_keys(cluster + "/a").ok(), ::geteuid() == 0) << "a group may read what is root's";
}

}  // namespace
}  // namespace troupe::remote
