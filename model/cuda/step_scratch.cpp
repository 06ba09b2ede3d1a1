#include "model/cuda/step_scratch.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/scratch.h"
#include "model/draft_pass.inl"

namespace troupe::model {
namespace {

/// Stands for a device: takes ops, and asks them for their working memory instead of running them.
struct ScratchMeter {
  const kernels::cuda::GpuTraits& gpu;
  std::size_t most = 0;
};

/// Stands for the ranks' exchanges, which take no working memory.
class SilentRanks {
 public:
  const Shard& shard() const { return shard_; }
  void clear(ScratchMeter&, float*, std::size_t) {}
  void all_reduce(ScratchMeter&, float*, float*, std::size_t) {}
  bool all_reduce(ScratchMeter&, float*, const kernels::AddRmsNorm&) { return false; }
  void all_gather(ScratchMeter&, const float*, std::size_t, float*, std::size_t, int, std::span<const int>) {}

 private:
  Shard shard_;
};

}  // namespace
}  // namespace troupe::model

namespace troupe::kernels {

// Found by the forward pass, whose ops are of this namespace.
template <class Op>
void run(model::ScratchMeter& meter, const Op& op) {
  meter.most = std::max(meter.most, scratch_bytes(op, meter.gpu));
}

}  // namespace troupe::kernels

namespace troupe::model {
namespace {

using MeteredPass = DraftPass<ScratchMeter, SilentRanks>;

// Ops look at whether a matrix is there, and never into it: any address does that is not null.
View imagined_memory() {
  return {reinterpret_cast<void*>(std::uintptr_t{1} << 20), std::numeric_limits<std::size_t>::max() / 2};
}

// Layers of one kind have the same ops. The last has no product of a next layer.
void keep_one_of_each_kind(ModelSpec& spec, std::vector<LayerWeights>& layers) {
  std::vector<LayerWeights> kept;
  for (const bool moe : {false, true}) {
    const auto end = layers.end() - 1;
    const auto found =
        std::find_if(layers.begin(), end, [&](const LayerWeights& l) { return l.moe() == moe; });
    if (found != end) kept.push_back(*found);
  }
  kept.push_back(layers.back());
  spec.layers = static_cast<int>(kept.size());
  layers = std::move(kept);
}

}  // namespace

StepScratch::StepScratch(const ModelSpec& spec, const WeightFormats& formats,
                         const kernels::cuda::GpuTraits& gpu, const DecoderLimits& limits, int verified)
    : spec_(spec),
      formats_(formats),
      gpu_(gpu),
      limits_(limits),
      verified_(verified),
      weights_(WeightLayout::make(spec, formats, spec.tied.value_or(false), imagined_memory())),
      memory_(Activations::make(spec, formats.activations, limits, imagined_memory())),
      kv_(kv_shape(spec, formats)) {
  keep_one_of_each_kind(spec_, weights_.layers);
}

std::size_t StepScratch::of_layers(int rows, int sequences, int most_tokens, std::optional<int> reads) const {
  ScratchMeter meter{gpu_};
  SilentRanks ranks;
  const bool alone = spec_.held_tokens.count == 0;
  // Of a model that sees, both groups of experts: what a step without kinds asks for is asked for, too.
  const auto* const kinds = spec_.vision ? static_cast<const std::uint8_t*>(imagined_memory().data) : nullptr;
  MeteredPass{{meter, spec_, formats_.activations, alone ? nullptr : &ranks, {}}}.layers(
      {.weights = weights_,
       .memory = memory_,
       .kv = kv_,
       .batch = {.count = sequences, .rows = rows, .most_tokens = most_tokens},
       .kinds = kinds,
       .reads = reads ? std::optional(DeviceReads{.count = *reads}) : std::nullopt});
  return meter.most;
}

std::size_t StepScratch::of_draft_layer(int rows, int sequences, int most_tokens) const {
  ScratchMeter meter{gpu_};
  SilentRanks ranks;
  const bool alone = spec_.held_tokens.count == 0;
  const kernels::SequenceRows *const given = static_cast<kernels::SequenceRows*>(imagined_memory().data),
                                     *const none = nullptr;
  for (const kernels::SequenceRows* const ends : {given, none}) {
    MeteredPass{{meter, spec_, formats_.activations, alone ? nullptr : &ranks, {}}}.layer(
        {.weights = weights_,
         .memory = memory_,
         .kv = kv_,
         .batch = {.count = sequences, .rows = rows, .most_tokens = most_tokens},
         .count = sequences,
         .ends = ends});
  }
  return meter.most;
}

std::size_t StepScratch::of_scores(int rows) const {
  ScratchMeter meter{gpu_};
  SilentRanks ranks;
  const bool alone = spec_.held_tokens.count == 0;
  MeteredPass{{meter, spec_, formats_.activations, alone ? nullptr : &ranks, {}}}.logits(weights_, memory_,
                                                                                         nullptr, rows);
  kernels::run(meter, kernels::Score{.count = rows, .vocab = spec_.vocab});
  return meter.most;
}

std::size_t StepScratch::of_samples(int rows) const {
  ScratchMeter meter{gpu_, of_scores(rows)};
  kernels::run(meter, kernels::Sample{.count = rows, .vocab = spec_.vocab});
  return meter.most;
}

std::size_t StepScratch::of(const StepSize& step) const {
  std::size_t most = step.rows > 0 ? of_layers(step.rows, step.sequences, step.most_tokens, step.reads) : 0;
  if (step.samples > 0) most = std::max(most, of_samples(step.samples));
  if (step.draft_rows > 0)
    most = std::max(most, of_draft_layer(step.draft_rows, step.sequences, step.most_tokens));
  if (step.drafts > 0) most = std::max(most, of_samples(step.drafts));
  if (step.scores > 0) most = std::max(most, of_scores(std::min(step.scores, limits_.sequences)));
  if (const int rest = step.scores % std::max(1, limits_.sequences); rest > 0)
    most = std::max(most, of_scores(rest));
  return most;
}

// Attention asks by the number of sequences and by whether there are more rows than sequences, every other op
// of a layer by the number of rows alone. So all numbers of rows, and all numbers of sequences with as many
// rows and with more, are all that there is: rows that finish the last layer alone ask as a step of as many
// sequences does. Where a batch says the most tokens of a sequence, attention asks by that and by the number
// of sequences. The draft layer may run a row more of every sequence.
std::size_t StepScratch::most() const {
  std::size_t most = 0;
  const int sequences = std::min(limits_.sequences, limits_.rows);
  for (int rows = 1; rows <= limits_.rows; ++rows) {
    if (rows <= sequences) most = std::max(most, of_layers(rows, rows));
    if (rows > 1) most = std::max(most, of_layers(rows, std::min(rows - 1, sequences)));
  }
  for (int tokens = 2; tokens <= verified_; ++tokens) {
    for (int count = 1; count <= sequences && count * tokens <= limits_.rows; ++count) {
      most = std::max(most, of_layers(count * tokens, count, tokens));
      if (spec_.draft_layers > 0) most = std::max(most, of_draft_layer(count * tokens, count, tokens));
    }
  }
  if (spec_.draft_layers > 0) {
    for (int rows = 1; rows <= limits_.rows + sequences; ++rows) {
      if (rows <= sequences) most = std::max(most, of_draft_layer(rows, rows));
      if (rows > 1) most = std::max(most, of_draft_layer(rows, std::min(rows - 1, sequences)));
    }
  }
  for (int rows = 1; rows <= std::min(limits_.sequences + limits_.drafts, limits_.rows); ++rows)
    most = std::max(most, of_samples(rows));
  return most;
}

}  // namespace troupe::model
