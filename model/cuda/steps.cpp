#include "model/cuda/steps.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/cuda/decode_buckets.h"
#include "model/plan_check.h"

namespace troupe::model {
namespace {

std::size_t size(int count) { return static_cast<std::size_t>(count); }

kernels::DraftSource source_of(const config::SpeculationOptions& options, const SequenceMemory& memory,
                               const std::optional<VisionSpec>& vision) {
  kernels::DraftSource source{.predictions = {memory.predictions, wire::kMostPredicted},
                              .shortest_ngram = options.min_ngram,
                              .longest_ngram = options.max_ngram,
                              .synthetic = options.synthetic_acceptance >= 0};
  if (vision) {
    for (const TokenId id : {vision->patch, vision->video_patch, vision->image_start, vision->image_end,
                             vision->video_start, vision->video_end}) {
      if (id >= 0) source.never[source.never_count++] = id;
    }
  }
  return source;
}

// A held step's proposing sequences, and its gates behind them.
std::size_t held_bytes(const wire::Capacity& capacity) {
  return size(capacity.max_slots) * sizeof(kernels::ProposingSequence) +
         size(most_samples(capacity)) * sizeof(std::int32_t);
}

}  // namespace

Result<CudaSteps> CudaSteps::make(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity,
                                  const config::SpeculationOptions& speculation) {
  Result<Buffer<Cuda>> buffer = Buffer<Cuda>::make(device, StepMemory::make(capacity, {}).bytes, "sequences");
  if (!buffer) return buffer.status();
  return CudaSteps(device, decoder, capacity, std::move(*buffer), speculation);
}

CudaSteps::CudaSteps(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity,
                     Buffer<Cuda> buffer, const config::SpeculationOptions& speculation)
    : device_(&device),
      decoder_(&decoder),
      capacity_(capacity),
      buffer_(std::move(buffer)),
      layout_(StepPacker::layout(capacity)),
      inputs_(size(pieces()) * layout_.bytes),
      outcomes_(size(pieces()) * kernels::outcome_bytes(most_samples(capacity))),
      scores_(size(pieces()) * size(capacity.max_tokens_per_step) * sizeof(kernels::SampleResult)),
      tops_(most_tops(capacity) > 0
                ? PinnedMemory(size(pieces()) * size(most_tops(capacity)) * sizeof(kernels::TopLogprob),
                               PinnedMemory::Contents::unset)
                : PinnedMemory()),
      embeddings_(capacity.embedding_width > 0
                      ? PinnedMemory(size(pieces()) * size(capacity.max_slots) * decoder.hidden_bytes(),
                                     PinnedMemory::Contents::unset)
                      : PinnedMemory()),
      gate_masks_(StepGates::memory_words(capacity) * sizeof(std::uint32_t), PinnedMemory::Contents::unset),
      held_(size(pieces()) * held_bytes(capacity)),
      copies_(std::make_unique<CudaCopyStream>(device)) {
  memory_ = StepMemory::make(capacity, buffer_.view());
  const kernels::KvCache& kv = decoder.kv();
  TROUPE_CHECK(kv.ids);
  memory_.sequences.kv_ids = reinterpret_cast<TokenId*>(static_cast<std::byte*>(kv.data) + kv.id_offset());
  memory_.sequences.ids_to_next_block = static_cast<std::int64_t>(kv.block_bytes() / sizeof(TokenId));
  device.set_step_memory(buffer_.data(), buffer_.bytes());
  for (const std::int32_t width : decode_widths(capacity.max_drafts)) {
    const int most = std::min({capacity.max_slots, capacity.max_tokens_per_step / width,
                               width == 1 ? capacity.max_slots : most_samples(capacity) / width});
    if (most > 0) decodes_.push_back({width, decode_buckets(most), {}});
  }
  if (capacity.max_drafts == 0) return;
  source_ = source_of(speculation, memory_.sequences, decoder.spec().vision);
  if (decoder.spec().draft_layers > 0) {
    layer_drafts_ = speculation.mtp_steps;
    source_.drafted = memory_.sequences.drafted;
    source_.ngrams = speculation.with_ngram;
  }
  if (speculation.synthetic_acceptance >= 0) {
    // Never 0, which would compare tokens.
    acceptance_ = static_cast<std::uint32_t>(
        std::clamp(speculation.synthetic_acceptance * 0x1p32, 1.0, double{UINT32_MAX}));
  }
}

std::size_t CudaSteps::graphs() const {
  std::size_t count = 0;
  for (const DecodeGraphs& decodes : decodes_) count += decodes.graphs.size();
  return count;
}

std::vector<std::int32_t> CudaSteps::widths() const {
  std::vector<std::int32_t> widths;
  for (const DecodeGraphs& decodes : decodes_) widths.push_back(decodes.width);
  return widths;
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
      run({.rows = rows,
           .sequences = sequences,
           .samples = sequences,
           .most_tokens = rows,
           .wanted = capacity_.max_drafts},
          true);
    }
  }
  for (const int scores : {1, std::min(capacity_.max_slots, capacity_.max_tokens_per_step)}) {
    run({.rows = 1, .sequences = 1, .scores = scores, .most_tokens = 1}, true);
  }
  for (const DecodeGraphs& decodes : decodes_) {
    pad_pieces(decodes.width, decodes.buckets.back());
    for (const int bucket : decodes.buckets) run(decode_step(decodes.width, bucket), false);
  }
  if (memory_.sequences.sample_tops != nullptr) {
    const kernels::TopRow padding{.logits_row = -1, .count = 1};
    device_->upload(memory_.sequences.sample_tops, &padding, sizeof padding);
    run({.rows = 1, .sequences = 1, .samples = 1, .most_tokens = 1, .sample_tops = {&padding, 1}}, true);
  }
  run({.rows = 1, .sequences = 1, .samples = 1, .most_tokens = 1, .reads = 1}, true);
  held_step_ = {.rows = 1,
                .sequences = 1,
                .samples = 1,
                .most_tokens = 1,
                .proposing = capacity_.max_drafts > 0 ? 1 : 0};
  run_layers(held_step_, true);
  held_gates().proposing[0] = {};
  end_held({});
  const kernels::BlockPair pair{0, 1};
  decoder_->copy_blocks({&pair, 1});
  device_->sync();
}

