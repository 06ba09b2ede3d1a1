// Steps allocate nothing once the first ones have passed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/support/draft.h"
#include "model/support/files.h"
#include "model/support/plans.h"

namespace {
std::atomic<long> allocations{0};
}

// Out of line: inlined, the compiler sees malloc's memory go to delete and warns.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace troupe::model {
namespace {

TEST(Allocation, NoneInASteadyState) {
  auto files = open_model({.directory = test::golden_directory("gqa3_tied").string()});
  ASSERT_TRUE(files.ok());
  wire::Capacity capacity;
  capacity.kv_blocks = 16;
  capacity.max_slots = 4;
  capacity.max_tokens_per_step = 64;
  capacity.max_model_len = 256;
  capacity.vocab_size = files->spec.vocab;
  config::Options options;
  options.device.cpu_threads = 2;
  auto executor = make_cpu_executor(*files, options, capacity);
  ASSERT_TRUE(executor.ok());

  // Two sequences, one of them with all that sampling offers, from token 20 to token 120 and twice over.
  test::Plans plans;
  std::vector<std::byte> out;
  const wire::Sampling rich{.temperature = 1,
                            .top_p = 0.9f,
                            .min_p = 0.01f,
                            .top_k = 50,
                            .repetition_penalty = 1.1f,
                            .frequency_penalty = 0.1f,
                            .min_tokens = 200,
                            .seed = 3,
                            .logprobs = 20};
  const std::vector<TokenId> prompt(20, 5);
  for (std::uint32_t generation = 1; generation <= 2; ++generation) {
    const SlotRef a{0, generation}, b{1, generation};
    if (generation > 1) plans.finish({0, 1}).finish({1, 1});
    plans.start(a, 20, 20, rich, {1, 2}, {{7, 1.0f}})
        .ids(a, 0, prompt)
        .blocks(a, 0, {0, 1, 2})
        .row(a, 0, 20, true);
    plans.start(b, 20, 20).ids(b, 0, prompt).blocks(b, 0, {3, 4, 5}).row(b, 0, 20, true);
    ASSERT_TRUE((*executor)->submit(plans.plan()).ok());
    for (int position = 20; position < 120; ++position) {
      const wire::RecordView next = plans.row(a, position, 1, true).row(b, position, 1, true).plan();
      const long before = allocations.load();
      ASSERT_TRUE((*executor)->submit(next).ok());
      const auto got = (*executor)->poll(out, Clock::now());
      ASSERT_TRUE(got.ok() && *got);
      if (generation == 2) {
        ASSERT_EQ(allocations.load(), before) << "at position " << position;
      }
    }
    ASSERT_TRUE(*(*executor)->poll(out, Clock::now()));
  }
}

TEST(Allocation, NoneInDrafts) {
  const auto files = test::open_with_draft("gqa3_tied");
  ASSERT_TRUE(files.ok());
  Cpu device({.threads = 2, .pin = false});
  const auto decoder = test::make_decoder(device, files->spec, files->formats, files->map);
  ASSERT_TRUE(decoder.ok());
  const test::DraftGolden golden = test::load_draft_golden("gqa3_tied");
  test::DraftSequence a{golden.ids, {1, 2}, 0}, b{golden.ids, {3, 4}, 1};
  StepBatch batch;
  kernels::SampleResult results[2];
  for (int step = 0; step < 70; ++step) {
    batch.clear();
    a.add_to(batch, 1);
    b.add_to(batch, 1);
    test::run_layers(**decoder, batch);
    const DraftRows rows[] = {{.sequence = 0, .rows = 1, .blocks = a.blocks.data(), .next = a.next()},
                              {.sequence = 1, .rows = 1, .blocks = b.blocks.data(), .next = b.next()}};
    const DraftAgain again[] = {{.of = 1, .token = 5}, {.of = 0, .token = 6}};
    const long before = allocations.load();
    (*decoder)->draft_rows(batch, rows, results);
    for (int i = 0; i < 2; ++i) (*decoder)->draft_again(again, results);
    if (step > 1) {
      ASSERT_EQ(allocations.load(), before) << step;
    }
  }
}

}  // namespace
}  // namespace troupe::model
