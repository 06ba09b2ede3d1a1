// Pairs that move KV blocks together: what both ends agree on, how batches move, and who waits how long when
// an end goes or stands still. Movers are of memory: a cable that may get stuck.
#include "model/swap/kv_pair.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>

#include "support/patience.h"

namespace troupe::model {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPairBlockBytes = 64;
constexpr std::size_t kPairBlocks = 8;
constexpr std::uint64_t kRankLife = 9;

/// What joins two movers. They use it after the test's own objects have gone.
struct Cable {
  std::mutex mutex;
  int meeting = 0;
  PairMover::Id ids[2] = {};
  std::deque<std::vector<std::byte>> sent;
  std::atomic<bool> stuck{false};
  std::atomic<bool> ends{true};  // false: destructors wait
  std::atomic<int> moves{0}, movers{0};
};

class FakeMover final : public PairMover {
 public:
  FakeMover(std::shared_ptr<Cable> cable, std::byte* kv, PairTerms terms, bool sends, std::string gpu,
            int library)
      : cable_(std::move(cable)),
        kv_(kv),
        terms_(std::move(terms)),
        sends_(sends),
        gpu_(std::move(gpu)),
        library_(library) {
    ++cable_->movers;
  }
  ~FakeMover() override {
    while (!cable_->ends) std::this_thread::sleep_for(1ms);
    --cable_->movers;
  }
  std::string gpu() const override { return gpu_; }
  int library() const override { return library_; }
  void make_id(Id& id) override { std::memset(&id, 7, sizeof id); }
  void meet(const Id& id) override {
    const std::lock_guard lock(cable_->mutex);
    std::memcpy(&cable_->ids[cable_->meeting++], &id, sizeof id);
  }
  bool met() override {
    const std::lock_guard lock(cable_->mutex);
    return cable_->meeting == 2;
  }
  void move(std::span<const BlockId> blocks) override {
    ++cable_->moves;
    blocks_.assign(blocks.begin(), blocks.end());
    if (!sends_) return;
    std::vector<std::byte> bytes;
    for (const BlockId block : blocks) {
      for (const KvSlice& slice : terms_.slices) {
        for (std::size_t row = 0; row < slice.rows; ++row) {
          const std::byte* const at =
              kv_ + static_cast<std::size_t>(block) * kPairBlockBytes + slice.from + row * slice.from_pitch;
          bytes.insert(bytes.end(), at, at + slice.bytes);
        }
      }
    }
    const std::lock_guard lock(cable_->mutex);
    cable_->sent.push_back(std::move(bytes));
  }
  bool moved() override {
    if (cable_->stuck) return false;
    const std::lock_guard lock(cable_->mutex);
    if (sends_) return cable_->sent.empty();
    if (cable_->sent.empty()) return false;
    staging_ = std::move(cable_->sent.front());
    cable_->sent.pop_front();
    return true;
  }
  void put() override {
    const std::byte* at = staging_.data();
    for (const BlockId block : blocks_) {
      for (const KvSlice& slice : terms_.slices) {
        for (std::size_t row = 0; row < slice.rows; ++row, at += slice.bytes) {
          std::memcpy(
              kv_ + static_cast<std::size_t>(block) * kPairBlockBytes + slice.to + row * slice.to_pitch, at,
              slice.bytes);
        }
      }
    }
  }

 private:
  const std::shared_ptr<Cable> cable_;
  std::byte* const kv_;
  const PairTerms terms_;
  const bool sends_;
  const std::string gpu_;
  const int library_;
  std::vector<BlockId> blocks_;
  std::vector<std::byte> staging_;
};

class KvPairTest : public ::testing::Test {
 protected:
  KvPairTest() {
    for (std::size_t i = 0; i < sizeof from_; ++i) from_[i] = static_cast<std::byte>(i + 1);
    EXPECT_TRUE(PairSocket::make(sender_socket_, receiver_socket_).ok());
  }
  ~KvPairTest() override { cable_->ends = true; }

  /// Half of each block, in two rows; the receiver has them in the other order of halves.
  static PairTerms halves() {
    return {{{.from = 16, .to = 0, .bytes = 16, .rows = 2, .from_pitch = 32, .to_pitch = 16}}, 2};
  }
  static PairTerms wholes() { return {{{.bytes = kPairBlockBytes}}, 2}; }

