// KV blocks that come from another machine: out of one worker's memory and into another's, and what waits for
// them meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "gpu/cuda.h"
#include "ipc/block_fetches.h"
#include "model/sealed_memory.h"
#include "model/support/split_worker.h"

namespace troupe::model {
namespace {

using test::kBlocks;
using test::kLife;
using Worker = test::SplitWorker;

class RemotePeerTest : public ::testing::TestWithParam<config::Device> {
 protected:
  void SetUp() override {
    if (GetParam() == config::Device::cuda) {
      if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    }
    prefill_ = std::make_unique<Worker>(GetParam(), config::SplitRole::prefill);
    decode_ = std::make_unique<Worker>(GetParam(), config::SplitRole::decode, 2);
    // Each side has a mapping of its own, as processes have.
    const auto file = ipc::BlockFetches::create(4 * prefill_->block_bytes + 4 * 4096);
    given_ = std::make_unique<ipc::BlockFetches>(*ipc::BlockFetches::attach(file->get()));
    taken_ = std::make_unique<ipc::BlockFetches>(*ipc::BlockFetches::attach(file->get()));
    ASSERT_TRUE(taken_->begin(prefill_->block_bytes).ok());
    read_ = read_blocks();
    const Status attached = decode_->executor->attach_remote_peer(0, fetch(), taken_->memory());
    ASSERT_TRUE(attached.ok()) << attached.message;
  }

  /// What a worker whose memory others map does not give by itself.
  ReadBlock read_blocks() {
    auto read = prefill_->executor->block_reader(given_->memory());
    EXPECT_TRUE(read.ok());
    EXPECT_EQ(static_cast<bool>(*read), GetParam() == config::Device::cuda);
    if (*read) return *std::move(read);
    const std::size_t bytes = prefill_->block_bytes;
    auto mapped = std::make_shared<SealedMemory>(
        *SealedMemory::open(prefill_->executor->kv_memory_fd(), kBlocks * bytes));
    return [mapped, bytes](BlockId block, std::span<std::byte> into) {
      if (block < 0 || block >= kBlocks || into.size() != bytes) return false;
      const auto* const all = static_cast<const std::byte*>(mapped->data());
      std::memcpy(into.data(), all + static_cast<std::size_t>(block) * bytes, bytes);
      return true;
    };
  }
  FetchBlocks fetch() {
    return [this](std::uint64_t life, std::span<const wire::BlockCopy> copies, const auto& take,
                  const std::atomic<bool>& stop) {
      while (!goes_on_ && !stop) std::this_thread::yield();
      std::size_t slot = 0;
      for (const wire::BlockCopy& copy : copies) {
        if (stop || life != kLife || !read_(copy.from, given_->room(slot, prefill_->block_bytes)))
          return false;
        take(copy, taken_->contents(slot));
        slot = (slot + 1) % 4;
      }
      return true;
    };
  }
  static bool ends(Worker& worker, std::uint64_t id) {
    const std::vector<std::byte> out = worker.take();
    --worker.open_copies;
    const auto* const done = test::open_view(out).as<wire::CacheDone>();
    return done != nullptr && done->id == id && done->failed == 0;
  }

  std::unique_ptr<ipc::BlockFetches> given_, taken_;
  std::unique_ptr<Worker> prefill_;
  ReadBlock read_;  // ends before its worker
  std::atomic<bool> goes_on_{false};
  std::unique_ptr<Worker> decode_;
};

TEST_P(RemotePeerTest, APromptGoesOnFromTheBlocksThatAnotherMachineHasFilled) {
  const float expected = decode_->run(0, 130, {4, 5, 6});
  prefill_->run(0, 128, {9, 3});
  goes_on_ = true;
  ASSERT_TRUE(decode_->copy({{9, 0}, {3, 1}}));
  EXPECT_EQ(decode_->run(128, 130, {0, 1, 2}), expected);
  EXPECT_NE(decode_->run(128, 130, {7, 8, 2}), expected) << "other blocks hold something else";
  ASSERT_TRUE(decode_->copy({{9, 7}, {3, 8}, {0, 10}, {1, 11}, {2, 12}, {3, 13}, {4, 14}}));
  EXPECT_EQ(decode_->run(128, 130, {7, 8, 2}), expected) << "more than there is room for at a time";
}

TEST_P(RemotePeerTest, WhatCannotBeHadFails) {
  goes_on_ = true;
  EXPECT_FALSE(decode_->copy({{0, 0}}, kLife + 1));
  EXPECT_FALSE(decode_->copy({{kBlocks, 0}}));
  EXPECT_FALSE(decode_->copy({{0, 0}}, kLife, 1)) << "nobody has said how blocks of that engine come";
  EXPECT_TRUE(decode_->copy({{0, 0}}));
  EXPECT_FALSE(decode_->executor->attach_remote_peer(2, fetch(), taken_->memory()).ok()) << "no such engine";
}

TEST_P(RemotePeerTest, OnlyWhatDependsOnACopyWaitsForTheNetwork) {
  const float expected = decode_->run(0, 130, {4, 5, 6});
  prefill_->run(0, 128, {9, 3});
  decode_->start_copy({{9, 0}, {3, 1}});
  EXPECT_EQ(decode_->run(0, 130, {4, 5, 6}, 37, 0), expected);
  decode_->start_copy({{4, 10}}, 0, 0, wire::CacheOp::copy_blocks);
  EXPECT_TRUE(ends(*decode_, 2));
  decode_->start_copy({{0, 11}, {1, 12}}, 0, 0, wire::CacheOp::copy_blocks, /*after=*/1);
  decode_->start_run(128, 130, {11, 12, 2});  // behind the third command
  std::vector<std::byte> none;
  EXPECT_FALSE(*decode_->executor->poll(none, Clock::now() + std::chrono::milliseconds(20)));
  goes_on_ = true;
  EXPECT_TRUE(ends(*decode_, 1));
  EXPECT_TRUE(ends(*decode_, 3));
  const std::vector<std::byte> out = decode_->take();
  const wire::RecordView view = test::open_view(out);
  const auto* const result = view.as<wire::StepResult>();
  ASSERT_TRUE(result != nullptr && result->logprobs.count == 1);
  EXPECT_EQ(view.array(result->logprobs)[0].chosen.logprob, expected);
}

TEST_P(RemotePeerTest, AResetEndsACopyThatIsUnderWay) {
  decode_->start_copy({{9, 0}});
  decode_->start_copy({{0, 1}}, 0, 0, wire::CacheOp::copy_blocks, /*after=*/1);
  decode_->executor->reset(2);
  goes_on_ = true;
  decode_->command_id = 0;
  EXPECT_TRUE(decode_->copy({{9, 0}}));
}

INSTANTIATE_TEST_SUITE_P(Devices, RemotePeerTest,
                         ::testing::Values(config::Device::cpu, config::Device::cuda),
                         [](const auto& device) {
                           return device.param == config::Device::cpu ? "cpu" : "cuda";
                         });

}  // namespace
}  // namespace troupe::model
