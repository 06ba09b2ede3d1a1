// The swap space of a worker: the file, the copies beside the steps, and the tokens that come after them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/plan_check.h"
#include "model/support/files.h"
#include "model/support/plans.h"
#include "model/swap/checksum.h"
#include "model/swap/swap_copier.h"
#include "model/swap/swap_sizing.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;
using test::Commands;
using test::Plans;

constexpr std::size_t kBlockBytes = 1000;  // not a multiple of the checksum's words

std::vector<std::byte> pattern(int seed) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) * 31 + i * 7 + i / 256);
  return bytes;
}

class SwapFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "swap_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    path = folder / "swap";
  }
  void TearDown() override { fs::remove_all(folder); }
  std::string refusal(const fs::path& at, std::uint64_t bytes = 4096) const {
    const auto file = SwapFile::open(at.string(), bytes);
    EXPECT_FALSE(file.ok());
    return file.ok() ? "" : file.status().message;
  }

  fs::path folder, path;
};

TEST(Checksum, EveryByteAndItsPlaceCount) {
  std::vector<std::byte> bytes = pattern(1);
  const std::uint64_t whole = checksum(bytes);
  for (const std::size_t at : {std::size_t{0}, std::size_t{31}, std::size_t{500}, kBlockBytes - 1}) {
    std::vector<std::byte> other = bytes;
    other[at] ^= std::byte{1};
    EXPECT_NE(checksum(other), whole) << at;
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 8);
  EXPECT_NE(checksum(bytes), whole);
  EXPECT_NE(checksum(std::vector<std::byte>(64)), checksum(std::vector<std::byte>(72)));
}

