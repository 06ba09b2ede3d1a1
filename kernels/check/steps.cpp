// Checks of a step's way into the GPU and out of it, by what the host has written.
#include "gpu/pinned.h"
#include "kernels/check/expect.h"
#include "kernels/check/side.h"
#include "kernels/step_inputs.h"

namespace troupe::kernels::check {
namespace {

constexpr int kStepRows = 40, kRealRows = 37, kStepPieces = 2, kStepPosition = 10, kIdsToNextBlock = 100,
              kStepBlocks = kStepRows + 1;
constexpr std::size_t kStepMaskWords = 3;

PieceLayout step_layout() {
  PieceLayout made;
  std::uint32_t end = 16;  // room for a StepPiece
  const auto take = [&end](std::size_t bytes) {
    const std::uint32_t at = end;
    end += static_cast<std::uint32_t>((bytes + 15) / 16 * 16);
    return at;
  };
  made.rows = take(kStepRows * sizeof(InputRow));
  made.slots = take(kStepRows * sizeof(KvSlot));
  made.sequences = take(kStepRows * sizeof(SequenceRows));
  made.samples = take(kStepRows * sizeof(SampleRow));
  made.picks = take(kStepRows * sizeof(std::int32_t));
  made.deltas = take((16 + kMostDeltaBlocks) * sizeof(Delta));
  made.words = take(4096);
  made.bytes = end;
  return made;
}

/// Decode rows of slots 0 … kRealRows - 1, each of which takes what was sampled for its slot, and padding.
class DecodeStep {
 public:
  explicit DecodeStep(Cuda& cuda)
      : side_(cuda),
        layout_(step_layout()),
        ring_(kStepPieces * layout_.bytes),
        outcomes_(kStepPieces * outcome_bytes(kStepRows)) {
    clock_ = side_.room<StepClock>(1);
    arrays_ = {.tokens = side_.room<TokenId>(kStepRows),
               .positions = side_.room<std::int32_t>(kStepRows),
               .slots = side_.room<KvSlot>(kStepRows),
               .sequences = side_.room<SequenceRows>(kStepRows),
               .samples = side_.room<SampleRow>(kStepRows),
               .picks = side_.room<std::int32_t>(kStepRows + 2)};
    std::vector<TokenId> sampled;
    for (int r = 0; r < kStepRows; ++r) sampled.push_back(300 + r);
    sampled_ = side_.put(sampled);
    block_ids_ = side_.room<TokenId>(kStepBlocks * kIdsToNextBlock);
    changed_ = side_.room<std::uint32_t>(64);
    std::vector<SampleResult> results(kStepRows);
    for (int r = 0; r < kStepRows; ++r) {
      results[static_cast<std::size_t>(r)].token = 11 * r;
      results[static_cast<std::size_t>(r)].logprob = -0.5f * static_cast<float>(r);
    }
    results_ = side_.put(results);
    std::memset(ring_.data(), 0, kStepPieces * layout_.bytes);
    for (int r = 0; r < kStepRows; ++r) {
      const bool real = r < kRealRows;
      piece<InputRow>(layout_.rows)[r] =
          real ? InputRow{sampled_by(static_cast<std::uint32_t>(r)), kStepPosition} : InputRow{};
      piece<KvSlot>(layout_.slots)[r] = real ? KvSlot{1 + r, kStepPosition} : KvSlot{kPaddingBlock, 0};
      piece<SequenceRows>(layout_.sequences)[r] = {nullptr, real ? kStepPosition : 0, real ? 1 : 0, r};
      piece<SampleRow>(layout_.samples)[r] = {.logits_row = real ? r : -1,
                                              .seed = 1000u + static_cast<unsigned>(r),
                                              .known_tokens = 5,
                                              .logprobs = r % 2 - 1};
      piece<std::int32_t>(layout_.picks)[r] = r;
    }
    for (std::uint32_t w = 0; w < 40; ++w) piece<std::uint32_t>(layout_.words)[w] = 7000 + w;
    piece<Delta>(layout_.deltas)[0] = {changed_, layout_.words, 40};
    piece<Delta>(layout_.deltas)[1] = {changed_ + 50, 4711, 1};
  }

  /// The rows `gated` wait: they are padding for now, and the step is held.
  void hold(const std::vector<int>& gated) {
    for (const int r : gated) piece<SampleRow>(layout_.samples)[r].logits_row = -1;
    piece<Delta>(layout_.deltas)[2] = {&clock_->held, 1, 1};
  }

  void take_inputs() {
    run(side_.device(), StepInputs{.ring = ring_.data(),
                                   .layout = layout_,
                                   .pieces = kStepPieces,
                                   .clock = clock_,
                                   .into = arrays_,
                                   .sampled = sampled_,
                                   .block_ids = block_ids_,
                                   .ids_to_next_block = kIdsToNextBlock,
                                   .rows = kStepRows,
                                   .sequences = kStepRows,
                                   .samples = kStepRows,
                                   .deltas = 3});
  }
  void collect() {
    run(side_.device(), CollectOutcome{.ring = outcomes_.data(),
                                       .pieces = kStepPieces,
                                       .most_samples = kStepRows,
                                       .clock = clock_,
                                       .rows = arrays_.samples,
                                       .results = results_,
                                       .samples = kStepRows});
    side_.device().sync();
  }
  template <class T>
  const T* outcome(std::size_t at) const {
    return reinterpret_cast<const T*>(outcomes_.data() + at);
  }

