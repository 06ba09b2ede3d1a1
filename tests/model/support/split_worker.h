#pragma once
// A worker of a prefill or of a decode instance, with a small model.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "config/options.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/sizing.h"
#include "model/support/files.h"
#include "model/support/plans.h"
#include "support/patience.h"

namespace troupe::model::test {

inline constexpr std::uint64_t kLife = 41;
inline constexpr std::int32_t kBlocks = 16;

/// `remotes`: so many prefill engines on other machines give it blocks; instances of this machine do not
/// then. `gpu`: on which it is.
struct SplitWorker {
  SplitWorker(config::Device device, config::SplitRole role, int remotes = 0, int gpu = 0) {
    const bool on_gpu = device == config::Device::cuda;
    config::Options options;
    options.model.directory = golden_directory("gqa8_tied").string();
    options.device.cpu_threads = 1;
    options.device.num_gpu_blocks_override = kBlocks;
    options.device.batch_invariant = true;
    options.scheduler.max_num_seqs = 4;
    options.scheduler.max_num_batched_tokens = 256;
    options.scheduler.max_model_len = 256;
    options.split.role = role;
    if (gpu > 0) options.parallel.rank_devices = {gpu};
    if (role == config::SplitRole::decode && remotes == 0) options.split.prefill_ports = {7013};
    for (int i = 0; i < remotes; ++i)
      options.remote.prefill_engines.push_back("127.0.0.1:" + std::to_string(i + 1));
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
  /// It waits for the cache commands up to `after`; -1: all.
  float run(int from, int count, const std::vector<BlockId>& blocks, int first_id = 37,
            std::int64_t after = -1) {
    start_run(from, count, blocks, first_id, after);
    std::vector<std::byte> out = take();
    const bool copied = open_view(out).as<wire::CacheDone>() != nullptr;  // a copy that was started
    if (copied) out = take();
    const wire::RecordView view = open_view(out);
    const auto* result = view.as<wire::StepResult>();
    EXPECT_TRUE(result != nullptr && result->logprobs.count == 1);
    open_copies -= copied ? 1 : 0;
    return result == nullptr ? 0 : view.array(result->logprobs)[0].chosen.logprob;
  }
  void start_run(int from, int count, const std::vector<BlockId>& blocks, int first_id = 37,
                 std::int64_t after = -1) {
    std::vector<TokenId> ids;
    for (int i = 0; i < count; ++i) ids.push_back((first_id + i * 11) % 90);
    const SlotRef slot{0, ++generation};
    plans.start(slot, count, count, {.temperature = 0, .logprobs = 0})
        .ids(slot, 0, ids)
        .blocks(slot, 0, blocks)
        .row(slot, from, count - from, true)
        .after(after < 0 ? command_id : static_cast<std::uint64_t>(after));
    const Status status = executor->submit(plans.plan());
    EXPECT_TRUE(status.ok()) << status.message;
    plans.finish(slot);
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
                  std::uint32_t peer = 0, wire::CacheOp op = wire::CacheOp::peer_in,
                  std::uint64_t after = 0) {
    wire::RecordWriter<wire::CacheCommand> writer;
    writer.begin(0);
    const auto span = writer.array(std::span<const wire::BlockCopy>(copies));
    writer.record().id = ++command_id;
    writer.record().op = op;
    writer.record().after = after;
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
    const auto* done = open_view(out).as<wire::CacheDone>();
    EXPECT_TRUE(done != nullptr && done->id == command_id);
    return done != nullptr && done->failed == 0;
  }

  std::size_t block_bytes = 0;
  std::unique_ptr<Executor> executor;
  Plans plans;
  std::uint32_t generation = 0;
  std::uint64_t command_id = 0;
  int open_copies = 0;
};

}  // namespace troupe::model::test
