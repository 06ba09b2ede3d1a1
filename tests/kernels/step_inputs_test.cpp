// How a step's inputs reach the GPU and its results come back: padding, sampled tokens, deltas, the pieces of
// the ring one after the other, also from a graph. No model runs; the test itself writes the step's results.
#include "kernels/step_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "gpu/cuda.h"
#include "gpu/cuda_graph.h"
#include "gpu/pinned.h"

namespace troupe::kernels {
namespace {

constexpr int kRows = 700;
constexpr int kSequences = 40;
constexpr int kPieces = 3;
constexpr int kDeltas = 300;
constexpr std::size_t kWords = 40'000;  // of what deltas change
constexpr int kBlocks = 160, kIdsToNextBlock = 100;

PieceLayout make_layout() {
  PieceLayout made;
  std::uint32_t end = 16;  // room for a StepPiece
  const auto take = [&end](std::size_t bytes) {
    const std::uint32_t at = end;
    end += static_cast<std::uint32_t>((bytes + 15) / 16 * 16);
    return at;
  };
  made.rows = take(kRows * sizeof(InputRow));
  made.slots = take(kRows * sizeof(KvSlot));
  made.sequences = take(kSequences * sizeof(SequenceRows));
  made.samples = take(kSequences * sizeof(SampleRow));
  made.picks = take(kSequences * sizeof(std::int32_t));
  made.deltas = take((kDeltas + kMostDeltaBlocks) * sizeof(Delta));
  made.words = take(std::size_t{64} << 10);
  made.bytes = end;
  return made;
}

class StepInputsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device = std::make_unique<Cuda>();
    layout = make_layout();
    inputs = PinnedMemory(kPieces * layout.bytes);
    outcomes = PinnedMemory(kPieces * outcome_bytes(kSequences));
    take(clock, 1);
    take(arrays.tokens, kRows);
    take(arrays.positions, kRows);
    take(arrays.slots, kRows);
    take(arrays.sequences, kSequences);
    take(arrays.samples, kSequences);
    take(arrays.picks, kSequences + 1);
    take(changed, kWords);
    take(last_sampled, kSequences);
    take(block_ids, kBlocks * kIdsToNextBlock);
    take(results, kSequences);
  }
  void TearDown() override {
    for (void* memory : taken) device->free(memory);
  }

  template <class T>
  void take(T*& pointer, std::size_t count) {
    pointer = static_cast<T*>(device->alloc(count * sizeof(T)));
    taken.push_back(pointer);
  }
  template <class T>
  std::vector<T> read(const T* from, std::size_t count) {
    std::vector<T> values(count);
    device->download(values.data(), from, count * sizeof(T));
    device->sync();
    return values;
  }
  template <class T>
  void write(T* to, const std::vector<T>& values) {
    device->upload(to, values.data(), values.size() * sizeof(T));
  }

  template <class T>
  T* in_piece(std::uint32_t at) {
    return reinterpret_cast<T*>(inputs.data() + step % kPieces * layout.bytes + at);
  }

  void run_inputs(int rows, int sequences, int samples) {
    run(*device, StepInputs{.ring = inputs.data(),
                            .layout = layout,
                            .pieces = kPieces,
                            .clock = clock,
                            .into = arrays,
                            .sampled = last_sampled,
                            .block_ids = block_ids,
                            .ids_to_next_block = kIdsToNextBlock,
                            .rows = rows,
                            .sequences = sequences,
                            .samples = samples});
  }
  void collect(int samples) {
    run(*device, CollectOutcome{.ring = outcomes.data(),
                                .pieces = kPieces,
                                .most_samples = kSequences,
                                .clock = clock,
                                .rows = arrays.samples,
                                .results = results,
                                .samples = samples});
  }
  const std::byte* outcome(std::uint64_t of) const {
    return outcomes.data() + of % kPieces * outcome_bytes(kSequences);
  }

