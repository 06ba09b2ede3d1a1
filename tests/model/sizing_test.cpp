#include "model/sizing.h"

#include <gtest/gtest.h>

#include "model/bytes_text.h"
#include "model/cuda/step_memory.h"
#include "model/decoder.h"
#include "model/host_memory.h"
#include "model/plan_check.h"
#include "model/support/files.h"
#include "model/support/shapes.h"

namespace troupe::model {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

using test::small_ernie;

Result<wire::Capacity> size(const config::Options& options, std::uint64_t available) {
  return size_cpu(small_ernie(), DType::bf16, true, options, available);
}

TEST(Sizing, DefaultsTakeAQuarterOfWhatIsLeft) {
  const auto capacity = size({}, 8 * kGiB);
  ASSERT_TRUE(capacity.ok()) << capacity.status().message;
  EXPECT_EQ(capacity->max_slots, 32);
  EXPECT_EQ(capacity->max_tokens_per_step, 512);
  EXPECT_EQ(capacity->weight_bytes / 1'000'000, 721u);  // twice 360.7 M parameters, norms in fp32
  const std::uint64_t left = 8 * kGiB - capacity->weight_bytes - capacity->arena_bytes;
  EXPECT_EQ(static_cast<std::uint64_t>(capacity->kv_blocks), left / 4 / 1'179'648);
  EXPECT_EQ(capacity->kv_bytes, static_cast<std::uint64_t>(capacity->kv_blocks) * 1'179'648);
  EXPECT_EQ(capacity->max_model_len, capacity->kv_blocks * 64) << "what memory fits";
}

TEST(Sizing, ALengthThatWasFoundMayShrinkAndOneThatWasAskedForMayNot) {
  config::Options options;
  options.scheduler.found_model_len = size({}, 4 * kGiB)->max_model_len;
  const auto less = size(options, 4 * kGiB - (std::uint64_t{64} << 20));
  ASSERT_TRUE(less.ok()) << less.status().message;
  EXPECT_EQ(less->max_model_len, less->kv_blocks * 64);
  EXPECT_LT(less->max_model_len, options.scheduler.found_model_len);
  const auto more = size(options, 8 * kGiB);
  EXPECT_EQ(more->max_model_len, options.scheduler.found_model_len) << "what the engine tells its clients";
  options.scheduler.max_model_len = options.scheduler.found_model_len;
  EXPECT_FALSE(size(options, 4 * kGiB - (std::uint64_t{64} << 20)).ok());
}

TEST(Sizing, KvTakesAtMostFourGiB) {
  const auto capacity = size({}, 1000 * kGiB);
  EXPECT_EQ(static_cast<std::uint64_t>(capacity->kv_blocks), 4 * kGiB / 1'179'648);
  EXPECT_EQ(capacity->max_model_len, 131072);
  EXPECT_EQ(sequences_at_full_length(*capacity), 1);
}

TEST(Sizing, KvTakesNoMoreThanAllSequencesUse) {
  config::Options options;
  options.scheduler.max_model_len = 130;  // three blocks
  options.scheduler.max_num_seqs = 5;
  EXPECT_EQ(size(options, 100 * kGiB)->kv_blocks, 15);
}

TEST(Sizing, AskedForSizesAreTaken) {
  config::Options options;
  options.device.cpu_kv_bytes = 10 * 1'179'648 + 5;
  options.scheduler.max_num_seqs = 3;
  options.scheduler.max_num_batched_tokens = 64;
  const auto capacity = size(options, 8 * kGiB);
  EXPECT_EQ(capacity->kv_blocks, 10);
  EXPECT_EQ(capacity->max_model_len, 640);
  EXPECT_EQ(capacity->max_slots, 3);
  EXPECT_EQ(capacity->max_tokens_per_step, 64);
  options.device.num_gpu_blocks_override = 20;
  EXPECT_EQ(size(options, 8 * kGiB)->kv_blocks, 20);
}

void refused(const config::Options& options, std::uint64_t available, const std::string& part) {
  const auto capacity = size(options, available);
  ASSERT_FALSE(capacity.ok()) << part;
  EXPECT_NE(capacity.status().message.find(part), std::string::npos) << capacity.status().message;
}

TEST(Sizing, TooLittleMemoryNamesTheFlag) {
  refused({}, kGiB / 2, "512 MiB are free; the weights alone");
  refused({}, std::uint64_t{690} << 20, "--max-num-seqs needs less");
  config::Options options;
  options.device.num_gpu_blocks_override = 100'000;
  refused(options, 8 * kGiB, "--num-gpu-blocks-override");
  options = {};
  options.device.cpu_kv_bytes = static_cast<std::int64_t>(16 * kGiB);
  refused(options, 8 * kGiB, "--cpu-kv-bytes");
  options.device.cpu_kv_bytes = 1;
  refused(options, 8 * kGiB, "--cpu-kv-bytes is 1; a sequence of 1 tokens needs at least 1179648.");
  options = {};
  options.scheduler.max_model_len = 131072;
  refused(options, 4 * kGiB, "--max-model-len");
}

TEST(Sizing, LimitsOfTheModelHold) {
  config::Options options;
  options.scheduler.max_model_len = 131073;
  refused(options, 100 * kGiB, "at most 131072");
  options = {};
  options.scheduler.block_size = 32;
  refused(options, 100 * kGiB, "--block-size");
}

TEST(Sizing, EchoHasTheLimitsItIsGiven) {
  config::Options options;
  options.scheduler.max_num_seqs = 256;
  options.scheduler.max_model_len = 2048;
  const auto capacity = size_echo(nullptr, options);
  EXPECT_EQ(capacity->kv_blocks, 256 * 32);
  const ModelSpec spec = small_ernie();
  EXPECT_EQ(size_echo(&spec, options)->vocab_size, 103424);
}

TEST(Sizing, LogprobsBesideATokenAreTheLargerLimitUpToTheVocabulary) {
  ModelSpec spec = small_ernie();
  const auto most = [&spec](int limit, int of_completions) {
    config::Options options;
    options.limits.max_logprobs = limit;
    options.limits.max_completion_logprobs = of_completions;
    return size_echo(&spec, options)->max_logprobs;
  };
  EXPECT_EQ(most(20, 20), 20);
  EXPECT_EQ(most(0, 5), 20) << "takes no memory";
  EXPECT_EQ(most(50, 20), 50);
  EXPECT_EQ(most(20, 60), 60);
  EXPECT_EQ(most(-1, 20), 103424);
  EXPECT_EQ(most(20, -1), 103424);
  EXPECT_EQ(most(1'000'000, 20), 103424);
  spec.vocab = 300'000;
  EXPECT_EQ(most(-1, -1), wire::kMostTopLogprobs) << "what a result holds";
  spec.vocab = 7;
  EXPECT_EQ(most(-1, -1), 7);
}

// A server whose limits are the default ones has no memory for more.
TEST(Sizing, MemoryForManyLogprobsIsTakenWhereTheyAreAllowed) {
  const auto arena = [](int limit) {
    config::Options options;
    options.limits.max_logprobs = limit;
    return size(options, 8 * kGiB)->arena_bytes;
  };
  EXPECT_EQ(arena(0), arena(20));
  EXPECT_GT(arena(21), arena(20));
  EXPECT_LE(arena(21), arena(20) + wire::kMaxResultBytes + 4096);
  EXPECT_EQ(arena(-1), arena(21));
}

TEST(Sizing, BytesAreReadable) {
  EXPECT_EQ(bytes_text(270 << 20), "270 MiB");
  EXPECT_EQ(bytes_text(kGiB * 3 / 2), "1.50 GiB");
}

TEST(Sizing, ARefusalNamesEachPartAndTheSum) {
  HostMemory memory = kGiB;
  memory.reserved = std::uint64_t{256} << 20;
  memory.limit = " under the limit of 1.00 GiB in /a/memory.max";
  config::Options options;
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = 16;
  options.device.num_gpu_blocks_override = 100;
  const auto refused = size_cpu(small_ernie(), DType::bf16, true, options, memory);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code, Code::unavailable);
  const std::string& message = refused.status().message;
  const auto roomy = size(options, 8 * kGiB);
  ASSERT_TRUE(roomy.ok());
  const std::uint64_t sum = roomy->weight_bytes + roomy->arena_bytes + roomy->kv_bytes + memory.reserved;
  config::QuantizationOptions eight_bits;
  eight_bits.method = "wint8";
  const auto formats = *choose_formats(small_ernie(), DType::bf16, config::Device::cpu, eight_bits);
  const auto smaller = size_cpu(small_ernie(), formats, true, options, 8 * kGiB);
  ASSERT_TRUE(smaller.ok());
  EXPECT_EQ(message, "Too little memory: the weights (" + bytes_text(roomy->weight_bytes) +
                         "), activations (" + bytes_text(roomy->arena_bytes) + "), 100 KV blocks (" +
                         bytes_text(roomy->kv_bytes) + ") and the rest of the server (256 MiB) take " +
                         bytes_text(sum) +
                         ", 1.00 GiB are free under the limit of 1.00 GiB in /a/memory.max; lower "
                         "--num-gpu-blocks-override; with --quantization wint8 the weights take " +
                         bytes_text(smaller->weight_bytes) + ", and everything fits.");
  EXPECT_TRUE(size(options, sum).ok()) << "without a reserve";
  memory.available = sum;
  EXPECT_TRUE(size_cpu(small_ernie(), DType::bf16, true, options, memory).ok());
}

