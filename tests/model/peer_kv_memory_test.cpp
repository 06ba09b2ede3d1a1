// The KV memory of a worker that another instance's worker reads.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/owned_fd.h"
#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/sizing.h"
#include "model/support/files.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

constexpr std::uint64_t kLife = 41;
constexpr std::int32_t kBlocks = 16;

struct Worker {
  Worker(config::Device device, config::SplitRole role) {
    const bool on_gpu = device == config::Device::cuda;
    config::Options options;
    options.model.directory = test::golden_directory("gqa8_tied").string();
    options.device.cpu_threads = 1;
    options.device.num_gpu_blocks_override = kBlocks;
    options.device.batch_invariant = true;
    options.scheduler.max_num_seqs = 4;
    options.scheduler.max_num_batched_tokens = 256;
    options.scheduler.max_model_len = 256;
    options.split.role = role;
    auto files = open_model(options.model);
    EXPECT_TRUE(files.ok() && files->choose(device, {}).ok());
    block_bytes =
        (on_gpu ? cuda_kv_shape(files->spec, files->formats) : kv_shape(files->spec, files->formats))
            .block_bytes();
    wire::Capacity capacity;
    capacity.kv_blocks = kBlocks;
    capacity.max_slots = 4;
    capacity.max_tokens_per_step = 256;
    capacity.max_model_len = 256;
    capacity.vocab_size = files->spec.vocab;
    auto made = on_gpu ? make_cuda_executor(*files, options) : make_cpu_executor(*files, options, capacity);
    EXPECT_TRUE(made.ok()) << made.status().message;
    executor = std::move(*made);
  }

  /// The logprob of the token that follows the first `count` ids of a prompt, of which [from, count) are run.
  float run(int from, int count, const std::vector<BlockId>& blocks, int first_id = 37) {
    std::vector<TokenId> ids;
    for (int i = 0; i < count; ++i) ids.push_back((first_id + i * 11) % 90);
    const SlotRef slot{0, ++generation};
    plans.start(slot, count, count, {.temperature = 0, .logprobs = 0})
        .ids(slot, 0, ids)
        .blocks(slot, 0, blocks)
        .row(slot, from, count - from, true)
        .after(command_id);
    const Status status = executor->submit(plans.plan());
    EXPECT_TRUE(status.ok()) << status.message;
    plans.finish(slot);
    std::vector<std::byte> out = take();
    const bool copied = test::open_view(out).as<wire::CacheDone>() != nullptr;  // a copy that was started
    if (copied) out = take();
    const wire::RecordView view = test::open_view(out);
    const auto* result = view.as<wire::StepResult>();
    EXPECT_TRUE(result != nullptr && result->logprobs.count == 1);
    open_copies -= copied ? 1 : 0;
    return result == nullptr ? 0 : view.array(result->logprobs)[0].chosen.logprob;
  }

  std::vector<std::byte> take() {
    std::vector<std::byte> out;
    const auto got = executor->poll(out, Clock::now() + troupe::test::kPatience);
    EXPECT_TRUE(got.ok() && *got);
    return out;
  }

  /// Whether blocks of another instance could be copied.
  bool copy(const std::vector<wire::BlockCopy>& copies, std::uint64_t life = kLife, std::uint32_t peer = 0) {
    start_copy(copies, life, peer);
    return end_copy();
  }
  void start_copy(const std::vector<wire::BlockCopy>& copies, std::uint64_t life = kLife,
                  std::uint32_t peer = 0) {
    wire::RecordWriter<wire::CacheCommand> writer;
    writer.begin(0);
    const auto span = writer.array(std::span<const wire::BlockCopy>(copies));
    writer.record().id = ++command_id;
    writer.record().op = wire::CacheOp::peer_in;
    writer.record().peer = peer;
    writer.record().memory = life;
    writer.record().copies = span;
    wire::RecordView record;
    EXPECT_TRUE(wire::RecordView::open(writer.finish(), record));
    const Status status = executor->submit(record);
    EXPECT_TRUE(status.ok()) << status.message;
    ++open_copies;
  }
  bool end_copy() {
    const std::vector<std::byte> out = take();
    --open_copies;
    const auto* done = test::open_view(out).as<wire::CacheDone>();
    EXPECT_TRUE(done != nullptr && done->id == command_id);
    return done != nullptr && done->failed == 0;
  }

  std::size_t block_bytes = 0;
  std::unique_ptr<Executor> executor;
  test::Plans plans;
  std::uint32_t generation = 0;
  std::uint64_t command_id = 0;
  int open_copies = 0;
};

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
