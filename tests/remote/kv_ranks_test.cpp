// KV blocks from a prefill engine to a decode instance with another number of ranks, over TLS on loopback:
// each rank here gets what the ranks there hold of its heads, and nothing else.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "actors/remote/relay.h"
#include "actors/worker/block_fetcher.h"
#include "actors/worker/block_giver.h"
#include "kernels/batch.h"
#include "model/sealed_memory.h"
#include "support/patience.h"
#include "support/temp_directory.h"

namespace troupe::remote {
namespace {

class KvRanksTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 9;
  static constexpr std::uint64_t kMemory = 0x7001;

  template <class Condition>
  static bool becomes(Condition condition) {
    const TimePoint end = Clock::now() + test::kPatience;
    while (!condition() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  }
  static kernels::KvCache shape(kernels::KvFormat format, int heads) {
    kernels::KvCache kv{nullptr, DType::bf16, 3, heads, 4, format, true};
    kv.tail = 128;
    return kv;
  }
  /// Bytes that follow from the block, the layer, K or V, the model's head and the place in the piece alone.
  static std::byte value(std::size_t block, int layer, int v, int head, std::size_t at) {
    std::size_t x = (((block * 31 + static_cast<std::size_t>(layer)) * 2 + static_cast<std::size_t>(v)) * 64 +
                     static_cast<std::size_t>(head)) *
                        100'003 +
                    at;
    x *= 0x9e3779b97f4a7c15;
    return static_cast<std::byte>(x >> 40);
  }
  /// What rank `rank` of `ranks` holds of a block, as each computes it.
  static std::vector<std::byte> block_of(std::size_t block, kernels::KvFormat format, int heads, int rank,
                                         int ranks) {
    const int count = std::max(1, heads / ranks);
    const kernels::KvCache kv = shape(format, count);
    std::vector<std::byte> bytes(kv.block_bytes());
    for (int layer = 0; layer < kv.layers; ++layer) {
      for (int local = 0; local < count; ++local) {
        const int head = heads * rank / ranks + local;
        for (std::size_t at = 0; at < kv.piece_bytes(); ++at) {
          bytes[kv.key_offset(0, layer, local) + at] = value(block, layer, 0, head, at);
          bytes[kv.value_offset(0, layer, local) + at] = value(block, layer, 1, head, at);
        }
      }
    }
    for (std::size_t at = kv.id_offset(); at < bytes.size(); ++at)
      bytes[at] = value(block, 60, 0, 0, at - kv.id_offset());
    return bytes;
  }

  KvRanksTest() {
    EXPECT_TRUE(make_cluster_keys(directory_.path().string() + "/c", {"decode", "prefill"}).ok());
    listen_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listen_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listen_.get(), 64), 0);
    ::getsockname(listen_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    engine_names_->begin(kMemory);
    for (std::size_t block = 0; block < kCount; ++block)
      engine_names_->set(static_cast<BlockId>(block), {{block + 1, 3}, static_cast<std::int32_t>(block)});
  }
  static std::shared_ptr<ipc::BlockNames> table() {
    return std::make_shared<ipc::BlockNames>(*ipc::BlockNames::attach(ipc::BlockNames::create(100)->get()));
  }
  RelaySetup setup(const std::string& node) const {
    auto keys = load_cluster_keys(directory_.path().string() + "/c/" + node);
    EXPECT_TRUE(keys.ok()) << keys.status().message;
    return {{keys->node, {{"build", "1"}}}, *std::move(keys), Log()};
  }

