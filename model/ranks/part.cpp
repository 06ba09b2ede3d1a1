#include "model/ranks/part.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/check.h"
#include "kernels/matrix.h"
#include "kernels/wint2.h"

namespace troupe::model {
namespace {

/// Of `count` things the rank's range, as even as they go.
ModelSpec::Held range_of(int count, const Shard& shard) {
  const int first = count * shard.rank / shard.ranks;
  return {first, count * (shard.rank + 1) / shard.ranks - first};
}

Status uneven(const char* key, int value, int ranks) {
  return invalid(std::string(key) + " is " + std::to_string(value) + ", which --tensor-parallel-size " +
                     std::to_string(ranks) + " does not divide.",
                 "tensor-parallel-size");
}

/// The same as cut() of a source of wint2, whose scales lie two in a byte.
Result<WeightSource> cut_wint2(WeightSource source, ModelSpec::Held outputs, ModelSpec::Held inputs) {
  constexpr int kUnit = kernels::kWint2Unit;
  if (inputs.first % kUnit != 0 || inputs.count % kUnit != 0) {
    return invalid("--tensor-parallel-size gives a rank " + std::to_string(inputs.count) + " of the " +
                       std::to_string(source.inputs) + " inputs of '" + source.name +
                       "'; wint2 is cut at multiples of " + std::to_string(kUnit) + ".",
                   "tensor-parallel-size");
  }
  source.first += inputs.first / kernels::kWint2Inputs * source.stride + outputs.first;
  source.first_scale += inputs.first / kUnit * source.scale_stride + outputs.first;
  source.outputs = outputs.count;
  source.inputs = inputs.count;
  return source;
}

/// Outputs [first_output, + outputs) and inputs [first_input, + inputs) of a source.
Result<WeightSource> cut(WeightSource source, ModelSpec::Held outputs, ModelSpec::Held inputs) {
  if (source.stored && source.stored->wint2()) return cut_wint2(std::move(source), outputs, inputs);
  const bool within = inputs.first > 0 || inputs.count < source.inputs;
  source.first += source.transposed ? inputs.first * source.stride + outputs.first
                                    : outputs.first * source.stride + inputs.first;
  if (within) {
    source.row_inputs = source.inputs;
    source.first_input = inputs.first;
  }
  if (source.stored) {
    // A group that is all of the inputs, as a slice of the shared experts is one, is a scale of the output.
    const int group = source.stored->group == source.inputs ? 0 : source.stored->group;
    const int unit = source.stored->fp8 ? kernels::kFp8Block : group;
    const bool divides = unit == 0
                             ? !within || inputs.first * source.stored->bits % 8 == 0
                             : inputs.first % unit == 0 &&
                                   (inputs.count % unit == 0 || inputs.first + inputs.count == source.inputs);
    const int first_in_block = source.first_in_block + outputs.first;
    if (!divides || (source.stored->fp8 && outputs.first % kernels::kFp8ScaleOutputs != 0)) {
      return invalid(
          "The tensor '" + source.name + "' is quantised in blocks that --tensor-parallel-size cuts through.",
          "tensor-parallel-size");
    }
    if (source.stored->fp8) {
      source.first_scale +=
          first_in_block / kernels::kFp8Block * source.scale_stride + inputs.first / kernels::kFp8Block;
      source.first_in_block = first_in_block % kernels::kFp8Block;
    } else {
      source.first_scale += outputs.first * source.scale_stride + (unit == 0 ? 0 : inputs.first / unit);
    }
  }
  source.outputs = outputs.count;
  source.inputs = inputs.count;
  return source;
}

}  // namespace

std::vector<int> token_ranges(const ModelSpec& spec, int ranks) {
  const int panels = kernels::padded(spec.vocab) / kernels::kPanel;
  std::vector<int> first;
  for (int rank = 0; rank <= ranks; ++rank) {
    first.push_back(std::min(spec.vocab, panels * rank / ranks * kernels::kPanel));
  }
  return first;
}

Result<ModelSpec> part_of(const ModelSpec& spec, const Shard& shard) {
  if (shard.alone()) return spec;
  const int n = shard.ranks;
  if (n < 1 || n > kMostRanks) {
    return invalid("--tensor-parallel-size is " + std::to_string(n) + "; allowed are 1 to " +
                       std::to_string(kMostRanks) + ".",
                   "tensor-parallel-size");
  }
  const bool dense = spec.has_dense_mlp();
  if (spec.heads % n != 0) return uneven("num_attention_heads", spec.heads, n);
  if (spec.kv_heads % n != 0 && n % spec.kv_heads != 0)
    return uneven("num_key_value_heads", spec.kv_heads, n);
  if (dense && spec.intermediate % n != 0) return uneven("intermediate_size", spec.intermediate, n);
  if (spec.experts > 0) {
    if (shard.expert_parallel && spec.experts % n != 0) return uneven("moe_num_experts", spec.experts, n);
    if (!shard.expert_parallel && spec.expert_intermediate % n != 0) {
      return uneven("moe_intermediate_size", spec.expert_intermediate, n);
    }
    if (spec.vision && !shard.expert_parallel && spec.vision->expert_intermediate % n != 0) {
      return uneven("moe_intermediate_size of vision experts", spec.vision->expert_intermediate, n);
    }
  }
  if (kernels::padded(spec.vocab) / kernels::kPanel < n) return uneven("vocab_size", spec.vocab, n);
  ModelSpec part = spec;
  part.heads = spec.heads / n;
  part.kv_heads = kv_heads_of(spec.kv_heads, shard).count;
  if (dense) part.intermediate = spec.intermediate / n;
  const std::vector<int> tokens = token_ranges(spec, n);
  const auto rank = static_cast<std::size_t>(shard.rank);
  part.held_tokens = {tokens[rank], tokens[rank + 1] - tokens[rank]};
  if (spec.experts > 0 && shard.expert_parallel) {
    part.held_experts = range_of(spec.experts, shard);
    part.shared_experts = range_of(spec.shared_experts, shard).count;
  } else if (spec.experts > 0) {
    part.expert_intermediate = spec.expert_intermediate / n;
    if (part.vision) part.vision->expert_intermediate = spec.vision->expert_intermediate / n;
  }
  return part;
}

namespace {

/// The range of a source's outputs and of its inputs that the rank holds, and its expert there; nothing if it
/// holds none.
class Cutter {
 public:
  Cutter(const ModelSpec& spec, const ModelSpec& part, const Shard& shard)
      : spec_(spec), part_(part), shard_(shard) {}

