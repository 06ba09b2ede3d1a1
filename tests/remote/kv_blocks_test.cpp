// KV blocks from a prefill engine's relay to a worker on another machine, over TLS on loopback: what comes
// whole, and what happens when the block, the connection or the other side is not what it was.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include "actors/remote/kv_client.h"
#include "actors/remote/node_facts.h"
#include "actors/remote/relay.h"
#include "actors/worker/block_fetcher.h"
#include "actors/worker/block_giver.h"
#include "model/sealed_memory.h"
#include "model/swap/checksum.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::remote {
namespace {

constexpr std::size_t kBlockBytes = 20'000;
constexpr std::size_t kBlocks = 40;
constexpr std::uint64_t kLife = 0x1234567890abcdef;
constexpr model::KvLayout kLayout{2, 5, kBlockBytes / 20, 0};

template <class Condition>
bool soon(Condition condition) {
  const TimePoint end = Clock::now() + test::kPatience;
  while (!condition() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

ipc::BlockName name_of(std::size_t block) {
  return {{block + 1, 2 * block + 7}, static_cast<std::int32_t>(block)};
}

class KvBlocksTest : public ::testing::Test {
 protected:
  KvBlocksTest() {
    EXPECT_TRUE(make_cluster_keys(directory_.path().string() + "/c", {"decode", "prefill"}).ok());
    listen_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listen_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listen_.get(), 16), 0);
    ::getsockname(listen_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    auto* const bytes = static_cast<unsigned char*>(memory_.data());
    for (std::size_t i = 0; i < kBlocks * kBlockBytes; ++i)
      bytes[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
    engine_names_->begin(kLife);
    for (std::size_t block = 0; block < kBlocks; ++block)
      engine_names_->set(static_cast<BlockId>(block), name_of(block));
    fetch_ = fetch_through(fetches());
  }

  static std::shared_ptr<ipc::BlockNames> make_names() {
    return std::make_shared<ipc::BlockNames>(*ipc::BlockNames::attach(ipc::BlockNames::create(1000)->get()));
  }
  RelaySetup setup(const std::string& node) const {
    auto keys = load_cluster_keys(directory_.path().string() + "/c/" + node);
    EXPECT_TRUE(keys.ok()) << keys.status().message;
    return {{keys->node, {{"build", "1"}}}, *std::move(keys), Log()};
  }
  ipc::BlockFetches fetches() const { return *ipc::BlockFetches::attach(fetches_fd_.get()); }
  void worker_comes(std::size_t block_bytes = kBlockBytes) { ASSERT_TRUE(fetches().begin(block_bytes).ok()); }

  void open_gate() {
    at_engine_ = *ipc::create_link();
    std::vector<ipc::UpperEnd> ends;
    ends.push_back(*ipc::UpperEnd::attach(at_engine_.step.get(), at_engine_.cache.get()));
    const supervisor::KvMemory memory{kLife, kBlocks, kBlockBytes, ipc::Fd(::dup(memory_.fd()))};
    ASSERT_TRUE(server_.set_memory(0, memory).ok());
    gate_ = std::make_unique<Gate>(setup("prefill"), std::move(ends), engine_names_, listen_.get(),
                                   "the engine here", nullptr, &server_);
  }
  void dial() {
    at_front_ = *ipc::create_link();
    std::vector<ipc::BlockFetches> by_rank;
    by_rank.push_back(fetches());
    dialer_ = std::make_unique<Dialer>(setup("decode"),
                                       *ipc::LowerEnd::attach(at_front_.step.get(), at_front_.cache.get()),
                                       names_, address_, nullptr, std::move(by_rank));
  }
  bool joined() {
    return soon([&] { return dialer_->peer().state == "joined" && names_->memory() == kLife; });
  }
  /// Gets these blocks; true when all have come, each with its contents and in order.
  bool get(std::vector<BlockId> blocks, std::uint64_t life = kLife) {
    std::vector<wire::BlockCopy> copies;
    for (const BlockId block : blocks) copies.push_back({block, static_cast<BlockId>(copies.size())});
    std::size_t right = 0;
    const bool whole = fetch_(
        life, copies,
        [&](const wire::BlockCopy& copy, std::span<const std::byte> bytes) {
          ASSERT_EQ(copy.to, static_cast<BlockId>(right));
          ASSERT_EQ(bytes.size(), kBlockBytes);
          const auto* const from = static_cast<const std::byte*>(memory_.data());
          ASSERT_EQ(std::memcmp(bytes.data(), from + static_cast<std::size_t>(copy.from) * kBlockBytes,
                                kBlockBytes),
                    0);
          ++right;
        },
        stop_);
    EXPECT_TRUE(!whole || right == blocks.size());
    return whole;
  }
  std::vector<BlockId> all() const {
    std::vector<BlockId> blocks;
    for (std::size_t block = kBlocks; block-- > 0;) blocks.push_back(static_cast<BlockId>(block));
    return blocks;
  }

  test::TempDirectory directory_;
  ipc::Fd listen_;
  config::Address address_;
  model::SealedMemory memory_ = *model::SealedMemory::make("test-kv", kBlocks* kBlockBytes);
  std::shared_ptr<ipc::BlockNames> engine_names_ = make_names(), names_ = make_names();
  ipc::Fd fetches_fd_ = *ipc::BlockFetches::create(5 * 20'480);  // room for five at a time
  FetchBlocks fetch_;
  std::atomic<bool> stop_{false};
  KvServer server_{1, kLayout, engine_names_};
  ipc::LinkFds at_front_, at_engine_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<Dialer> dialer_;
};

TEST_F(KvBlocksTest, BlocksComeWithTheirContentsInOrder) {
  worker_comes();
  open_gate();
  dial();
  ASSERT_TRUE(joined());
  ASSERT_TRUE(soon([&] { return get({3}); }));
  EXPECT_TRUE(get(all())) << "more than there is room for at a time";
  EXPECT_TRUE(get({}));
}

TEST_F(KvBlocksTest, AWorkerMayComeAfterTheRelayAndAgain) {
  open_gate();
  dial();
  ASSERT_TRUE(joined());
  EXPECT_FALSE(get({3})) << "it has not said how long its blocks are";
  worker_comes();
  ASSERT_TRUE(soon([&] { return get({3}); }));
  worker_comes();
  EXPECT_TRUE(soon([&] { return get(all()); }));
}

TEST_F(KvBlocksTest, ABlockThatTheEngineHasUsedForSomethingElseIsGone) {
  worker_comes();
  open_gate();
  dial();
  ASSERT_TRUE(joined());
  ASSERT_TRUE(soon([&] { return get({5}); }));
  // The relay here may not know it yet: then the one beside the engine says so.
  engine_names_->clear(5);
  EXPECT_FALSE(get({4, 5, 6}));
  EXPECT_TRUE(get({4, 6})) << "the connection goes on";
}

TEST_F(KvBlocksTest, NothingComesOfAnotherLifeOfTheMemory) {
  worker_comes();
  open_gate();
  dial();
  ASSERT_TRUE(joined());
  ASSERT_TRUE(soon([&] { return get({5}); }));
  EXPECT_FALSE(get({5}, kLife + 1));
  server_.forget_memory(0);
  EXPECT_FALSE(get({5}));
  EXPECT_FALSE(get({static_cast<BlockId>(kBlocks)})) << "no such block";
}

TEST_F(KvBlocksTest, AnEngineThatIsGoneFailsWhatIsWantedAndIsFoundAgain) {
  worker_comes();
  open_gate();
  dial();
  ASSERT_TRUE(joined());
  ASSERT_TRUE(soon([&] { return get({5}); }));
  gate_.reset();
  EXPECT_TRUE(soon([&] { return !get({5}); }));
  open_gate();
  EXPECT_TRUE(soon([&] { return get(all()); }));
}

TEST_F(KvBlocksTest, BlocksOfAnotherSizeAreRefusedInOneSentence) {
  worker_comes(10'000);
  open_gate();
  dial();
  ASSERT_TRUE(soon([&] { return dialer_->peer().state == "refused"; }));
  const std::string why = dialer_->peer().why;
  EXPECT_NE(why.find("the engine here"), std::string::npos) << why;
  EXPECT_NE(why.find("20000"), std::string::npos) << why;
  EXPECT_NE(why.find("10000"), std::string::npos) << why;
}

TEST_F(KvBlocksTest, AStopEndsAFetch) {
  worker_comes();
  ipc::BlockFetches relay = fetches();
  relay.set_connected(true);  // and answers nothing
  auto getting = std::async(std::launch::async, [&] { return get({1, 2}); });
  stop_ = true;
  EXPECT_FALSE(getting.get());
}

/// A prefill engine whose memory only its worker can read, as a GPU's.
class StagedBlocksTest : public KvBlocksTest {
 protected:
  static constexpr std::uint64_t kOwnLife = 77;

  void memory_comes() {
    const supervisor::KvMemory memory{kLife, kBlocks, kBlockBytes,
                                      ipc::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), kOwnLife};
    ASSERT_TRUE(staged_server_.set_memory(0, memory).ok());
  }
  std::unique_ptr<BlockGiver> worker(std::uint64_t life = kOwnLife) {
    return std::make_unique<BlockGiver>(
        *ipc::BlockFetches::attach(gives_.get()), life, [this](BlockId block, std::span<std::byte> into) {
          if (fails_ || into.size() != kBlockBytes) return false;
          if (before_) before_();
          const auto* const from = static_cast<const std::byte*>(memory_.data());
          std::memcpy(into.data(), from + static_cast<std::size_t>(block) * kBlockBytes, kBlockBytes);
          return true;
        });
  }
  void start() {
    worker_comes();
    memory_comes();
    at_engine_ = *ipc::create_link();
    std::vector<ipc::UpperEnd> ends;
    ends.push_back(*ipc::UpperEnd::attach(at_engine_.step.get(), at_engine_.cache.get()));
    staged_gate_ = std::make_unique<Gate>(setup("prefill"), std::move(ends), engine_names_, listen_.get(),
                                          "the engine here", nullptr, &staged_server_);
    dial();
    ASSERT_TRUE(joined());
  }
  static std::vector<ipc::BlockFetches> one(ipc::BlockFetches fetches) {
    std::vector<ipc::BlockFetches> all;
    all.push_back(std::move(fetches));
    return all;
  }

  std::atomic<bool> fails_{false};
  std::function<void()> before_;
  ipc::Fd gives_ = *ipc::BlockFetches::create(20'480);
  KvServer staged_server_{1, kLayout, engine_names_, one(*ipc::BlockFetches::attach(gives_.get()))};
  std::unique_ptr<Gate> staged_gate_;
};

TEST_F(StagedBlocksTest, TheWorkerCopiesTheBlocks) {
  auto giver = worker();
  start();
  ASSERT_TRUE(soon([&] { return get({3}); }));
  EXPECT_TRUE(get(all()));
  fails_ = true;
  EXPECT_FALSE(get({3}));
  fails_ = false;
  EXPECT_TRUE(get({3})) << "the connection goes on";
}

TEST_F(StagedBlocksTest, NothingComesOfAWorkerWithAnotherMemory) {
  auto giver = worker();
  start();
  ASSERT_TRUE(soon([&] { return get({3}); }));
  giver.reset();
  EXPECT_FALSE(get({3})) << "it has gone";
  giver = worker(kOwnLife + 1);
  EXPECT_FALSE(get({3})) << "another has come in its place, and the relay has not been told";
}

TEST_F(StagedBlocksTest, ABlockThatIsUsedForSomethingElseDuringTheCopyIsGone) {
  auto giver = worker();
  start();
  ASSERT_TRUE(soon([&] { return get({3}); }));
  before_ = [this] { engine_names_->clear(4); };
  EXPECT_FALSE(get({4}));
}

/// An engine's relay of the test's own, which welcomes and then does what it likes with each connection in
/// turn.
class FakeServerTest : public KvBlocksTest {
 protected:
  using Act = std::function<void(Stream&, const std::stop_token&)>;

  void serve(std::vector<Act> acts) {
    serving_ = std::jthread([this, acts = std::move(acts)](const std::stop_token& stop) {
      const RelaySetup own = setup("prefill");
      for (const Act& act : acts) {
        ipc::Fd socket;
        while (!socket && !stop.stop_requested()) {
          socket.reset(::accept4(listen_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        if (!socket) return;
        auto stream = Stream::accept(std::move(socket), own.keys.tls);
        FrameReader reader;
        const TimePoint deadline = Clock::now() + test::kPatience;
        if (!stream.ok() || !await_greeting(**stream, reader, deadline, stop).ok()) continue;
        if (welcome(**stream, own.own, deadline, stop)) act(**stream, stop);
      }
    });
  }
  /// Answers wants as an engine does, but for what `spoil` does to the answer of a block.
  Act answering(std::function<void(KvAnswerHead&, std::vector<std::byte>&)> spoil = {}) {
    return [this, spoil](Stream& stream, const std::stop_token& stop) {
      KvWant want;
      while (read_all(stream, std::as_writable_bytes(std::span(&want, 1)), stop).empty()) {
        KvAnswerHead head{want.number, KvAnswer::beat};
        std::vector<std::byte> block;
        if (want.memory != 0) {
          const auto* const from = static_cast<const std::byte*>(memory_.data()) +
                                   static_cast<std::size_t>(want.block) * kBlockBytes;
          block.assign(from, from + kBlockBytes);
          head = {want.number, KvAnswer::block, 0, block.size(), model::checksum(block)};
          if (spoil) spoil(head, block);
        }
        (void)write_all(stream, std::as_bytes(std::span(&head, 1)), stop);
        (void)write_all(stream, block, stop);
      }
    };
  }
  void fetch_from_it() {
    names_->begin(kLife);
    for (std::size_t block = 0; block < kBlocks; ++block)
      names_->set(static_cast<BlockId>(block), name_of(block));
    worker_comes();
    const RelaySetup own = setup("decode");
    client_ = std::make_unique<KvClient>(
        KvClient::Setup{own.own, own.keys.tls, address_, 0, 1, Log(), names_, [](const std::string&) {}},
        fetches());
    fetching_ = std::jthread([this](const std::stop_token& stop) { client_->run(stop); });
  }
  /// The first connection is of no use, and what it was asked for fails; the next one is.
  void expect_second_serves(Act first) {
    serve({std::move(first), answering()});
    fetch_from_it();
    EXPECT_TRUE(soon([&] { return get(all()); }));
  }

  std::unique_ptr<KvClient> client_;
  std::jthread serving_, fetching_;
};

TEST_F(FakeServerTest, AChecksumThatFailsEndsTheConnectionAndNoByteCounts) {
  expect_second_serves(
      answering([](KvAnswerHead&, std::vector<std::byte>& block) { block[777] ^= std::byte{4}; }));
}

TEST_F(FakeServerTest, ABlockOfAnotherLengthDoesToo) {
  expect_second_serves(answering([](KvAnswerHead& head, std::vector<std::byte>& block) {
    block.resize(block.size() / 2);
    head.bytes = block.size();
    head.checksum = model::checksum(block);
  }));
}

TEST_F(FakeServerTest, AnAnswerToWhatWasNotAskedDoesToo) {
  expect_second_serves(answering([](KvAnswerHead& head, std::vector<std::byte>&) { head.number += 5; }));
}

TEST_F(FakeServerTest, BytesThatAreNoAnswersDoToo) {
  expect_second_serves([](Stream& stream, const std::stop_token& stop) {
    const std::vector<std::byte> garbage(4096, std::byte{0x5a});
    (void)write_all(stream, garbage, stop);
    std::vector<std::byte> rest(1 << 20);
    (void)read_all(stream, rest, stop);
  });
}

TEST_F(FakeServerTest, AConnectionThatEndsInABlockFailsIt) {
  expect_second_serves([](Stream& stream, const std::stop_token& stop) {
    KvWant want;
    while (read_all(stream, std::as_writable_bytes(std::span(&want, 1)), stop).empty()) {
      KvAnswerHead head{want.number, KvAnswer::beat};
      if (want.memory != 0) head = {want.number, KvAnswer::block, 0, kBlockBytes, 0};
      (void)write_all(stream, std::as_bytes(std::span(&head, 1)), stop);
      if (want.memory == 0) continue;
      const std::vector<std::byte> part(100);
      (void)write_all(stream, part, stop);
      return;
    }
  });
}

TEST_F(FakeServerTest, AConnectionOnWhichNothingComesIsGivenUp) {
  expect_second_serves([](Stream& stream, const std::stop_token& stop) {
    std::vector<std::byte> rest(1 << 20);  // what it says is read, and never answered
    while (read_all(stream, rest, stop).empty()) {
    }
  });
}

TEST_F(KvBlocksTest, WhoSendsTheEngineWhatIsNoWantLosesTheConnection) {
  open_gate();
  const RelaySetup own = setup("decode");
  const TimePoint deadline = Clock::now() + test::kPatience;
  auto stream = Stream::connect(address_, own.keys.tls, deadline, {});
  ASSERT_TRUE(stream.ok());
  RelayGreeting greeting = own.own;
  greeting.kv = KvPart{0, 1, kBlockBytes};
  FrameReader reader;
  ASSERT_TRUE(greet(**stream, reader, greeting, deadline, {}).ok());
  const std::vector<std::byte> garbage(sizeof(KvWant), std::byte{0x5a});
  EXPECT_EQ(write_all(**stream, garbage, {}), "");
  std::array<std::byte, 1> byte{};
  EXPECT_NE(read_all(**stream, byte, {}), "") << "nothing is answered";
}

TEST(NodeFacts, ADecodeInstanceNeedsAPrefillEngine) {
  using supervisor::PeerFacts;
  const auto differs = [](const char* engine, const char* front) {
    return node_difference({{"build", "1"}, {"--splitwise-role", engine}}, "the engine",
                           {{"build", "1"}, {"--splitwise-role", front}}, "the front");
  };
  EXPECT_EQ(differs("prefill", "decode"), "");
  EXPECT_EQ(differs("mixed", "mixed"), "");
  EXPECT_EQ(differs("prefill", "mixed"), "") << "it answers as any engine does";
  const std::string role = differs("mixed", "decode");
  EXPECT_NE(role.find("--splitwise-role prefill"), std::string::npos) << role;
}

}  // namespace
}  // namespace troupe::remote