  /// An engine of `ranks` ranks. `staged`: its memory can only be read by its workers, as a GPU's.
  void engine_comes(kernels::KvFormat format, int heads, int ranks, bool staged) {
    std::vector<ipc::BlockFetches> asked;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::size_t bytes = block_of(0, format, heads, rank, ranks).size();
      auto& memory = memories_.emplace_back(*model::SealedMemory::make("test-ranks", kCount * bytes));
      for (std::size_t block = 0; block < kCount; ++block)
        std::memcpy(static_cast<std::byte*>(memory.data()) + block * bytes,
                    block_of(block, format, heads, rank, ranks).data(), bytes);
      if (!staged) continue;
      gives_.push_back(*ipc::BlockFetches::create(2 * (bytes + 4096)));
      asked.push_back(*ipc::BlockFetches::attach(gives_.back().get()));
      givers_.push_back(std::make_unique<BlockGiver>(
          *ipc::BlockFetches::attach(gives_.back().get()), 50 + static_cast<std::uint64_t>(rank),
          [&memory, bytes](BlockId block, std::span<std::byte> into) {
            if (into.size() != bytes) return false;
            std::memcpy(
                into.data(),
                static_cast<const std::byte*>(memory.data()) + static_cast<std::size_t>(block) * bytes,
                bytes);
            return true;
          }));
    }
    const model::KvLayout layout = model::layout_of({shape(format, heads), heads, {}});
    server_ =
        std::make_unique<KvServer>(static_cast<std::size_t>(ranks), layout, engine_names_, std::move(asked));
    for (int rank = 0; rank < ranks; ++rank) memory_comes(rank, layout.block_bytes(ranks), staged);
    link_ = *ipc::create_link();
    std::vector<ipc::UpperEnd> ends;
    ends.push_back(*ipc::UpperEnd::attach(link_.step.get(), link_.cache.get()));
    gate_ = std::make_unique<Gate>(setup("prefill"), std::move(ends), engine_names_, listen_.get(),
                                   "the engine here", nullptr, server_.get());
  }
  void memory_comes(int rank, std::size_t bytes, bool staged) {
    const auto at = static_cast<std::size_t>(rank);
    ipc::Fd file(staged ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : ::dup(memories_[at].fd()));
    const supervisor::KvMemory memory{kMemory, kCount, static_cast<std::int64_t>(bytes), std::move(file),
                                      50 + static_cast<std::uint64_t>(rank)};
    const Status status = server_->set_memory(at, memory);
    ASSERT_TRUE(status.ok()) << status.message;
  }
  /// A decode instance of `ranks` ranks whose blocks have so many bytes.
  void decode_comes(int ranks, std::size_t bytes) {
    std::vector<ipc::BlockFetches> by_rank;
    for (int rank = 0; rank < ranks; ++rank) {
      fetches_.push_back(*ipc::BlockFetches::create(3 * (bytes + 4096)));
      ASSERT_TRUE(ipc::BlockFetches::attach(fetches_.back().get())->begin(bytes).ok());
      by_rank.push_back(*ipc::BlockFetches::attach(fetches_.back().get()));
      workers_.push_back(fetch_through(*ipc::BlockFetches::attach(fetches_.back().get())));
    }
    decode_link_ = *ipc::create_link();
    dialer_ = std::make_unique<Dialer>(
        setup("decode"), *ipc::LowerEnd::attach(decode_link_.step.get(), decode_link_.cache.get()), names_,
        address_, nullptr, std::move(by_rank));
  }
  /// True if a rank's worker gets all blocks; each must have come with `expected(block)`.
  template <class Expected>
  bool get(int rank, Expected expected) {
    std::vector<wire::BlockCopy> copies;
    for (std::size_t block = 0; block < kCount; ++block)
      copies.push_back({static_cast<BlockId>(block), static_cast<BlockId>(block)});
    return workers_[static_cast<std::size_t>(rank)](
        kMemory, copies,
        [&](const wire::BlockCopy& copy, std::span<const std::byte> bytes) {
          const std::vector<std::byte> right = expected(static_cast<std::size_t>(copy.from));
          ASSERT_EQ(bytes.size(), right.size());
          EXPECT_EQ(std::memcmp(bytes.data(), right.data(), right.size()), 0)
              << "block " << copy.from << " of rank " << rank;
        },
        stop_);
  }
  void check(kernels::KvFormat format, int heads, int from, int to, bool staged = false) {
    SCOPED_TRACE(::testing::Message() << heads << " heads, from " << from << " ranks to " << to);
    engine_comes(format, heads, from, staged);
    decode_comes(to, block_of(0, format, heads, 0, to).size());
    for (int rank = 0; rank < to; ++rank) {
      const auto expected = [&](std::size_t block) { return block_of(block, format, heads, rank, to); };
      EXPECT_TRUE(becomes([&] { return get(rank, expected); })) << dialer_->peer().why;
    }
  }