// All sequences are padding.
void CudaSteps::pad_pieces(int width, int sequences) {
  if (layout_.derived == 0) return;  // as they are
  device_->sync();
  for (int i = 0; i < pieces(); ++i)
    StepPacker::pad_decode(layout_, piece(static_cast<std::uint64_t>(i)), 0, sequences, width);
}

PackedStep CudaSteps::decode_step(int width, int sequences) const {
  return {.rows = width * sequences,
          .sequences = sequences,
          .samples = width * sequences,
          .derived = layout_.derived != 0 ? sequences : 0,
          .width = width,
          .most_tokens = width,
          .drafts = width > 1,
          .wanted = width - 1};
}

void CudaSteps::capture() {
  for (DecodeGraphs& decodes : decodes_) {
    decodes.graphs.clear();
    decodes.ends.clear();
    for (const int bucket : decodes.buckets) {
      const PackedStep step = decode_step(decodes.width, bucket);
      decodes.graphs.push_back(CudaGraph::capture(*device_, [&] {
        const std::uint64_t launched = launched_;
        run_layers(step, false);
        launched_ = launched;
        if (layer_drafts_ < 0) run_end(step);
      }));
      if (layer_drafts_ >= 0) decodes.ends.push_back(CudaGraph::capture(*device_, [&] { run_end(step); }));
    }
  }
  device_->sync();
}

void CudaSteps::run_layers(const PackedStep& step, bool picks) {
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
                                             .derived = step.derived,
                                             .drafting = layer_drafts_ < 0 ? 0 : step.sequences,
                                             .deltas = step.deltas});
  if (step.derived > 0) derive(step);
  if (step.rows > 0) {
    decoder_->forward({.batch = {.sequences = memory_.arrays.sequences,
                                 .slots = memory_.arrays.slots,
                                 .count = step.sequences,
                                 .rows = step.rows,
                                 .most_tokens = step.derived > 0 ? step.most_tokens : 0},
                       .tokens = memory_.arrays.tokens,
                       .positions = step.spatial ? memory_.sequences.positions : memory_.arrays.positions,
                       .axes = step.spatial ? 3 : 1,
                       .kinds = step.sees ? memory_.sequences.kinds : nullptr,
                       .embedded = step.embedded,
                       .reads = step.reads
                                    ? std::optional(DeviceReads{.rows = memory_.sequences.read_rows,
                                                                .sequences = memory_.sequences.read_sequences,
                                                                .count = *step.reads})
                                    : std::nullopt});
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
}

