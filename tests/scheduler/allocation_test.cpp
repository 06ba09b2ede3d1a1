// In its steady state the scheduler allocates nothing. Every allocation of this executable is counted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"

namespace {
std::size_t allocations = 0;
std::size_t allocated_bytes = 0;
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  allocated_bytes += bytes;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace troupe {
namespace {

TEST(Allocation, DecodingAllocatesNothing) {
  constexpr std::int32_t kSequences = 64;
  constexpr int kSteps = 900;  // 14 blocks of each
  Scheduler scheduler({});
  CacheManager cache;
  StepOutput out;
  CacheAsks asks;
  CacheGrants grants;
  wire::Capacity capacity;
  capacity.kv_blocks = 4096;
  capacity.max_slots = kSequences;
  capacity.max_tokens_per_step = 2048;
  capacity.max_model_len = 8192;
  capacity.vocab_size = 100;
  cache.reset(1, capacity.kv_blocks, capacity.block_tokens);
  scheduler.attach(1, capacity, out);
  Submit request;
  for (std::uint64_t k = 1; k <= kSequences; ++k) {
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, k};
    spec.host = static_cast<std::uint32_t>(k % 2);
    spec.prompt.assign(20 + k, 7);
    spec.prompt_tokens = static_cast<std::int32_t>(spec.prompt.size());
    spec.max_output_tokens = 4000;
  }
  ASSERT_TRUE(scheduler.submit(request).ok());

  wire::RecordWriter<wire::StepResult> writer;
  std::vector<wire::ResultRow> rows;
  std::vector<TokenId> tokens;
  std::vector<std::byte> plan;
  const auto exchange = [&] {
    while (scheduler.take_asks(asks)) {
      cache.answer(asks, grants);
      scheduler.granted(grants);
    }
  };
  std::size_t in_steps = 0;
  const auto step = [&] {
    std::size_t before = allocations;
    exchange();
    const std::span<const std::byte> bytes = scheduler.plan(1);
    in_steps += allocations - before;

    plan.assign(bytes.begin(), bytes.end());
    wire::RecordView view;
    ASSERT_TRUE(wire::RecordView::open(plan, view));
    rows.clear();
    tokens.clear();
    for (const wire::PlanRow& row : view.array(view.as<wire::StepPlan>()->rows)) {
      if ((row.flags & wire::kSamples) == 0) continue;
      rows.push_back({row.slot, static_cast<std::int32_t>(tokens.size()), 1, wire::RowError::none, 0});
      tokens.push_back(3);
    }
    writer.begin(1);
    const auto row_span = writer.array(rows);
    const auto token_span = writer.array(tokens);
    writer.record().step = view.as<wire::StepPlan>()->step;
    writer.record().rows = row_span;
    writer.record().tokens = token_span;

    before = allocations;
    ASSERT_EQ(scheduler.commit(writer.finish(), out), Committed::applied);
    in_steps += allocations - before;
  };
  for (int i = 0; i < 100; ++i) step();
  ASSERT_EQ(scheduler.running(), kSequences);
  in_steps = 0;
  for (int i = 0; i < kSteps; ++i) step();
  ASSERT_EQ(scheduler.running(), kSequences);
  // Only lists that grow by doubling allocate: tokens and blocks of each sequence. Nothing per token.
  EXPECT_LE(in_steps, 12u * kSequences) << kSteps * kSequences << " tokens";
}

TEST(Allocation, TheChoicesOfAPromptShareItsIds) {
  constexpr std::size_t kPrompt = 50'000;
  constexpr std::uint64_t kChoices = 128;
  Scheduler scheduler({});
  StepOutput out;
  wire::Capacity capacity;
  capacity.kv_blocks = 4096;
  capacity.max_slots = 16;
  capacity.max_tokens_per_step = 2048;
  capacity.max_model_len = 100'000;
  capacity.vocab_size = 100;
  scheduler.attach(1, capacity, out);
  Submit request;
  for (std::uint64_t k = 1; k <= kChoices; ++k) {
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, k};
    if (k == 1) spec.prompt.assign(kPrompt, 7);
    if (k > 1) spec.parent = {1, 1};
    spec.prompt_tokens = kPrompt;
    spec.max_output_tokens = 10;
  }
  const std::size_t before = allocated_bytes;
  ASSERT_TRUE(scheduler.submit(request).ok());
  EXPECT_LT(allocated_bytes - before, kPrompt * sizeof(TokenId)) << "no copy of the ids";
  EXPECT_EQ(scheduler.waiting(), static_cast<std::int32_t>(kChoices));
}

}  // namespace
}  // namespace troupe