TEST(Sizing, ThereIsRoomForAThousandTokensOrARefusal) {
  const auto roomy = size({}, 8 * kGiB);
  ASSERT_TRUE(roomy.ok());
  const std::uint64_t fixed = roomy->weight_bytes + roomy->arena_bytes,
                      sixteen = 16 * std::uint64_t{1'179'648};
  const auto tight = size({}, fixed + sixteen);
  ASSERT_TRUE(tight.ok()) << tight.status().message;
  EXPECT_EQ(tight->kv_blocks, 16);
  EXPECT_EQ(tight->max_model_len, 1024);
  refused({}, fixed + sixteen - 1, "KV blocks for 1024 tokens");
  config::Options options;
  options.scheduler.max_model_len = 64;
  EXPECT_EQ(size(options, fixed + sixteen - 1)->max_model_len, 64);
}

TEST(Sizing, KvIsAQuarterOfWhatIsLeftBesideTheReserve) {
  HostMemory memory = 3 * kGiB;
  memory.reserved = kGiB;
  const auto capacity = size_cpu(small_ernie(), DType::bf16, true, {}, memory);
  ASSERT_TRUE(capacity.ok());
  EXPECT_EQ(capacity->kv_blocks, size({}, 2 * kGiB)->kv_blocks);
}