void CudaSteps::run_end(const PackedStep& step) {
  if (step.derived > 0) accept(step);
  if (layer_drafts_ >= 0 && step.rows > 0) draft(step);
  if (step.proposing > 0) propose(step);
  collect(step);
}

void CudaSteps::derive(const PackedStep& step) {
  const SequenceMemory& sequences = memory_.sequences;
  kernels::run(*device_, kernels::DeriveRows{.derived = memory_.arrays.derived,
                                             .count = step.derived,
                                             .states = sequences.states,
                                             .sampled = sequences.sampled,
                                             .blocks = sequences.blocks,
                                             .blocks_per_slot = sequences.blocks_per_slot,
                                             .block_ids = sequences.kv_ids,
                                             .ids_to_next_block = sequences.ids_to_next_block,
                                             .into = memory_.arrays,
                                             .positions = step.spatial ? sequences.positions : nullptr,
                                             .source = source_,
                                             .proposals = sequences.proposals,
                                             .drafts = step.drafts,
                                             .predicted = sequences.predicted});
}

void CudaSteps::accept(const PackedStep& step) {
  const SequenceMemory& sequences = memory_.sequences;
  kernels::run(*device_, kernels::AcceptDrafts{.derived = memory_.arrays.derived,
                                               .count = step.derived,
                                               .states = sequences.states,
                                               .sampled = sequences.sampled,
                                               .arrays = memory_.arrays,
                                               .results = decoder_->results(),
                                               .predicted = sequences.predicted,
                                               .yields = sequences.yields,
                                               .held = sequences.held,
                                               .acceptance = acceptance_});
}

// The draft layer runs behind every step, so that its keys and values are those of the tokens accepted.
void CudaSteps::draft(const PackedStep& step) {
  const SequenceMemory& sequences = memory_.sequences;
  const kernels::DraftArrays& arrays = memory_.drafts;
  const int most = std::min(step.wanted, layer_drafts_), count = step.sequences;
  kernels::run(*device_, kernels::DeriveDrafts{.drafting = memory_.arrays.drafting,
                                               .count = count,
                                               .rows = step.rows,
                                               .most_drafts = most,
                                               .states = sequences.states,
                                               .sampled = sequences.sampled,
                                               .yields = sequences.yields,
                                               .step = memory_.arrays,
                                               .block_ids = sequences.kv_ids,
                                               .ids_to_next_block = sequences.ids_to_next_block,
                                               .into = arrays});
  DeviceDrafts run{.batch = {.sequences = arrays.sequences,
                             .slots = arrays.slots,
                             .count = count,
                             .rows = step.rows,
                             .most_tokens = step.most_tokens},
                   .tokens = arrays.tokens,
                   .positions = arrays.positions,
                   .from = arrays.from,
                   .picks = arrays.picks,
                   .ends = arrays.ends,
                   .samples = arrays.samples,
                   .count = most > 0 ? count : 0,
                   .carry = {arrays.carry_to, arrays.carry_from, count},
                   .keep = {arrays.keep_to, arrays.keep_from, count},
                   .fill = {arrays.fill_to, arrays.fill_from, step.rows}};
  decoder_->draft(run);
  run.batch.rows = count;
  run.batch.most_tokens = 1;
  run.picks = nullptr;
  run.carry = run.keep = run.fill = {};
  for (int made = 1; made <= most; ++made) {
    kernels::run(*device_, kernels::TakeDrafts{.drafting = memory_.arrays.drafting,
                                               .count = count,
                                               .made = made,
                                               .again = made < most,
                                               .results = decoder_->draft_results(),
                                               .states = sequences.states,
                                               .drafted = sequences.drafted,
                                               .block_ids = sequences.kv_ids,
                                               .ids_to_next_block = sequences.ids_to_next_block,
                                               .into = arrays});
    if (made < most) decoder_->draft_again(run);
  }
}

void CudaSteps::propose(const PackedStep& step) {
  const SequenceMemory& sequences = memory_.sequences;
  kernels::run(*device_, kernels::ProposeDrafts{.sequences = memory_.proposing,
                                                .count = step.proposing,
                                                .states = sequences.states,
                                                .sampled = sequences.sampled,
                                                .blocks = sequences.blocks,
                                                .blocks_per_slot = sequences.blocks_per_slot,
                                                .block_ids = sequences.kv_ids,
                                                .ids_to_next_block = sequences.ids_to_next_block,
                                                .samples = memory_.arrays.samples,
                                                .results = decoder_->results(),
                                                .yields = sequences.yields,
                                                .source = source_,
                                                .proposals = sequences.proposals});
}