TEST_F(SwapFiles, AFileIsAllocatedForItsUserAloneAndRemovedAtTheEnd) {
  {
    const auto file = SwapFile::open(path.string(), 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status().message;
    struct stat state {};
    ASSERT_EQ(::stat(path.c_str(), &state), 0);
    EXPECT_EQ(state.st_mode & 0777, 0600u);
    EXPECT_GE(state.st_blocks * 512, 1 << 20);
    EXPECT_EQ(refusal(path), "--swap-path is " + path.string() + "; another server uses it.");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SwapFiles, ErrorsAreOneSentenceAndTouchNoOtherFile) {
  std::ofstream(path) << "somebody's data";
  EXPECT_EQ(refusal(path), "--swap-path is " + path.string() +
                               "; the file holds other data: name one that does not exist yet.");
  EXPECT_EQ(fs::file_size(path), 15u);
  EXPECT_EQ(refusal(folder / "no" / "swap"), "--swap-path is " + (folder / "no" / "swap").string() +
                                                 "; it cannot be written: No such file or directory.");
  EXPECT_NE(refusal(folder).find("it cannot be written: Is a directory"), std::string::npos);
  EXPECT_NE(refusal("/dev/null").find("it has to be a regular file"), std::string::npos);
  const fs::path large = folder / "large";
  EXPECT_NE(refusal(large, std::uint64_t{1} << 52).find("its disk has no room for"), std::string::npos);
  EXPECT_FALSE(fs::exists(large));
}

TEST_F(SwapFiles, AFileThatAKilledServerLeftIsTakenOver) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto file = SwapFile::open(path.string(), 4096);
    ::_exit(file.ok() ? 0 : 1);  // without the destructor
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(fs::exists(path));
  EXPECT_TRUE(SwapFile::open(path.string(), 4096).ok());
}

TEST_F(SwapFiles, OnlyAFileThatNobodyUsesIsRemovedAsLeft) {
  {
    const auto file = SwapFile::open(path.string(), 4096);
    SwapFile::remove_left(path.string());
    EXPECT_TRUE(fs::exists(path));
    fs::copy_file(path, folder / "left");
  }
  SwapFile::remove_left((folder / "left").string());
  EXPECT_FALSE(fs::exists(folder / "left"));
  std::ofstream(path) << "somebody's data";
  SwapFile::remove_left(path.string());
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(SwapFiles, WhatWasTruncatedIsNotReadAndTheFileCanBeUsedAgain) {
  auto store = SwapStore::in_file(path.string(), 4, kBlockBytes);
  ASSERT_TRUE(store.ok()) << store.status().message;
  std::vector<std::byte> read(kBlockBytes);
  for (const int block : {0, 3}) {
    ASSERT_TRUE((*store)->write(block, pattern(block).data()));
    ASSERT_TRUE((*store)->read(block, read.data()));
    EXPECT_EQ(read, pattern(block));
  }
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  EXPECT_FALSE((*store)->read(0, read.data()));
  ASSERT_TRUE((*store)->write(3, pattern(5).data()));
  EXPECT_FALSE((*store)->read(0, read.data())) << "zeros now, up to block 3";
  EXPECT_TRUE((*store)->read(3, read.data()));
  ASSERT_TRUE((*store)->write(0, pattern(6).data()));
  EXPECT_TRUE((*store)->read(0, read.data()));

  fs::remove(path);
  EXPECT_TRUE((*store)->read(0, read.data())) << "a file without a name is as good";
  EXPECT_EQ(read, pattern(6));
}

TEST_F(SwapFiles, SomeoneElsesBytesAreNoticed) {
  auto store = SwapStore::in_file(path.string(), 4, kBlockBytes);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->write(1, pattern(1).data()));
  const int fd = ::open(path.c_str(), O_WRONLY);
  ASSERT_EQ(::pwrite(fd, "x", 1, 4096 + kBlockBytes + 999), 1);
  ::close(fd);
  std::vector<std::byte> read(kBlockBytes);
  EXPECT_FALSE((*store)->read(1, read.data()));
}

TEST(SwapSizing, TakesWhatIsAskedForOrSaysWhyNot) {
  wire::Capacity capacity;
  config::Options options;
  constexpr std::uint64_t kBlock = 1 << 20, kGiB = std::uint64_t{1} << 30;
  EXPECT_TRUE(size_swap(capacity, options, kBlock, kGiB).ok());
  EXPECT_EQ(capacity.swap_blocks, 0);
  options.cache.swap_space_gib = 0.5;
  EXPECT_TRUE(size_swap(capacity, options, kBlock, kGiB).ok());
  EXPECT_EQ(capacity.swap_blocks, 512);
  options.cache.swap_space_gib = 1.5;
  EXPECT_EQ(size_swap(capacity, options, kBlock, kGiB).message,
            "--swap-space is 1.5 GiB; only 1.00 GiB of memory are free beside the rest.");
  options.cache.swap_path = "/tmp/x";
  EXPECT_TRUE(size_swap(capacity, options, kBlock, kGiB).ok()) << "the disk's room counts";
  EXPECT_EQ(capacity.swap_blocks, 1536);
  EXPECT_EQ(size_cuda_swap(capacity, options, kBlock).message,
            "--swap-path is /tmp/x; it needs --device cpu: a GPU's blocks go to page-locked memory.");
  options.cache.swap_space_gib = 1e-6;
  EXPECT_EQ(size_swap(capacity, options, kBlock, kGiB).message,
            "--swap-space is 1e-06 GiB; one KV block takes 1048576 bytes.");
}

TEST(EndedCommands, CountsOnlyWithoutGaps) {
  EndedCommands ended;
  EXPECT_TRUE(ended.through(0));
  ended.end(3);
  ended.end(2);
  EXPECT_FALSE(ended.through(1));
  ended.end(1);
  EXPECT_TRUE(ended.through(3));
  EXPECT_FALSE(ended.through(4));
  ended.end(5);
  ended.end(4);
  EXPECT_TRUE(ended.through(5));
}

class Copier : public ::testing::Test {
 protected:
  Copier() : kv(8 * kBlockBytes), copier(std::move(*SwapStore::in_memory(8, kBlockBytes))) {
    copier.set_memory({{.data = kv.data(), .tail = kBlockBytes}, 1});
    for (int b = 0; b < 8; ++b) set(b, b);
  }
  void set(int block, int seed) {
    std::memcpy(kv.data() + static_cast<std::size_t>(block) * kBlockBytes, pattern(seed).data(), kBlockBytes);
  }
  bool holds(int block, int seed) const {
    return std::memcmp(kv.data() + static_cast<std::size_t>(block) * kBlockBytes, pattern(seed).data(),
                       kBlockBytes) == 0;
  }
  void submit(const wire::RecordView& record) {
    const auto& command = *record.as<wire::CacheCommand>();
    copier.submit(command, record.array(command.copies));
  }
  EndedCommand next() {
    EndedCommand ended;
    EXPECT_TRUE(copier.take_ended(ended, Clock::now() + troupe::test::kPatience));
    return ended;
  }

  std::vector<std::byte> kv;
  SwapCopier copier;
  Commands commands;
};

TEST_F(Copier, CopiesOutAndIn) {
  submit(commands.swap_out({{1, 6}, {2, 0}}));
  EXPECT_EQ(next().id, 1u);
  submit(commands.swap_in({{6, 3}, {0, 4}}));
  const EndedCommand ended = next();
  EXPECT_EQ(ended.id, 2u);
  EXPECT_FALSE(ended.failed);
  EXPECT_LE(ended.started_ns, ended.finished_ns);
  EXPECT_TRUE(holds(3, 1) && holds(4, 2));
  EXPECT_TRUE(copier.through(2));
  EXPECT_EQ(copier.open(), 0u);
}

TEST_F(Copier, WaitsForWhatACommandComesAfterAndForNothingElse) {
  (void)commands.copy({{0, 1}});  // command 1 is the caller's own
  submit(commands.swap_out({{1, 1}}, 1));
  submit(commands.swap_out({{2, 2}}));
  EXPECT_EQ(next().id, 3u);
  EndedCommand ended;
  EXPECT_FALSE(copier.take_ended(ended, Clock::now() + std::chrono::milliseconds(20)));
  EXPECT_FALSE(copier.through(3));
  copier.end(1);
  EXPECT_EQ(next().id, 2u);
  EXPECT_TRUE(copier.through(3));
}

TEST_F(Copier, AResetForgetsWaitingCommandsAndNumbersStartAgain) {
  submit(commands.make(wire::CacheOp::swap_out, {{1, 1}}, 1, 2));
  copier.reset();
  EXPECT_EQ(copier.open(), 0u);
  submit(commands.swap_out({{3, 3}}));
  EXPECT_EQ(next().id, 1u);
}

TEST(SwapPlans, OnlyBlocksThatExistAreCopied) {
  wire::Capacity capacity;
  capacity.kv_blocks = 4;
  capacity.swap_blocks = 9;
  PlanCheck check(capacity);
  const auto verdict = [&check](wire::CacheOp op, std::vector<wire::BlockCopy> copies, std::uint64_t after,
                                std::uint64_t id) {
    Commands commands;
    const wire::RecordView view = commands.make(op, copies, after, id);
    return check.admit(view, *view.as<wire::CacheCommand>()).message;
  };
  using Op = wire::CacheOp;
  EXPECT_EQ(verdict(Op::swap_out, {{3, 8}, {3, 0}}, 0, 1), "");
  EXPECT_EQ(verdict(Op::swap_in, {{8, 3}, {8, 0}}, 1, 2), "") << "one swap block to two tables";
  EXPECT_EQ(verdict(Op::swap_out, {{4, 0}}, 0, 3), "cache command 3: no block 4");
  EXPECT_EQ(verdict(Op::swap_out, {{0, 9}}, 0, 3), "cache command 3: no swap block 9");
  EXPECT_EQ(verdict(Op::swap_in, {{-1, 0}}, 0, 3), "cache command 3: no swap block -1");
  EXPECT_EQ(verdict(Op::swap_in, {{0, 4}}, 0, 3), "cache command 3: no block 4");
  EXPECT_EQ(verdict(Op::swap_out, {{0, 5}, {1, 5}}, 0, 3), "cache command 3: swap block 5 is a target twice");
  EXPECT_EQ(verdict(Op::swap_in, {{1, 1}, {2, 1}}, 0, 3), "cache command 3: block 1 is a target twice");
  EXPECT_EQ(verdict(Op::swap_in, {{1, 1}}, 3, 3), "cache command 3 waits for 3");
  EXPECT_EQ(verdict(Op(5), {{1, 1}}, 0, 3), "cache command 3: unknown operation");
  EXPECT_EQ(verdict(Op::swap_out, {{0, 5}}, 2, 3), "") << "refused ones change nothing";
}

// On each device: the KV of a prompt is copied out, overwritten, copied back to other blocks, and continued.
class SwapExecutor : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    }
    config::Options options;
    options.model.directory = test::golden_directory("gqa8_tied").string();
    options.device.cpu_threads = 2;
    options.device.num_gpu_blocks_override = 32;
    options.device.batch_invariant = true;
    options.scheduler.max_num_seqs = 4;
    options.scheduler.max_num_batched_tokens = 256;
    options.scheduler.max_model_len = 256;
    auto files = open_model(options.model);
    ASSERT_TRUE(files.ok()) << files.status().message;
    ASSERT_TRUE(files->choose(GetParam() ? config::Device::cuda : config::Device::cpu, {}).ok());
    const auto block_bytes = static_cast<double>(kv_shape(files->spec, files->formats).block_bytes());
    options.cache.swap_space_gib = 8.5 * block_bytes / (1 << 30);
    wire::Capacity capacity;
    capacity.kv_blocks = 32;
    capacity.max_slots = 4;
    capacity.max_tokens_per_step = 256;
    capacity.max_model_len = 256;
    capacity.vocab_size = files->spec.vocab;
    capacity.swap_blocks = 8;
    auto made =
        GetParam() ? make_cuda_executor(*files, options) : make_cpu_executor(*files, options, capacity);
    ASSERT_TRUE(made.ok()) << made.status().message;
    executor = std::move(*made);
    ASSERT_EQ(executor->capacity().swap_blocks, 8);
  }

  static std::vector<TokenId> ids(int seed, int count) {
    std::vector<TokenId> made;
    for (int i = 0; i < count; ++i) made.push_back((seed * 37 + i * 11) % 90);
    return made;
  }

  /// Submits a row that runs [from, count) of a prompt in these blocks and samples greedily with its logprob.
  void run(std::uint32_t slot, int seed, int from, int count, const std::vector<BlockId>& blocks,
           std::uint64_t after = 0) {
    plans.start({slot, ++generation}, count, count, {.temperature = 0, .logprobs = 0})
        .ids({slot, generation}, 0, ids(seed, count))
        .blocks({slot, generation}, 0, blocks)
        .row({slot, generation}, from, count - from, true)
        .after(after);
    const Status status = executor->submit(plans.plan());
    ASSERT_TRUE(status.ok()) << status.message;
    plans.finish({slot, generation});
  }
  void submit(const wire::RecordView& command) {
    const Status status = executor->submit(command);
    ASSERT_TRUE(status.ok()) << status.message;
  }
  /// The next record: a step's logprob, or a command's end, noted in `ended`.
  float take() {
    for (;;) {
      std::vector<std::byte> out;
      const auto got = executor->poll(out, Clock::now() + troupe::test::kPatience);
      EXPECT_TRUE(got.ok() && *got) << got.status().message;
      if (!got.ok() || !*got) return 0;
      const wire::RecordView view = test::open_view(out);
      if (const auto* done = view.as<wire::CacheDone>()) {
        ended[done->id] = done->failed == 0;
        continue;
      }
      const auto* result = view.as<wire::StepResult>();
      EXPECT_EQ(result->logprobs.count, 1u);
      return view.array(result->logprobs)[0].chosen.logprob;
    }
  }

  std::unique_ptr<Executor> executor;
  Plans plans;
  Commands commands;
  std::uint32_t generation = 0;
  std::map<std::uint64_t, bool> ended;
};