  Side<Cuda>& side() { return side_; }
  const StepArrays& arrays() const { return arrays_; }
  StepClock* clock() const { return clock_; }
  const TokenId* block_ids() const { return block_ids_; }
  const std::uint32_t* changed() const { return changed_; }

 private:
  template <class T>
  T* piece(std::uint32_t at) {
    return reinterpret_cast<T*>(ring_.data() + at);
  }

  Side<Cuda> side_;
  PieceLayout layout_;
  PinnedMemory ring_, outcomes_;
  StepClock* clock_ = nullptr;
  StepArrays arrays_;
  TokenId *sampled_ = nullptr, *block_ids_ = nullptr;
  std::uint32_t* changed_ = nullptr;
  SampleResult* results_ = nullptr;
};

Status check_inputs(Cpu&, Cuda& cuda) {
  DecodeStep step(cuda);
  step.take_inputs();
  Side<Cuda>& side = step.side();
  const StepArrays& arrays = step.arrays();
  const auto tokens = side.get(arrays.tokens, kStepRows);
  const auto positions = side.get(arrays.positions, kStepRows);
  const auto slots = side.get(arrays.slots, kStepRows);
  const auto sequences = side.get(arrays.sequences, kStepRows);
  const auto samples = side.get(arrays.samples, kStepRows);
  const auto ids = side.get(step.block_ids(), kStepBlocks * kIdsToNextBlock);
  const auto changed = side.get(step.changed(), 64);
  Expect expect;
  for (int r = 0; r < kStepRows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const bool real = r < kRealRows;
    expect.equal(tokens[at], real ? 300 + r : 0, "token of a row");
    expect.equal(positions[at], real ? kStepPosition : 0, "position of a row");
    expect.equal(slots[at].block, real ? 1 + r : kPaddingBlock, "block of a row");
    expect.equal(sequences[at].tokens, real ? 1 : 0, "tokens of a sequence");
    expect.equal(samples[at].logits_row, real ? r : -1, "row of a sample");
    if (real)
      expect.equal(ids[static_cast<std::size_t>((1 + r) * kIdsToNextBlock + kStepPosition)], 300 + r,
                   "id in a block");
  }
  for (std::uint32_t w = 0; w < 64; ++w)
    expect.equal(changed[w], w < 40 ? 7000 + w : w == 50 ? 4711u : 0u, "word of a delta");
  return expect.status();
}

Status check_outcome(Cpu&, Cuda& cuda) {
  DecodeStep step(cuda);
  step.take_inputs();
  step.collect();
  Expect expect;
  expect.equal(step.outcome<StepOutcome>(0)->step, std::uint64_t{1}, "number of the step");
  for (int r = 0; r < kRealRows; ++r) {
    expect.equal(step.outcome<Sampled>(sampled_at())[r].token, 11 * r, "sampled token");
    if (r % 2 == 1)
      expect.equal(step.outcome<SampleResult>(results_at(kStepRows))[r].logprob,
                   -0.5f * static_cast<float>(r), "log-probability");
  }
  return expect.status();
}

Status check_gates(Cpu&, Cuda& cuda) {
  DecodeStep step(cuda);
  step.hold({3, 6});
  step.take_inputs();
  step.collect();
  Expect expect;
  expect.equal(step.outcome<StepOutcome>(0)->step, std::uint64_t{0}, "number of a step that is held");
  Side<Cuda>& side = step.side();
  std::vector<std::int32_t> gates(kStepRows, kClosedGate);
  gates[3] = 2;
  gates[6] = kGateWithoutMask;
  auto* const masks = side.room<std::uint32_t>(4 * kStepMaskWords);
  auto* const held = side.room<SampleRow>(kStepRows);
  run(cuda, OpenGates{.clock = step.clock(),
                      .rows = step.arrays().samples,
                      .held_rows = held,
                      .gates = side.put(gates),
                      .masks = masks,
                      .mask_words = kStepMaskWords,
                      .samples = kStepRows});
  step.collect();
  expect.equal(step.outcome<StepOutcome>(0)->step, std::uint64_t{1}, "number of the step");
  const auto rows = side.get(step.arrays().samples, kStepRows), drawn = side.get(held, kStepRows);
  for (int r = 0; r < kStepRows; ++r) {
    const bool opens = r == 3 || r == 6;
    expect.equal(drawn[static_cast<std::size_t>(r)].logits_row, opens ? r : -1, "row of a held sample");
    expect.equal(rows[static_cast<std::size_t>(r)].logits_row, r < kRealRows ? r : -1, "row of a sample");
  }
  expect.equal(drawn[3].mask, static_cast<const std::uint32_t*>(masks + 2 * kStepMaskWords), "mask");
  return expect.status();
}

}  // namespace

void add_step_checks(Checks& checks) {
  checks.push_back({"StepInputs", "40 decode rows, 3 of them padding", {}, one_kernel, check_inputs});
  checks.push_back({"CollectOutcome", "40 samples", "StepInputs", one_kernel, check_outcome});
  checks.push_back({"OpenGates", "a held step", "CollectOutcome", one_kernel, check_gates});
}

}  // namespace troupe::kernels::check