void CudaSteps::collect(const PackedStep& step) {
  kernels::run(*device_, kernels::CollectOutcome{.ring = outcomes_.data(),
                                                 .pieces = pieces(),
                                                 .most_samples = most_samples(capacity_),
                                                 .clock = memory_.clock,
                                                 .rows = memory_.arrays.samples,
                                                 .results = decoder_->results(),
                                                 .samples = step.samples,
                                                 .states = memory_.sequences.states,
                                                 .sampled = memory_.sequences.sampled,
                                                 .yields = memory_.sequences.yields,
                                                 .derived = step.derived,
                                                 .proposing = memory_.proposing,
                                                 .proposals = memory_.sequences.proposals,
                                                 .proposing_count = step.proposing});
}

HeldGates CudaSteps::held_gates() const {
  std::byte* const at = held_.data() + (launched_ - 1) % size(pieces()) * held_bytes(capacity_);
  const std::size_t slots = size(capacity_.max_slots);
  auto* const proposing = reinterpret_cast<kernels::ProposingSequence*>(at);
  return {{reinterpret_cast<std::int32_t*>(proposing + slots), size(most_samples(capacity_))},
          {proposing, slots}};
}

void CudaSteps::open_gates(int samples) {
  kernels::run(*device_, kernels::OpenGates{.clock = memory_.clock,
                                            .rows = memory_.arrays.samples,
                                            .held_rows = memory_.held_rows,
                                            .gates = memory_.gates,
                                            .masks = memory_.sequences.masks,
                                            .mask_words = kernels::mask_words(capacity_.vocab_size),
                                            .samples = samples});
}

void CudaSteps::end_held(std::span<const std::uint32_t> masks) {
  const PackedStep& step = held_step_;
  const HeldGates from = held_gates();
  drawn_.delay(copies_->stream());
  copies_->copy(memory_.gates, from.gates.data(), size(step.samples) * sizeof(std::int32_t));
  if (step.proposing > 0) {
    copies_->copy(memory_.proposing, from.proposing.data(),
                  size(step.proposing) * sizeof(kernels::ProposingSequence));
  }
  if (!masks.empty()) copies_->copy(memory_.sequences.masks, masks.data(), masks.size_bytes());
  copied_.record(copies_->stream());
  copied_.delay(device_->stream());
  open_gates(step.samples);
  decoder_->draw(memory_.held_rows, step.samples);
  run_end(step);
  drawn_.record(*device_);
}

void CudaSteps::give_up_held() {
  open_gates(0);
  collect({});
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

// After sampling. The rest of a decode graph does not write to these rows. A draft layer does, but it runs
// later, from a graph of its own. So a step with embedded prompts of one row each still runs as a graph.
void CudaSteps::copy_embeddings(const PackedStep& step) {
  if (step.embeds.empty()) return;
  decoder_->copy_embeddings(step.embeds, const_cast<std::byte*>(embeddings(launched_)));
}

std::span<std::byte> CudaSteps::piece(std::uint64_t launched) const {
  return {inputs_.data() + launched % size(pieces()) * layout_.bytes, layout_.bytes};
}

std::uint64_t CudaSteps::launch(const PackedStep& step) {
  const auto decodes = std::ranges::find(decodes_, step.width, &DecodeGraphs::width);
  if (step.decode && decodes != decodes_.end() && !decodes->graphs.empty()) {
    const std::size_t bucket = bucket_of(decodes->buckets, step.sequences);
    const int sequences = decodes->buckets[bucket];
    StepPacker::pad_decode(layout_, next_piece(), step.sequences, sequences, step.width);
    decodes->graphs[bucket].launch(*device_);
    ++launched_;
    copy_embeddings(step);
    if (!decodes->ends.empty() && !step.held()) decodes->ends[bucket].launch(*device_);
  } else {
    run_layers(step, true);
    copy_embeddings(step);
    if (!step.held()) run_end(step);
  }
  if (step.held()) held_step_ = step;
  return launched_;
}

}  // namespace troupe::model