TEST_P(SwapExecutor, ContentsSurviveTheWayOutAndBack) {
  run(0, 1, 0, 130, {20, 21, 22});
  const float expected = take();
  run(0, 1, 0, 128, {0, 1});
  take();
  // What the plans behind it write, and the way back, come after the way out.
  submit(commands.swap_out({{0, 5}, {1, 2}}));
  run(1, 2, 0, 128, {0, 1}, 1);
  submit(commands.swap_in({{5, 10}, {2, 11}}, 1));
  run(2, 1, 128, 130, {10, 11, 12}, 2);
  take();
  EXPECT_EQ(take(), expected);
  EXPECT_EQ(ended, (std::map<std::uint64_t, bool>{{1, true}, {2, true}}));
  run(2, 1, 128, 130, {0, 1, 13});
  EXPECT_NE(take(), expected) << "the blocks really hold something else";
}

TEST_P(SwapExecutor, ManyRoundsWithStepsInFlight) {
  run(0, 1, 0, 130, {20, 21, 22});
  const float expected = take();
  run(0, 1, 0, 128, {0, 1});
  take();
  BlockId at = 0;
  for (std::uint64_t round = 0; round < 30; ++round) {
    const BlockId next = (at + 3) % 18;
    const auto swap = static_cast<BlockId>(round % 4 * 2);
    submit(commands.swap_out({{at, swap}, {at + 1, swap + 1}}, 2 * round));
    run(1, static_cast<int>(round), 0, 128, {at, at + 1}, 2 * round + 1);
    submit(commands.swap_in({{swap, next}, {swap + 1, next + 1}}, 2 * round + 1));
    run(2, 1, 128, 130, {next, next + 1, 23}, 2 * round + 2);
    take();
    ASSERT_EQ(take(), expected) << round;
    at = next;
  }
}

TEST_P(SwapExecutor, AResetForgetsCommandsInFlight) {
  run(0, 1, 0, 128, {0, 1});
  take();
  submit(commands.swap_out({{0, 0}, {1, 1}}));
  executor->reset(1);
  Commands again;
  submit(again.swap_out({{0, 0}}));
  std::vector<std::byte> out;
  const auto got = executor->poll(out, Clock::now() + troupe::test::kPatience);
  ASSERT_TRUE(got.ok() && *got);
  EXPECT_EQ(test::open_view(out).as<wire::CacheDone>()->id, 1u);
}

INSTANTIATE_TEST_SUITE_P(Devices, SwapExecutor, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "gpu" : "cpu"; });

}  // namespace
}  // namespace troupe::model