  test::TempDirectory directory_;
  ipc::Fd listen_;
  config::Address address_;
  std::shared_ptr<ipc::BlockNames> engine_names_ = table(), names_ = table();
  std::deque<model::SealedMemory> memories_;
  std::vector<ipc::Fd> gives_, fetches_;
  std::vector<std::unique_ptr<BlockGiver>> givers_;
  std::unique_ptr<KvServer> server_;
  ipc::LinkFds link_, decode_link_;
  std::unique_ptr<Gate> gate_;
  std::vector<FetchBlocks> workers_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<Dialer> dialer_;
};

using kernels::KvFormat;

TEST_F(KvRanksTest, FromTwoRanksToOne) { check(KvFormat::plain, 4, 2, 1); }
TEST_F(KvRanksTest, FromOneRankToTwo) { check(KvFormat::plain, 4, 1, 2); }
TEST_F(KvRanksTest, FromTwoRanksToFour) { check(KvFormat::plain, 4, 2, 4); }
TEST_F(KvRanksTest, FromTwoRanksToFourThatShareHeads) { check(KvFormat::plain, 2, 2, 4); }
TEST_F(KvRanksTest, FromThreeRanksToTwo) { check(KvFormat::plain, 6, 3, 2); }
TEST_F(KvRanksTest, FromTwoRanksToOneInEightBits) { check(KvFormat::int8, 4, 2, 1); }
TEST_F(KvRanksTest, FromOneRankToTwoInEightBits) { check(KvFormat::int8, 4, 1, 2); }
TEST_F(KvRanksTest, FromTwoRanksToFourInEightBits) { check(KvFormat::int8, 4, 2, 4); }
TEST_F(KvRanksTest, FromTwoWorkersThatCopyTheirBlocks) { check(KvFormat::int8, 4, 2, 1, true); }
TEST_F(KvRanksTest, FromAWorkerThatCopiesItsBlocksForTwo) { check(KvFormat::plain, 4, 1, 2, true); }
TEST_F(KvRanksTest, FromAsManyWorkersThatCopyTheirBlocks) { check(KvFormat::plain, 4, 2, 2, true); }

TEST_F(KvRanksTest, NothingComesWhileARankIsGone) {
  check(KvFormat::plain, 4, 2, 1);
  const auto expected = [](std::size_t block) { return block_of(block, KvFormat::plain, 4, 0, 1); };
  server_->forget_memory(1);
  EXPECT_FALSE(get(0, expected)) << "half of each block is not there";
  memory_comes(1, block_of(0, KvFormat::plain, 4, 1, 2).size(), false);
  EXPECT_TRUE(becomes([&] { return get(0, expected); })) << "the connection goes on";
}

TEST_F(KvRanksTest, ABlockThatAWorkerUsesForSomethingElseIsGone) {
  check(KvFormat::plain, 4, 2, 1);
  engine_names_->clear(4);
  EXPECT_FALSE(get(0, [](std::size_t block) { return block_of(block, KvFormat::plain, 4, 0, 1); }));
}

TEST_F(KvRanksTest, AnotherLayoutIsRefusedInOneSentence) {
  engine_comes(KvFormat::int8, 4, 2, false);
  const std::size_t plain = block_of(0, KvFormat::plain, 4, 0, 1).size();
  decode_comes(1, plain);
  ASSERT_TRUE(becomes([&] { return dialer_->peer().state == "refused"; }));
  EXPECT_EQ(dialer_->peer().why, "the engine here gives KV blocks of " +
                                     std::to_string(block_of(0, KvFormat::int8, 4, 0, 1).size()) +
                                     " bytes to each of 1 rank, those of the other side have " +
                                     std::to_string(plain));
}

TEST_F(KvRanksTest, ANumberOfRanksThatHeadsCannotBeDividedAmongIsRefused) {
  engine_comes(KvFormat::plain, 4, 2, false);
  decode_comes(3, 100);
  ASSERT_TRUE(becomes([&] { return dialer_->peer().state == "refused"; }));
  EXPECT_NE(dialer_->peer().why.find("cannot divide the model's 4 KV heads for rank "), std::string::npos)
      << dialer_->peer().why;
}

TEST_F(KvRanksTest, AMemoryWithAnotherLayoutIsRefused) {
  engine_comes(KvFormat::plain, 4, 2, false);
  const supervisor::KvMemory memory{kMemory, 1, 100, ipc::Fd(::dup(memories_[0].fd()))};
  const Status status = server_->set_memory(0, memory);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message.find("100 bytes"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace troupe::remote