TEST(HostMemory, ReadsWhatTheSystemSays) {
  EXPECT_EQ(parse_meminfo("MemTotal:  100 kB\nMemAvailable:   42 kB\n"), 42u * 1024);
  EXPECT_EQ(parse_meminfo("MemTotal: 100 kB\n"), std::nullopt);
  EXPECT_GT(host_memory().available, 1u << 20);
}

TEST(HostMemory, TheSmallerOfMachineAndControlGroupCounts) {
  const test::TempDirectory root;
  const auto file = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root.path() / path).parent_path());
    test::write_text(root.path() / path, text);
  };
  file("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable:   2097152 kB\n");
  EXPECT_EQ(host_memory(root.path()).available, 2 * kGiB);
  EXPECT_EQ(host_memory(root.path()).limit, "");
  file("proc/self/cgroup", "4:memory:/pod\n0::/\n");
  file("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "1073741824\n");
  file("sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "536870912\n");
  EXPECT_EQ(host_memory(root.path()).available, kGiB / 2);
  EXPECT_EQ(host_memory(root.path()).limit,
            " under the limit of 1.00 GiB in /sys/fs/cgroup/memory/pod/memory.limit_in_bytes");
  file("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "8589934592\n");
  EXPECT_EQ(host_memory(root.path()).available, 2 * kGiB) << "more than the machine has";
  EXPECT_EQ(host_memory(root.path()).limit, "");
}

// ------------------------------------------------------------------------------------------- CUDA

Result<wire::Capacity> size_gpu(const config::Options& options, const GpuMemory& memory) {
  return size_cuda(small_ernie(), DType::bf16, true, options, memory);
}

TEST(CudaSizing, DefaultsTakeNineTenthsOfTheWhole) {
  const auto capacity = size_gpu({}, {139 * kGiB, 140 * kGiB});
  ASSERT_TRUE(capacity.ok()) << capacity.status().message;
  EXPECT_EQ(capacity->max_slots, 512);
  EXPECT_EQ(capacity->max_tokens_per_step, 8192);
  EXPECT_EQ(capacity->max_model_len, 131072);
  EXPECT_EQ(capacity->embedding_width, small_ernie().hidden);
  // 126 GiB in all: less 1 that others have, weights, activations and a share for what cannot be told.
  const std::uint64_t left = 125 * kGiB - cuda_fixed_bytes(*capacity, small_ernie(), DType::bf16);
  EXPECT_EQ(static_cast<std::uint64_t>(capacity->kv_blocks), left / 1'179'904);
  EXPECT_EQ(sequences_at_full_length(*capacity), capacity->kv_blocks / 2048);
}

TEST(CudaSizing, TheDraftLayerIsCounted) {
  config::Options options;
  options.speculation = {.method = config::DraftMethod::mtp, .tokens = 2, .mtp_steps = 2};
  ModelSpec drafting = small_ernie();
  drafting.draft_layers = 1;
  const auto drafts = cuda_limits(drafting, DType::bf16, true, options);
  ASSERT_TRUE(drafts.ok()) << drafts.status().message;
  EXPECT_EQ(drafts->max_drafts, 2);
  EXPECT_EQ(drafts->max_sampled, 512 + 256);
  const DecoderLimits limits{
      .rows = 8192, .sequences = 512, .drafts = 256, .staged = false, .tops = most_tops(*drafts)};
  const Activations made = Activations::make(drafting, DType::bf16, limits, {});
  EXPECT_EQ(drafts->arena_bytes, made.bytes + StepMemory::make(*drafts, {}).bytes);
  // Logits of drafts lie beside those of the step's rows, which a held row has still to sample from.
  DecoderLimits staged = limits;
  staged.staged = true;
  EXPECT_EQ(made.bytes - Activations::make(drafting, DType::bf16, staged, {}).bytes,
            std::size_t{512} * 103'424 * sizeof(float));
}

TEST(CudaSizing, WorkingMemoryOfFormatsIsCounted) {
  const ModelSpec spec = test::large_mixture();
  wire::Capacity capacity;
  capacity.max_tokens_per_step = 2048;
  capacity.max_slots = 32;
  const auto fixed = [&](const WeightFormats& formats) { return cuda_fixed_bytes(capacity, spec, formats); };
  WeightFormats kv = DType::bf16, fp8 = DType::bf16, int4 = DType::bf16, head = DType::bf16;
  kv.kv = kernels::KvFormat::int8;
  fp8.attention = fp8.mlp = fp8.experts = {kernels::WeightKind::fp8, DType::bf16};
  head.lm_head = {kernels::WeightKind::int8, DType::bf16};
  // The experts' rows of 2,048 tokens take less than the pages that prefill expands, 131,072 tokens of 4 KV
  // heads, beside partial results.
  const std::uint64_t rows = 2048 * (6 + 2), experts = rows * (2560 + 1536) * 2,
                      pages = std::uint64_t{131072} * 2 * 4 * 128 * 2;
  EXPECT_GT(fixed(kv) - fixed(DType::bf16) + experts, pages);
  EXPECT_LT(fixed(kv) - fixed(DType::bf16) + experts, pages + pages / 4);
  int4.experts = {kernels::WeightKind::int4, DType::bf16};
  EXPECT_EQ(fixed(int4) - fixed(DType::bf16), std::uint64_t{2048} * 2560 * 2) << "the rows, interleaved";
  int4.experts = {kernels::WeightKind::int4, DType::bf16, 64};
  EXPECT_EQ(fixed(int4), fixed(DType::bf16)) << "unpacked in registers, and x is read as it lies";
  // A byte for each number, and four for 128: of the rows and of the activations.
  const std::uint64_t numbers = 2048 * 2560 + rows * 1536;
  EXPECT_EQ(fixed(fp8) - fixed(DType::bf16), numbers + numbers / 128 * 4);
  // More than 256 rows of logits expand a head of codes.
  EXPECT_EQ(fixed(head), fixed(DType::bf16));
  capacity.max_slots = 512;
  EXPECT_GT(fixed(head) - fixed(DType::bf16) + experts, std::uint64_t{103424} * 2560 * 2 - experts / 16);
}

TEST(CudaSizing, FewerSequencesWhereBlocksAreFew) {
  config::Options options;
  for (const auto& [blocks, sequences] :
       {std::pair{8192, 512}, {8191, 256}, {4095, 128}, {600, 32}, {1, 32}}) {
    options.device.num_gpu_blocks_override = blocks;
    EXPECT_EQ(size_gpu(options, {139 * kGiB, 140 * kGiB})->max_slots, sequences) << blocks;
  }
  options.scheduler.max_model_len = 64;
  options.device.num_gpu_blocks_override = 512;
  EXPECT_EQ(size_gpu(options, {139 * kGiB, 140 * kGiB})->max_slots, 512) << "a block for each";
  options.device.num_gpu_blocks_override = 1;
  options.scheduler.max_num_seqs = 1000;
  EXPECT_EQ(size_gpu(options, {139 * kGiB, 140 * kGiB})->max_slots, 1000) << "as asked";
}

// 41 GiB in bfloat16, 21 in 8 bits, 12 in wint4.
TEST(Sizing, AFormatThatWouldFitIsNamed) {
  const ModelSpec spec = test::large_mixture();
  const auto gpu = [&](std::uint64_t gib) {
    return size_cuda(spec, DType::bf16, true, {}, {gib * kGiB, gib * kGiB}).status().message;
  };
  EXPECT_EQ(gpu(80), "");
  EXPECT_NE(gpu(40).find("; with --quantization wint8 the weights take 20."), std::string::npos) << gpu(40);
  EXPECT_NE(gpu(20).find("; with --quantization wint4 the weights take 1"), std::string::npos) << gpu(20);
  EXPECT_EQ(gpu(4).find("--quantization"), std::string::npos) << gpu(4);
  const auto cpu = size_cpu(spec, DType::bf16, true, {}, 30 * kGiB).status().message;
  EXPECT_NE(cpu.find("; with --quantization wint8 the weights take 20."), std::string::npos) << cpu;
  config::Options options;
  options.quantization.method = "wint8";
  const auto wint8 = *choose_formats(spec, DType::bf16, config::Device::cpu, options.quantization);
  EXPECT_TRUE(size_cpu(spec, wint8, true, options, 30 * kGiB).ok());
  const auto four = size_cpu(spec, wint8, true, options, 16 * kGiB).status().message;
  EXPECT_NE(four.find("; with --quantization wint4 the weights take 1"), std::string::npos) << four;
}

TEST(CudaSizing, WhatOthersUseCountsAgainstUs) {
  const int alone = size_gpu({}, {140 * kGiB, 140 * kGiB})->kv_blocks;
  const int beside = size_gpu({}, {100 * kGiB, 140 * kGiB})->kv_blocks;
  EXPECT_NEAR(static_cast<double>(alone - beside) * 1'179'904, 40.0 * kGiB, 2e6);
}

TEST(CudaSizing, TheShareIsAsked) {
  config::Options options;
  options.device.gpu_memory_utilization = 0.5;
  const auto half = size_gpu(options, {140 * kGiB, 140 * kGiB});
  const std::uint64_t left = 70 * kGiB - cuda_fixed_bytes(*half, small_ernie(), DType::bf16);
  EXPECT_EQ(static_cast<std::uint64_t>(half->kv_blocks), left / 1'179'904);
}

TEST(CudaSizing, TheOverrideIsTaken) {
  config::Options options;
  options.device.num_gpu_blocks_override = 100;
  options.device.gpu_memory_utilization = 0.01;
  const auto capacity = size_gpu(options, {139 * kGiB, 140 * kGiB});
  ASSERT_TRUE(capacity.ok()) << capacity.status().message;
  EXPECT_EQ(capacity->kv_blocks, 100);
  EXPECT_EQ(capacity->kv_bytes, 100u * 1'179'904);
  EXPECT_EQ(capacity->max_model_len, 6400);
}

TEST(CudaSizing, NoMoreThanAllSequencesUse) {
  config::Options options;
  options.scheduler.max_model_len = 130;  // three blocks
  options.scheduler.max_num_seqs = 5;
  EXPECT_EQ(size_gpu(options, {139 * kGiB, 140 * kGiB})->kv_blocks, 15);
}

TEST(CudaSizing, ALengthThatWasFoundMayShrink) {
  config::Options options;
  options.scheduler.found_model_len = size_gpu({}, {4 * kGiB, 4 * kGiB})->max_model_len;
  ASSERT_LT(options.scheduler.found_model_len, 131072);
  const auto less = size_gpu(options, {4 * kGiB - (kGiB >> 3), 4 * kGiB});
  ASSERT_TRUE(less.ok()) << less.status().message;
  EXPECT_EQ(less->max_model_len, less->kv_blocks * 64);
  options.scheduler.max_model_len = options.scheduler.found_model_len;
  EXPECT_FALSE(size_gpu(options, {4 * kGiB - (kGiB >> 3), 4 * kGiB}).ok());
}

void refused_with(const config::Options& options, const GpuMemory& memory, const std::string& part) {
  const auto capacity = size_gpu(options, memory);
  ASSERT_FALSE(capacity.ok()) << part;
  EXPECT_EQ(capacity.status().code, Code::unavailable);
  EXPECT_NE(capacity.status().message.find(part), std::string::npos) << capacity.status().message;
  EXPECT_NE(capacity.status().message.find("are free"), std::string::npos) << capacity.status().message;
}

TEST(CudaSizing, TooLittleSaysWhichFlagHelps) {
  refused_with({}, {kGiB / 2, 80 * kGiB}, "512 MiB of 80.00 GiB");
  refused_with({}, {kGiB / 2, 80 * kGiB}, "the weights alone need a GPU with more free memory");
  refused_with({}, {kGiB, 80 * kGiB}, "--max-num-seqs");
  refused_with({}, {8 * kGiB, 80 * kGiB}, "raise --gpu-memory-utilization");
  config::Options options;
  options.device.num_gpu_blocks_override = 1'000'000;
  refused_with(options, {139 * kGiB, 140 * kGiB}, "lower --num-gpu-blocks-override");
  options = {};
  options.scheduler.max_model_len = 100'000;
  options.device.num_gpu_blocks_override = 10;
  refused_with(options, {139 * kGiB, 140 * kGiB}, "KV blocks for 100000 tokens");
}

}  // namespace
}  // namespace troupe::model