  // A batch of `count` decode rows and padding. Row r belongs to slot r, at position 10 + step.
  void write_decode(int count) {
    for (int r = count; r < kSequences; ++r) {
      in_piece<InputRow>(layout.rows)[r] = {0, 0};
      in_piece<KvSlot>(layout.slots)[r] = {kPaddingBlock, 0};
      in_piece<SequenceRows>(layout.sequences)[r] = {nullptr, 0, 0, r};
      in_piece<SampleRow>(layout.samples)[r] = {.logits_row = -1};
    }
    for (int r = 0; r < count; ++r) {
      const int position = 10 + static_cast<int>(step);
      in_piece<InputRow>(layout.rows)[r] = {sampled_by(static_cast<std::uint32_t>(r)), position};
      in_piece<KvSlot>(layout.slots)[r] = {100 + r, position % 64};
      in_piece<SequenceRows>(layout.sequences)[r] = {nullptr, position, 1, r};
      in_piece<SampleRow>(layout.samples)[r] = {.logits_row = r, .seed = 1000u + static_cast<unsigned>(r)};
      in_piece<std::int32_t>(layout.picks)[r] = r;
    }
  }

  std::unique_ptr<Cuda> device;
  PieceLayout layout;
  PinnedMemory inputs, outcomes;
  StepArrays arrays;
  StepClock* clock = nullptr;
  TokenId *changed = nullptr, *last_sampled = nullptr, *block_ids = nullptr;
  SampleResult* results = nullptr;
  std::vector<void*> taken;
  std::uint64_t step = 0;
};

TEST_F(StepInputsTest, AGraphServesEveryBatchUpToItsSize) {
  std::vector<TokenId> known(kSequences);
  std::iota(known.begin(), known.end(), 300);
  write(last_sampled, known);
  const CudaGraph graph = CudaGraph::capture(*device, [&] {
    run_inputs(kSequences, kSequences, kSequences);
    collect(kSequences);
  });
  for (const int count : {40, 1, 0, 39, 7}) {
    write(block_ids, std::vector<TokenId>(kBlocks * kIdsToNextBlock, -1));
    write_decode(count);
    graph.launch(*device);
    const auto tokens = read(arrays.tokens, kSequences);
    const auto positions = read(arrays.positions, kSequences);
    const auto slots = read(arrays.slots, kSequences);
    const auto sequences = read(arrays.sequences, kSequences);
    const auto samples = read(arrays.samples, kSequences);
    const auto in_blocks = read(block_ids, kBlocks * kIdsToNextBlock);
    EXPECT_EQ(std::count(in_blocks.begin(), in_blocks.end(), -1), kBlocks * kIdsToNextBlock - count);
    for (int r = 0; r < kSequences; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const bool real = r < count;
      const int position = 10 + static_cast<int>(step);
      EXPECT_EQ(tokens[at], real ? 300 + r : 0) << r << " of " << count;
      if (real) {
        EXPECT_EQ(in_blocks[static_cast<std::size_t>((100 + r) * kIdsToNextBlock + position % 64)], 300 + r);
      }
      EXPECT_EQ(positions[at], real ? position : 0);
      EXPECT_EQ(slots[at].block, real ? 100 + r : kPaddingBlock);
      EXPECT_EQ(sequences[at].tokens, real ? 1 : 0);
      EXPECT_EQ(sequences[at].row, r);
      EXPECT_EQ(samples[at].logits_row, real ? r : -1);
      if (real) {
        EXPECT_EQ(samples[at].seed, 1000u + at);
      }
    }
    ++step;
  }
}

