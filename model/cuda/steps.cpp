#include "model/cuda/steps.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "model/cuda/decode_buckets.h"
#include "model/plan_check.h"

namespace troupe::model {
namespace {

std::size_t size(int count) { return static_cast<std::size_t>(count); }

}  // namespace

Result<CudaSteps> CudaSteps::make(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity) {
  Result<Buffer<Cuda>> buffer = Buffer<Cuda>::make(device, StepMemory::make(capacity, {}).bytes, "sequences");
  if (!buffer) return buffer.status();
  return CudaSteps(device, decoder, capacity, std::move(*buffer));
}

CudaSteps::CudaSteps(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity,
                     Buffer<Cuda> buffer)
    : device_(&device),
      decoder_(&decoder),
      capacity_(capacity),
      buffer_(std::move(buffer)),
      layout_(StepPacker::layout(capacity)),
      inputs_(size(pieces()) * layout_.bytes),
      outcomes_(size(pieces()) * kernels::outcome_bytes(capacity.max_slots)),
      scores_(size(pieces()) * size(capacity.max_tokens_per_step) * sizeof(kernels::SampleResult)),
      tops_(most_tops(capacity) > 0
                ? PinnedMemory(size(pieces()) * size(most_tops(capacity)) * sizeof(kernels::TopLogprob),
                               PinnedMemory::Contents::unset)
                : PinnedMemory()),
      buckets_(decode_buckets(std::min(capacity.max_slots, capacity.max_tokens_per_step))),
      gate_masks_(StepGates::memory_words(capacity) * sizeof(std::uint32_t), PinnedMemory::Contents::unset),
      held_rows_(size(pieces()) * size(capacity.max_slots) * sizeof(kernels::SampleRow)),
      copies_(std::make_unique<CudaCopyStream>(device)) {
  memory_ = StepMemory::make(capacity, buffer_.view());
  const kernels::KvCache& kv = decoder.kv();
  TROUPE_CHECK(kv.ids);
  memory_.sequences.kv_ids = reinterpret_cast<TokenId*>(static_cast<std::byte*>(kv.data) + kv.id_offset());
  memory_.sequences.ids_to_next_block = static_cast<std::int64_t>(kv.block_bytes() / sizeof(TokenId));
  device.set_step_memory(buffer_.data(), buffer_.bytes());
}

void CudaSteps::warm_up(std::size_t scratch) {
  device_->scratch(scratch);
  device_->freeze_scratch();
  // All rows of these steps are padding.
  for (int i = 0; i < pieces(); ++i) {
    StepPacker::pad(layout_, piece(static_cast<std::uint64_t>(i)), 0, capacity_.max_tokens_per_step,
                    capacity_.max_slots);
  }
  for (int rows = capacity_.max_tokens_per_step; rows > 0; rows /= 2) {
    for (const int sequences : {1, std::min(rows, capacity_.max_slots)}) {
      run({.rows = rows, .sequences = sequences, .samples = sequences}, true);
    }
  }
  for (const int scores : {1, std::min(capacity_.max_slots, capacity_.max_tokens_per_step)}) {
    run({.rows = 1, .sequences = 1, .scores = scores}, true);
  }
  for (const int bucket : buckets_) run({.rows = bucket, .sequences = bucket, .samples = bucket}, false);
  if (memory_.sequences.sample_tops != nullptr) {
    const kernels::TopRow padding{.logits_row = -1, .count = 1};
    device_->upload(memory_.sequences.sample_tops, &padding, sizeof padding);
    run({.rows = 1, .sequences = 1, .samples = 1, .sample_tops = {&padding, 1}}, true);
  }
  const kernels::BlockPair pair{0, 1};
  decoder_->copy_blocks({&pair, 1});
  device_->sync();
}

void CudaSteps::capture() {
  graphs_.clear();
  for (const int bucket : buckets_) {
    graphs_.push_back(CudaGraph::capture(*device_, [&] {
      const std::uint64_t launched = launched_;
      run({.rows = bucket, .sequences = bucket, .samples = bucket}, false);
      launched_ = launched;
    }));
  }
  device_->sync();
}

void CudaSteps::run(const PackedStep& step, bool picks) {
  ++launched_;
  kernels::run(*device_, kernels::StepInputs{.ring = inputs_.data(),
                                             .layout = layout_,
                                             .pieces = pieces(),
                                             .clock = memory_.clock,
                                             .into = memory_.arrays,
                                             .sampled = memory_.sequences.sampled,
                                             .block_ids = memory_.sequences.kv_ids,
                                             .ids_to_next_block = memory_.sequences.ids_to_next_block,
                                             .rows = step.rows,
                                             .sequences = step.sequences,
                                             .samples = step.samples,
                                             .deltas = step.deltas});
  if (step.rows > 0) {
    decoder_->forward({.batch = {.sequences = memory_.arrays.sequences,
                                 .slots = memory_.arrays.slots,
                                 .count = step.sequences,
                                 .rows = step.rows},
                       .tokens = memory_.arrays.tokens,
                       .positions = step.spatial ? memory_.sequences.positions : memory_.arrays.positions,
                       .axes = step.spatial ? 3 : 1,
                       .kinds = step.sees ? memory_.sequences.kinds : nullptr,
                       .embedded = step.embedded});
  }
  if (step.scores > 0) run_scores(step);
  if (step.samples > 0) {
    decoder_->sample({.picks = picks ? memory_.arrays.picks : nullptr,
                      .rows = memory_.arrays.samples,
                      .count = step.samples,
                      .tops = memory_.sequences.sample_tops,
                      .top_rows = static_cast<int>(step.sample_tops.size())});
  }
  if (step.tops > 0) {
    const std::span<const kernels::TopLogprob> to = tops(launched_);
    device_->download(const_cast<kernels::TopLogprob*>(to.data()), decoder_->tops(),
                      size(step.tops) * sizeof(kernels::TopLogprob));
  }
  collect(step.samples, nullptr);
}

void CudaSteps::collect(int samples, const kernels::SampleRow* held_rows) {
  kernels::run(*device_, kernels::CollectOutcome{.ring = outcomes_.data(),
                                                 .pieces = pieces(),
                                                 .most_samples = capacity_.max_slots,
                                                 .clock = memory_.clock,
                                                 .rows = memory_.arrays.samples,
                                                 .held_rows = held_rows,
                                                 .results = decoder_->results(),
                                                 .samples = samples});
}

std::span<kernels::SampleRow> CudaSteps::held_rows() const {
  auto* rows = reinterpret_cast<kernels::SampleRow*>(held_rows_.data());
  return {rows + (launched_ - 1) % size(pieces()) * size(capacity_.max_slots), size(capacity_.max_slots)};
}

void CudaSteps::end_held(int samples, std::span<const std::uint32_t> masks) {
  drawn_.delay(copies_->stream());
  copies_->copy(memory_.held_rows, held_rows().data(), size(samples) * sizeof(kernels::SampleRow));
  if (!masks.empty()) copies_->copy(memory_.sequences.masks, masks.data(), masks.size_bytes());
  copied_.record(copies_->stream());
  copied_.delay(device_->stream());
  decoder_->draw(memory_.held_rows, samples);
  collect(samples, memory_.held_rows);
  drawn_.record(*device_);
}

// A prompt may have more scored rows than there are rows of logits: they are scored in groups, and each
// group's results are copied out before the next group runs.
void CudaSteps::run_scores(const PackedStep& step) {
  const std::size_t piece = (launched_ - 1) % size(pieces());
  auto* to =
      reinterpret_cast<kernels::SampleResult*>(scores_.data()) + piece * size(capacity_.max_tokens_per_step);
  const kernels::TopRow* tops = memory_.sequences.score_tops;
  std::span<const kernels::TopRow> rest = step.score_tops;
  for (int first = 0; first < step.scores; first += score_group()) {
    const int part = std::min(score_group(), step.scores - first);
    const auto top_rows = static_cast<int>(take_below(rest, first + part).size());
    decoder_->score({.picks = memory_.sequences.score_picks + first,
                     .rows = memory_.sequences.scores + first,
                     .count = part,
                     .tops = tops,
                     .top_rows = top_rows});
    tops += top_rows;
    device_->download(to + first, decoder_->results(), size(part) * sizeof(kernels::SampleResult));
  }
}

std::span<std::byte> CudaSteps::piece(std::uint64_t launched) const {
  return {inputs_.data() + launched % size(pieces()) * layout_.bytes, layout_.bytes};
}

std::uint64_t CudaSteps::launch(const PackedStep& step) {
  if (step.decode && !graphs_.empty()) {
    const std::size_t bucket = bucket_of(buckets_, step.rows);
    StepPacker::pad(layout_, next_piece(), step.rows, buckets_[bucket], buckets_[bucket]);
    graphs_[bucket].launch(*device_);
    ++launched_;
  } else {
    run(step, true);
  }
  return launched_;
}

const std::byte* CudaSteps::outcome_at(std::uint64_t step) const {
  return outcomes_.data() + (step - 1) % size(pieces()) * kernels::outcome_bytes(capacity_.max_slots);
}

const kernels::StepOutcome& CudaSteps::outcome(std::uint64_t step) const {
  return *reinterpret_cast<const kernels::StepOutcome*>(outcome_at(step));
}

bool CudaSteps::finished(std::uint64_t step) const {
  auto& word = const_cast<std::uint64_t&>(outcome(step).step);
  return std::atomic_ref(word).load(std::memory_order_acquire) == step;
}

std::span<const kernels::Sampled> CudaSteps::sampled(std::uint64_t step) const {
  return {reinterpret_cast<const kernels::Sampled*>(outcome_at(step) + kernels::sampled_at()),
          size(capacity_.max_slots)};
}

std::span<const kernels::SampleResult> CudaSteps::results(std::uint64_t step) const {
  const std::byte* at = outcome_at(step) + kernels::results_at(capacity_.max_slots);
  return {reinterpret_cast<const kernels::SampleResult*>(at), size(capacity_.max_slots)};
}

std::span<const kernels::SampleResult> CudaSteps::scores(std::uint64_t step) const {
  const std::size_t rows = size(capacity_.max_tokens_per_step);
  return {reinterpret_cast<const kernels::SampleResult*>(scores_.data()) + (step - 1) % size(pieces()) * rows,
          rows};
}

std::span<const kernels::TopLogprob> CudaSteps::tops(std::uint64_t step) const {
  const std::size_t most = size(most_tops(capacity_));
  return {reinterpret_cast<const kernels::TopLogprob*>(tops_.data()) + (step - 1) % size(pieces()) * most,
          most};
}

}  // namespace troupe::model