  Result<std::optional<WeightSource>> operator()(const WeightSource& source) const {
    WeightSource found = source;
    if (!place(found)) return std::optional<WeightSource>();
    const ModelSpec::Held outputs = outputs_of(source), inputs = inputs_of(source);
    Result<WeightSource> made = cut(found, outputs, inputs);
    if (!made) return made.status();
    return std::optional<WeightSource>(std::move(*made));
  }

 private:
  /// Sets the expert to its place in the rank's stacks; false if another rank holds it.
  bool place(WeightSource& source) const {
    if (source.expert == WeightSource::kNoExpert || !shard_.expert_parallel) return true;
    const bool shared = source.expert >= spec_.experts;
    const ModelSpec::Held held = shared ? range_of(spec_.shared_experts, shard_) : part_.held_experts;
    const int index = source.expert - (shared ? spec_.experts : 0) - held.first;
    source.expert = index + (shared ? part_.experts_held() : 0);
    return index >= 0 && index < held.count;
  }

  ModelSpec::Held outputs_of(const WeightSource& source) const {
    const bool whole_expert = source.expert != WeightSource::kNoExpert && shard_.expert_parallel;
    switch (source.weight) {
      case Weight::embedding:
      case Weight::lm_head: return part_.held_tokens;
      case Weight::query: return range_of(source.outputs, shard_);
      case Weight::key:
      case Weight::value: {
        const KvHeads heads = kv_heads_of(spec_.kv_heads, shard_);
        return {heads.first * spec_.head_dim, heads.count * spec_.head_dim};
      }
      case Weight::gate:
      case Weight::up:
      case Weight::vision_gate:
      case Weight::vision_up:
        return whole_expert ? ModelSpec::Held{0, source.outputs} : range_of(source.outputs, shard_);
      default: return {0, source.outputs};
    }
  }

  ModelSpec::Held inputs_of(const WeightSource& source) const {
    const bool whole_expert = source.expert != WeightSource::kNoExpert && shard_.expert_parallel;
    const bool down = source.weight == Weight::down || source.weight == Weight::vision_down;
    if (source.weight == Weight::key_scale || source.weight == Weight::value_scale)
      return {spec_.kv_heads * shard_.rank / shard_.ranks * spec_.head_dim, part_.kv_heads * spec_.head_dim};
    const bool sums = source.weight == Weight::attention_out || (down && !whole_expert);
    return sums ? range_of(source.inputs, shard_) : ModelSpec::Held{0, source.inputs};
  }

  const ModelSpec& spec_;
  const ModelSpec& part_;
  const Shard shard_;
};

}  // namespace

std::optional<WeightSource> part_of(const WeightSource& source, const ModelSpec& spec, const ModelSpec& part,
                                    const Shard& shard) {
  if (shard.alone()) return source;
  Result<std::optional<WeightSource>> cut = Cutter(spec, part, shard)(source);
  TROUPE_CHECK(cut.ok());
  return std::move(*cut);
}

Result<TensorMap> part_of(const TensorMap& map, const ModelSpec& spec, const Shard& shard) {
  if (shard.alone()) return map;
  const Result<ModelSpec> part = part_of(spec, shard);
  if (!part) return part.status();
  const Cutter cutter(spec, *part, shard);
  TensorMap made = map;
  made.sources.clear();
  for (const WeightSource& source : map.sources) {
    Result<std::optional<WeightSource>> cut = cutter(source);
    if (!cut) return cut.status();
    if (*cut) made.sources.push_back(std::move(**cut));
  }
  return made;
}

}  // namespace troupe::model