TEST_F(StepInputsTest, PromptRowsAndTheirPicks) {
  for (const int rows : {1, 63, 128, 700}) {
    for (int r = 0; r < rows; ++r) {
      in_piece<InputRow>(layout.rows)[r] = {5000 + r, r};
      in_piece<KvSlot>(layout.slots)[r] = {r / 64, r % 64};
    }
    in_piece<SequenceRows>(layout.sequences)[0] = {reinterpret_cast<const BlockId*>(changed), 0, rows, 0};
    in_piece<SampleRow>(layout.samples)[0] = {.logits_row = 0};
    in_piece<std::int32_t>(layout.picks)[0] = rows - 1;
    run_inputs(rows, 1, 1);
    const auto tokens = read(arrays.tokens, static_cast<std::size_t>(rows));
    const auto in_blocks = read(block_ids, kBlocks * kIdsToNextBlock);
    for (int r = 0; r < rows; ++r) {
      ASSERT_EQ(tokens[static_cast<std::size_t>(r)], 5000 + r);
      ASSERT_EQ(in_blocks[static_cast<std::size_t>(r / 64 * kIdsToNextBlock + r % 64)], 5000 + r);
    }
    EXPECT_EQ(read(arrays.slots, static_cast<std::size_t>(rows)).back().offset, (rows - 1) % 64);
    EXPECT_EQ(read(arrays.sequences, 1)[0].blocks, reinterpret_cast<const BlockId*>(changed));
    EXPECT_EQ(read(arrays.picks, 1)[0], rows - 1);
    collect(1);
    ++step;
  }
}

TEST_F(StepInputsTest, DeltasOfEveryLengthArrive) {
  std::vector<std::uint32_t> source(std::size_t{16} << 10);
  std::iota(source.begin(), source.end(), 1u);
  for (const int stride : {1, 7, 100}) {
    write(changed, std::vector<TokenId>(kWords, -5));
    std::memcpy(in_piece<std::uint32_t>(layout.words), source.data(), source.size() * 4);
    std::vector<TokenId> expected(kWords, -5);
    auto* words = reinterpret_cast<std::uint32_t*>(changed);
    int count = 0;
    std::size_t to = 3;
    for (unsigned length = 1; length <= kWordsOfDelta && to + length < expected.size() && count < kDeltas;
         length += static_cast<unsigned>(stride)) {
      const unsigned from = length * 13 % 1000;
      const bool inline_word = length == 1;
      in_piece<Delta>(layout.deltas)[count++] = {words + to, inline_word ? 4711u : layout.words + from * 4,
                                                 length};
      for (unsigned w = 0; w < length; ++w) {
        expected[to + w] = static_cast<TokenId>(inline_word ? 4711u : source[from + w]);
      }
      to += length + 1;
    }
    run_inputs(8, 8, 8);  // few blocks for many deltas
    EXPECT_EQ(read(changed, expected.size()), expected) << stride;
    collect(0);
    ++step;
  }
}

