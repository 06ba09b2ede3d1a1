// The KV memory of a worker that another instance's worker reads.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "base/owned_fd.h"
#include "gpu/cuda.h"
#include "model/support/split_worker.h"

namespace troupe::model {
namespace {

using test::kBlocks;
using test::kLife;
using Worker = test::SplitWorker;

/// The memory of `worker` as another one is told of it.
PeerKvMemory memory_of(const Worker& worker) {
  return {0, 1, worker.executor->kv_memory_fd(), kBlocks, worker.block_bytes, kLife};
}

class PeerKvMemoryTest : public ::testing::TestWithParam<config::Device> {
 protected:
  void SetUp() override {
    if (GetParam() != config::Device::cuda) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
  Worker prefill_worker() const { return {GetParam(), config::SplitRole::prefill}; }
  Worker decode_worker() const { return {GetParam(), config::SplitRole::decode}; }
};

TEST_P(PeerKvMemoryTest, APromptGoesOnFromTheBlocksThatAnotherInstanceHasFilled) {
  Worker prefill = prefill_worker(), decode = decode_worker();
  const float expected = decode.run(0, 130, {4, 5, 6});
  prefill.run(0, 128, {9, 3});
  ASSERT_TRUE(decode.executor->attach_peer(0, memory_of(prefill)).ok());
  ASSERT_TRUE(decode.copy({{9, 0}, {3, 1}}));
  EXPECT_EQ(decode.run(128, 130, {0, 1, 2}), expected);
  EXPECT_NE(decode.run(128, 130, {7, 8, 2}), expected) << "other blocks hold something else";
}

TEST_P(PeerKvMemoryTest, ItStaysReadableWhenItsOwnerHasGone) {
  Worker decode = decode_worker();
  const float expected = decode.run(0, 130, {4, 5, 6});
  {
    Worker prefill = prefill_worker();
    prefill.run(0, 128, {9, 3});
    ASSERT_TRUE(decode.executor->attach_peer(0, memory_of(prefill)).ok());
  }
  ASSERT_TRUE(decode.copy({{9, 0}, {3, 1}}));
  EXPECT_EQ(decode.run(128, 130, {0, 1, 2}), expected);
  decode.executor->detach_peer(0, 0);
  EXPECT_FALSE(decode.copy({{9, 0}}));
}

TEST_P(PeerKvMemoryTest, ACopyFailsUnlessThatLifeOfTheMemoryHasTheBlocks) {
  Worker prefill = prefill_worker(), decode = decode_worker();
  EXPECT_FALSE(decode.copy({{0, 0}})) << "nothing is attached yet";
  ASSERT_TRUE(decode.executor->attach_peer(0, memory_of(prefill)).ok());
  EXPECT_TRUE(decode.copy({{0, 0}}));
  EXPECT_FALSE(decode.copy({{0, 0}}, kLife + 1));
  EXPECT_FALSE(decode.copy({{0, 0}}, kLife, 1));
  EXPECT_TRUE(decode.copy({{kBlocks - 1, 0}}));
  EXPECT_FALSE(decode.copy({{kBlocks, 0}}));
}

TEST_P(PeerKvMemoryTest, OnlyADecodeInstanceReadsBlocksAndOnlyOfItsOwnSize) {
  Worker prefill = prefill_worker(), decode = decode_worker(), mixed(GetParam(), config::SplitRole::mixed);
  EXPECT_EQ(mixed.executor->kv_memory_fd(), -1);
  EXPECT_EQ(decode.executor->kv_memory_fd(), -1);
  EXPECT_FALSE(mixed.executor->attach_peer(0, memory_of(prefill)).ok());
  PeerKvMemory other = memory_of(prefill);
  other.block_bytes *= 2;
  const std::string size = std::to_string(prefill.block_bytes),
                    twice = std::to_string(2 * prefill.block_bytes);
  EXPECT_EQ(decode.executor->attach_peer(0, other).message,
            "a KV block of rank 0 of the other instance has " + twice +
                " bytes, for this one it would have " + size);
  other = memory_of(prefill);
  other.rank = 1;
  const std::string refusal = decode.executor->attach_peer(0, other).message;
  EXPECT_EQ(refusal.find("rank 1 of 1 of the other instance is none that "), 0u) << refusal;
}

TEST_P(PeerKvMemoryTest, WhatIsNoSuchMemoryIsRefusedAndTheDeviceGoesOn) {
  Worker prefill = prefill_worker(), decode = decode_worker();
  PeerKvMemory memory = memory_of(prefill);
  const OwnedFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {-1, null.get()}) {
    memory.fd = fd;
    EXPECT_FALSE(decode.executor->attach_peer(0, memory).ok());
  }
  memory = memory_of(prefill);
  memory.blocks *= 1000;
  EXPECT_FALSE(decode.executor->attach_peer(0, memory).ok()) << "it is shorter";
  EXPECT_FALSE(decode.copy({{0, 0}}));
  EXPECT_NE(decode.run(0, 130, {4, 5, 6}), 0);
}

TEST_P(PeerKvMemoryTest, CopiesBesideStepsHaveEndedBeforeTheStepThatNamesThem) {
  Worker prefill = prefill_worker(), decode = decode_worker();
  const float expected = decode.run(0, 130, {4, 5, 6});
  prefill.run(0, 128, {9, 3});
  ASSERT_TRUE(decode.executor->attach_peer(0, memory_of(prefill)).ok());
  for (int i = 0; i < 50; ++i) {
    decode.run(0, 128, {0, 1}, 5);  // other contents than those that come
    decode.start_copy({{9, 0}, {3, 1}});
    EXPECT_EQ(decode.run(128, 130, {0, 1, 2}), expected) << i;
    EXPECT_TRUE(decode.open_copies == 0 || decode.end_copy());
  }
}

INSTANTIATE_TEST_SUITE_P(OnEveryDevice, PeerKvMemoryTest,
                         ::testing::Values(config::Device::cpu, config::Device::cuda), [](const auto& info) {
                           return std::string(info.param == config::Device::cuda ? "cuda" : "cpu");
                         });

}  // namespace
}  // namespace troupe::model