  void send(const KvPairSender::Memory& memory = {kRankLife, kPairBlocks, kPairBlockBytes},
            std::string gpu = "0000:01:00.0", int library = 22809) {
    sender_ = std::make_unique<KvPairSender>(
        std::move(sender_socket_), memory,
        [this, gpu, library](const PairTerms& terms) {
          return std::make_unique<FakeMover>(cable_, from_, terms, true, gpu, library);
        },
        limits_);
  }
  void receive(PairTerms terms) {
    PeerKvMemory memory{0, 1, -1, kPairBlocks, kPairBlockBytes, 41, kRankLife};
    receiver_ = std::make_unique<KvPairReceiver>(
        std::move(receiver_socket_), memory, std::move(terms),
        [this](const PairTerms& agreed) {
          return std::make_unique<FakeMover>(cable_, to_, agreed, false, "0000:02:00.0", 22809);
        },
        [this](const PairNews& news) {
          const std::lock_guard lock(mutex_);
          news_.push_back(news);
          told_.notify_all();
        },
        limits_);
  }
  /// The news with this number, from 0 on.
  PairNews news(std::size_t number) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(told_.wait_for(lock, troupe::test::kPatience, [&] { return news_.size() > number; }));
    return news_.size() > number ? news_[number] : PairNews{PairNews::What::lost, "no news have come"};
  }
  void join(PairTerms terms) {
    send();
    receive(std::move(terms));
    EXPECT_EQ(news(0).what, PairNews::What::ready) << news(0).why;
    while (!receiver_->ready()) std::this_thread::yield();
  }
  bool copy(const std::vector<wire::BlockCopy>& copies) { return receiver_->copy(copies, stop_); }
  /// Runs a copy that gets stuck, and `act` meanwhile. Returns how long it took from then on.
  template <class Act>
  Duration time_of_stuck_copy(const Act& act) {
    cable_->stuck = true;
    bool done = true;
    std::thread copying([&] { done = copy({{1, 2}}); });
    while (cable_->moves < 2) std::this_thread::sleep_for(1ms);
    const TimePoint begin = Clock::now();
    act();
    copying.join();
    EXPECT_FALSE(done);
    for (const std::byte byte : to_) EXPECT_EQ(byte, std::byte{0});
    return Clock::now() - begin;
  }
  std::string refusal(PairTerms terms) {
    receive(std::move(terms));
    EXPECT_EQ(news(0).what, PairNews::What::refused);
    EXPECT_FALSE(copy({{1, 2}}));
    return news(0).why;
  }

  std::byte from_[kPairBlocks * kPairBlockBytes], to_[kPairBlocks * kPairBlockBytes] = {};
  std::shared_ptr<Cable> cable_ = std::make_shared<Cable>();
  PairLimits limits_{troupe::test::kPatience, troupe::test::kPatience, 50ms};
  OwnedFd sender_socket_, receiver_socket_;
  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<PairNews> news_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<KvPairSender> sender_;
  std::unique_ptr<KvPairReceiver> receiver_;
};

TEST_F(KvPairTest, BlocksMoveInBatches) {
  join(wholes());
  EXPECT_EQ(cable_->ids[0][5], std::byte{7});
  EXPECT_EQ(cable_->ids[1][127], std::byte{7});
  ASSERT_TRUE(copy({{7, 0}, {2, 5}, {3, 6}, {4, 3}, {0, 1}}));
  EXPECT_EQ(cable_->moves, 6) << "three batches at each end";
  const auto same = [&](std::size_t from, std::size_t to) {
    return std::memcmp(from_ + from * kPairBlockBytes, to_ + to * kPairBlockBytes, kPairBlockBytes) == 0;
  };
  EXPECT_TRUE(same(7, 0) && same(2, 5) && same(3, 6) && same(4, 3) && same(0, 1));
  for (const std::size_t block : {2, 4, 7}) EXPECT_EQ(to_[block * kPairBlockBytes], std::byte{0}) << block;
  ASSERT_TRUE(copy({{1, 2}}));
  EXPECT_TRUE(same(1, 2));
}

TEST_F(KvPairTest, ASliceOfABlockMovesAlone) {
  join(halves());
  ASSERT_TRUE(copy({{3, 1}}));
  EXPECT_EQ(std::memcmp(to_ + kPairBlockBytes, from_ + 3 * kPairBlockBytes + 16, 16), 0);
  EXPECT_EQ(std::memcmp(to_ + kPairBlockBytes + 16, from_ + 3 * kPairBlockBytes + 48, 16), 0);
  for (std::size_t i = 32; i < kPairBlockBytes; ++i) EXPECT_EQ(to_[kPairBlockBytes + i], std::byte{0});
}

TEST_F(KvPairTest, TwoRanksOnOneGpuAreRefused) {
  send({kRankLife, kPairBlocks, kPairBlockBytes}, "0000:02:00.0");
  EXPECT_EQ(refusal(wholes()), "both instances are on GPU 0000:02:00.0, and NCCL takes one rank of each GPU");
}

TEST_F(KvPairTest, AnotherVersionOfTheLibraryIsRefused) {
  send({kRankLife, kPairBlocks, kPairBlockBytes}, "0000:01:00.0", 21805);
  EXPECT_EQ(refusal(wholes()), "the prefill instance has version 21805 of NCCL, the decode instance 22809");
}

TEST_F(KvPairTest, AMemoryThatHasGoneIsRefused) {
  send({kRankLife + 1, kPairBlocks, kPairBlockBytes});
  EXPECT_EQ(refusal(wholes()), "the other instance asks for a KV memory that has gone");
}