TEST_F(StepInputsTest, AHeldStepEndsBehindItsGates) {
  constexpr std::size_t kWords = 3;
  SampleRow* held_rows = nullptr;
  std::int32_t* gates = nullptr;
  std::uint32_t* masks = nullptr;
  take(held_rows, kSequences);
  take(gates, kSequences);
  take(masks, kWords * kSequences);
  const auto number = [&](std::uint64_t of) {
    return reinterpret_cast<const StepOutcome*>(outcome(of))->step;
  };
  for (int round = 0; round < 2 * kPieces + 1; ++round) {
    write_decode(40);
    std::vector<std::int32_t> gate(kSequences, kClosedGate);
    std::vector<SampleResult> made(kSequences);
    for (int r = 0; r < 40; ++r) {
      made[static_cast<std::size_t>(r)].token = r * 11 + round;
      if (r % 3 != 0) continue;
      gate[static_cast<std::size_t>(r)] = r % 2 == 0 ? r / 2 : kGateWithoutMask;
      in_piece<SampleRow>(layout.samples)[r] = {
          .logits_row = -1, .top_k = r, .known_tokens = r == 6 ? 0 : 5, .logprobs = r % 2 - 1};
    }
    write(gates, gate);
    write(results, made);
    in_piece<Delta>(layout.deltas)[0] = {&clock->held, 1, 1};
    run_inputs(kSequences, kSequences, kSequences);
    collect(kSequences);
    device->sync();
    EXPECT_NE(number(step), step + 1) << "it is held";
    EXPECT_EQ(read(clock, 1)[0].held, 1u);
    const int samples = round % 2 == 1 ? 0 : kSequences;  // given up every second time
    run(*device, OpenGates{.clock = clock,
                           .rows = arrays.samples,
                           .held_rows = held_rows,
                           .gates = gates,
                           .masks = masks,
                           .mask_words = kWords,
                           .samples = samples});
    collect(samples);
    device->sync();
    EXPECT_EQ(number(step), step + 1);
    EXPECT_EQ(read(clock, 1)[0].held, 0u);
    in_piece<Delta>(layout.deltas)[0] = {};
    const auto* sampled = reinterpret_cast<const Sampled*>(outcome(step) + sampled_at());
    ++step;
    if (samples == 0) continue;
    const std::vector<SampleRow> rows = read(arrays.samples, kSequences), drawn = read(held_rows, kSequences);
    for (int r = 0; r < kSequences; ++r) {
      const auto& row = drawn[static_cast<std::size_t>(r)];
      const bool opens = r < 40 && r % 3 == 0 && r != 6;
      EXPECT_EQ(row.logits_row, opens ? r : -1) << r;
      if (r < 40 && r != 6) {
        EXPECT_EQ(sampled[r].token, r * 11 + round) << r;
      }
      if (!opens) continue;
      EXPECT_EQ(row.top_k, r);
      EXPECT_EQ(row.mask, r % 2 == 0 ? masks + kWords * static_cast<std::size_t>(r / 2) : nullptr) << r;
      EXPECT_EQ(rows[static_cast<std::size_t>(r)].logits_row, r);
    }
    EXPECT_EQ(rows[6].logits_row, -1) << "it does not run";
  }
}

TEST_F(StepInputsTest, TheOutcomeHoldsTokensAndWantedLogprobs) {
  for (int round = 0; round < 5; ++round) {
    write_decode(40);
    for (int r = 0; r < 40; ++r) in_piece<SampleRow>(layout.samples)[r].logprobs = r % 3 == 0 ? r % 21 : -1;
    std::vector<SampleResult> made(kSequences);
    for (int r = 0; r < kSequences; ++r) {
      SampleResult& one = made[static_cast<std::size_t>(r)];
      one.token = r * 11 + round;
      one.error = r == 5 ? SampleError::not_finite : SampleError::none;
      one.logprob = -0.5f * static_cast<float>(r);
      one.top_count = r % 21;
      one.top[19] = {r, 1.0f};
    }
    write(results, made);
    run_inputs(kSequences, kSequences, kSequences);
    collect(kSequences);
    device->sync();
    const auto* head = reinterpret_cast<const StepOutcome*>(outcome(step));
    EXPECT_EQ(head->step, step + 1);
    EXPECT_GT(head->started_ns, 0u);
    EXPECT_GE(head->finished_ns, head->started_ns);
    const auto* sampled = reinterpret_cast<const Sampled*>(outcome(step) + sampled_at());
    const auto* full = reinterpret_cast<const SampleResult*>(outcome(step) + results_at(kSequences));
    for (int r = 0; r < kSequences; ++r) {
      EXPECT_EQ(sampled[r].token, r * 11 + round);
      EXPECT_EQ(sampled[r].error, r == 5 ? SampleError::not_finite : SampleError::none);
      if (r % 3 != 0) continue;
      EXPECT_EQ(full[r].logprob, -0.5f * static_cast<float>(r));
      EXPECT_EQ(full[r].top_count, r % 21);
      EXPECT_EQ(full[r].top[19].token, r);
    }
    ++step;
  }
}

}  // namespace
}  // namespace troupe::kernels
