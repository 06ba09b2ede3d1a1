// KV blocks by NCCL from a process on one GPU to this one on another, and what this one does when the sender
// is killed or stopped while the GPU waits for its bytes.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "model/cuda/nccl_mover.h"
#include "model/sealed_memory.h"
#include "model/support/rank_processes.h"
#include "model/support/split_worker.h"

namespace troupe::model {
namespace {

using namespace std::chrono_literals;
using test::kBlocks;
using test::kLife;
using test::RankProcess;
using Worker = test::SplitWorker;

constexpr int kPrefillGpu = 0;

/// Until the test closes its end.
void wait_for_end(int pipe) {
  char byte = 0;
  while (::read(pipe, &byte, 1) > 0) continue;
}

/// Blocks of `worker` as its GPU has them.
std::vector<std::byte> bytes_of(const Worker& worker, const std::vector<BlockId>& blocks) {
  const auto file = SealedMemory::make("test-blocks", worker.block_bytes);
  auto* const data = static_cast<std::byte*>(file->data());
  const auto read = worker.executor->block_reader({data, worker.block_bytes});
  std::vector<std::byte> all;
  for (const BlockId block : blocks) {
    EXPECT_TRUE(read.ok() && (*read)(block, {data, worker.block_bytes}));
    all.insert(all.end(), data, data + worker.block_bytes);
  }
  return all;
}

/// The first batch moves; of later ones the receiver hears, but no bytes come.
class StallingMover final : public PairMover {
 public:
  explicit StallingMover(std::unique_ptr<PairMover> inner) : inner_(std::move(inner)) {}
  std::string gpu() const override { return inner_->gpu(); }
  int library() const override { return inner_->library(); }
  void make_id(Id& id) override { inner_->make_id(id); }
  void meet(const Id& id) override { inner_->meet(id); }
  bool met() override { return inner_->met(); }
  void move(std::span<const BlockId> blocks) override {
    if (++moves_ == 1) inner_->move(blocks);
  }
  bool moved() override { return moves_ == 1 && inner_->moved(); }
  void put() override {}

 private:
  std::unique_ptr<PairMover> inner_;
  int moves_ = 0;
};

class CudaKvPair : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
  void TearDown() override {
    end_.reset();
    if (sender_ <= 0) return;
    ::kill(sender_, SIGCONT);
    EXPECT_EQ(test::wait_for({sender_}, 30s), std::vector<int>{killed_ ? -1 : 0});
  }