TEST_F(KvPairTest, PartsThatNoBlockHasAreRefused) {
  send();
  PairTerms terms = halves();
  terms.slices[0].from_pitch = 33;
  EXPECT_EQ(refusal(terms),
            "a KV block of the prefill instance has 64 bytes, the other one asks for parts of 64");
}

TEST_F(KvPairTest, AnotherBuildIsRefused) {
  send();
  PairSocket raw(std::move(receiver_socket_));
  PairHello hello;
  ++hello.version;
  ASSERT_TRUE(raw.send(hello));
  PairAnswer answer;
  ASSERT_EQ(raw.receive(answer, Clock::now() + troupe::test::kPatience), PairSocket::Got::packet);
  EXPECT_EQ(answer.kind, PairAnswer::Kind::refused);
  EXPECT_EQ(text_in(answer.why), "the other instance is of another build");
}

TEST_F(KvPairTest, GarbageEndsTheSender) {
  send();
  PairSocket raw(std::move(receiver_socket_));
  ASSERT_TRUE(raw.send(PairMeeting{}));
  PairAnswer answer;
  EXPECT_EQ(raw.receive(answer, Clock::now() + troupe::test::kPatience), PairSocket::Got::end);
  while (!sender_->has_ended()) std::this_thread::sleep_for(1ms);
}

TEST_F(KvPairTest, ABlockThatTheSenderLacksEndsThePairAndWritesNothing) {
  join(wholes());
  EXPECT_FALSE(copy({{kPairBlocks, 2}}));
  EXPECT_EQ(news(1).what, PairNews::What::lost);
  EXPECT_EQ(to_[2 * kPairBlockBytes], std::byte{0});
  EXPECT_FALSE(copy({{1, 2}}));
}

TEST_F(KvPairTest, AGreetingThatNobodyAnswersHasALimit) {
  limits_.meet = 50ms;
  receive(wholes());
  EXPECT_EQ(news(0).what, PairNews::What::lost);
  EXPECT_EQ(news(0).why, "the other end has stood still");
}

TEST_F(KvPairTest, ASenderThatGoesDuringACopyIsNoticedAtOnce) {
  join(wholes());
  EXPECT_LT(time_of_stuck_copy([this] { sender_.reset(); }), troupe::test::kPatience / 2);
  EXPECT_EQ(news(1).why, "the other end has gone");
}

TEST_F(KvPairTest, ASenderThatStandsStillDuringACopyHasALimit) {
  limits_.move = 100ms;
  join(wholes());
  EXPECT_LT(time_of_stuck_copy([] {}), troupe::test::kPatience / 2);
  EXPECT_EQ(news(1).what, PairNews::What::failed);
  while (!sender_->has_ended()) std::this_thread::sleep_for(1ms);  // nor does it wait for the receiver
}

TEST_F(KvPairTest, ACopyThatNobodyWantsAnyMoreEndsSoon) {
  join(wholes());
  EXPECT_LT(time_of_stuck_copy([this] { stop_ = true; }), troupe::test::kPatience / 2);
  EXPECT_EQ(news(1).why, "a copy was given up");
}

TEST_F(KvPairTest, AReceiverThatEndsFreesBothEnds) {
  join(wholes());
  EXPECT_LT(time_of_stuck_copy([this] { receiver_->end(); }), troupe::test::kPatience / 2);
  while (!sender_->has_ended()) std::this_thread::sleep_for(1ms);
}

TEST_F(KvPairTest, AMoverThatDoesNotEndHoldsUpNobody) {
  join(wholes());
  cable_->ends = false;
  EXPECT_LT(time_of_stuck_copy([this] { sender_.reset(); }), troupe::test::kPatience / 2);
  receiver_.reset();
  EXPECT_EQ(cable_->movers, 2) << "they end on threads of their own";
  cable_->ends = true;
  while (cable_->movers > 0) std::this_thread::sleep_for(1ms);
}

TEST_F(KvPairTest, ALibraryThatIsNotThereIsARefusal) {
  sender_ = std::make_unique<KvPairSender>(
      std::move(sender_socket_), KvPairSender::Memory{kRankLife, kPairBlocks, kPairBlockBytes},
      [](const PairTerms&) -> std::unique_ptr<PairMover> {
        throw std::runtime_error("libnccl.so.2 cannot be opened");
      },
      limits_);
  EXPECT_EQ(refusal(wholes()), "the prefill instance: libnccl.so.2 cannot be opened");
}

TEST(PairBatch, IsUpTo32MiBAndAtLeastABlock) {
  EXPECT_EQ(pair_batch(3 << 20), 10u);
  EXPECT_EQ(pair_batch(64 << 20), 1u);
  EXPECT_EQ(pair_batch(1000), kMostPairBlocks);
}

}  // namespace
}  // namespace troupe::model