  /// Starts `part` ("DISABLED_…"), and makes it and a decode worker on that GPU a pair. Returns the first
  /// news.
  PairNews join(const std::string& part, int gpu = 1) {
    OwnedFd theirs, ours, output(::memfd_create("sent", MFD_CLOEXEC));
    EXPECT_TRUE(PairSocket::make(theirs, ours).ok());
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const OwnedFd waits(ends[0]);
    end_.reset(ends[1]);
    sender_ = test::start_rank("CudaKvPair." + part, {{}, theirs.get(), waits.get(), output.get(), ""});
    theirs.reset();
    decode_ = std::make_unique<Worker>(config::Device::cuda, config::SplitRole::decode, 0, gpu);
    expected_ = decode_->run(0, 130, {4, 5, 6});
    // It has loaded its model when it has said what it will send.
    for (int i = 0; i < 6000 && ::lseek(output.get(), 0, SEEK_END) == 0; ++i)
      std::this_thread::sleep_for(10ms);
    const PeerKvMemory memory{0, 1, -1, kBlocks, decode_->block_bytes, kLife, kLife};
    const auto begun =
        decode_->executor->attach_pair(0, memory, std::move(ours), [this](const PairNews& news) {
          const std::lock_guard lock(mutex_);
          news_.push_back(news);
          told_.notify_all();
        });
    EXPECT_TRUE(begun.ok() && *begun) << begun.status().message;
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(told_.wait_for(lock, 60s, [&] { return !news_.empty(); }));
    sent_ = std::move(output);
    return news_.empty() ? PairNews{PairNews::What::lost, "no news have come"} : news_.front();
  }
  /// The first copies after the news may be early.
  bool copy_first(const std::vector<wire::BlockCopy>& copies) {
    for (int i = 0; i < 100; ++i) {
      if (decode_->copy(copies)) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  std::vector<std::byte> sent_bytes(std::size_t bytes) const {
    std::vector<std::byte> all(bytes);
    EXPECT_EQ(::pread(sent_.get(), all.data(), bytes, 0), static_cast<ssize_t>(bytes));
    return all;
  }
  /// A copy during which the GPU waits for bytes while `act` is done to the sender. Returns how long it took.
  Duration stalled_copy(const std::function<void()>& act) {
    EXPECT_EQ(join("DISABLED_SenderThatStalls").what, PairNews::What::ready);
    EXPECT_TRUE(copy_first({{9, 0}}));
    EXPECT_EQ(bytes_of(*decode_, {0}), sent_bytes(decode_->block_bytes));
    const auto before = bytes_of(*decode_, {2, 3});
    const TimePoint begin = Clock::now();
    decode_->start_copy({{9, 2}, {3, 3}});
    std::this_thread::sleep_for(200ms);
    EXPECT_EQ(decode_->run(0, 130, {4, 5, 6}, 37, 0), expected_) << "steps go on beside the waiting copy";
    act();
    EXPECT_FALSE(decode_->end_copy());
    const Duration took = Clock::now() - begin;
    EXPECT_EQ(bytes_of(*decode_, {2, 3}), before) << "no part of it is in the KV memory";
    EXPECT_FALSE(decode_->copy({{9, 2}})) << "the pair is lost";
    EXPECT_EQ(decode_->run(0, 130, {4, 5, 6}), expected_);
    return took;
  }

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<PairNews> news_;
  OwnedFd end_, sent_;
  pid_t sender_ = 0;
  bool killed_ = false;
  float expected_ = 0;
  std::unique_ptr<Worker> decode_;
};

TEST_F(CudaKvPair, DISABLED_PrefillWorker) {
  const RankProcess process = RankProcess::mine();
  Worker prefill(config::Device::cuda, config::SplitRole::prefill, 0, kPrefillGpu);
  prefill.run(0, 128, {9, 3});
  process.answer(bytes_of(prefill, {9, 3}));
  prefill.executor->give_pair(OwnedFd(process.memory), kLife);
  wait_for_end(process.meeting);
}

TEST_F(CudaKvPair, DISABLED_SenderThatStalls) {
  const RankProcess process = RankProcess::mine();
  Worker prefill(config::Device::cuda, config::SplitRole::prefill, 0, kPrefillGpu);
  Cuda device({.ordinal = kPrefillGpu});
  const std::size_t bytes = prefill.block_bytes;
  auto* const kv = static_cast<std::byte*>(device.alloc(kBlocks * bytes));
  std::vector<std::byte> pattern(kBlocks * bytes);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 31 + i / 256);
  device.upload(kv, pattern.data(), pattern.size());
  device.sync();
  process.answer(std::vector<std::byte>(pattern.begin() + static_cast<std::ptrdiff_t>(9 * bytes),
                                        pattern.begin() + static_cast<std::ptrdiff_t>(10 * bytes)));
  const auto open = std::make_shared<std::atomic<int>>(0);
  {
    KvPairSender sender(OwnedFd(process.memory), {kLife, kBlocks, bytes}, [&](const PairTerms& terms) {
      return std::make_unique<StallingMover>(
          make_nccl_mover(device, kv, bytes, terms, PairSide::sender, open));
    });
    wait_for_end(process.meeting);
  }
  await_end(open);
  device.free(kv);
}

TEST_F(CudaKvPair, APromptGoesOnFromBlocksThatComeByNccl) {
  if (cuda_devices() < 2) GTEST_SKIP() << "NCCL takes one rank of each GPU: this needs two";
  const PairNews news = join("DISABLED_PrefillWorker");
  ASSERT_EQ(news.what, PairNews::What::ready) << news.why;
  ASSERT_TRUE(copy_first({{9, 0}, {3, 1}}));
  EXPECT_EQ(bytes_of(*decode_, {0, 1}), sent_bytes(2 * decode_->block_bytes));
  EXPECT_EQ(decode_->run(128, 130, {0, 1, 2}), expected_);
  EXPECT_NE(decode_->run(128, 130, {7, 8, 2}), expected_) << "other blocks hold something else";
  for (int i = 0; i < 50; ++i) {
    decode_->run(0, 128, {0, 1}, 5);  // other contents than those that come
    decode_->start_copy({{9, 0}, {3, 1}});
    EXPECT_EQ(decode_->run(128, 130, {0, 1, 2}), expected_) << i;
    EXPECT_TRUE(decode_->open_copies == 0 || decode_->end_copy());
  }
  EXPECT_FALSE(decode_->copy({{9, 0}}, kLife + 1)) << "that life is of another memory";
  decode_->executor->detach_peer(0, 0);
  EXPECT_FALSE(decode_->copy({{9, 0}}));
}

TEST_F(CudaKvPair, TheReceiverIsFreeAtOnceWhenTheSenderIsKilled) {
  if (cuda_devices() < 2) GTEST_SKIP() << "NCCL takes one rank of each GPU: this needs two";
  killed_ = true;
  EXPECT_LT(stalled_copy([this] { ::kill(sender_, SIGKILL); }), 2s);
}

TEST_F(CudaKvPair, TheReceiverIsFreeWithinItsLimitWhenTheSenderIsStopped) {
  if (cuda_devices() < 2) GTEST_SKIP() << "NCCL takes one rank of each GPU: this needs two";
  const Duration took = stalled_copy([this] { ::kill(sender_, SIGSTOP); });
  EXPECT_GE(took, PairLimits{}.move - 100ms);
  EXPECT_LT(took, PairLimits{}.move + 1s);
}

TEST_F(CudaKvPair, OneGpuForBothIsRefusedInASentence) {
  const PairNews news = join("DISABLED_PrefillWorker", kPrefillGpu);
  EXPECT_EQ(news.what, PairNews::What::refused);
  EXPECT_EQ(news.why.find("both instances are on GPU "), 0u) << news.why;
  EXPECT_FALSE(decode_->copy({{9, 0}}));
}

}  // namespace
}  // namespace troupe::model
