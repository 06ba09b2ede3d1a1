#pragma once
// The part of a model that one rank holds: tensor parallel as Megatron-LM cuts (Shoeybi et al. 2019, section
// 3), by heads, by columns of the MLPs and by rows of the vocabulary.
//
//   embedding, lm_head   outputs: a range of tokens each; the last range may be shorter
//   query, key, value    outputs: heads; where there are more ranks than KV heads, each KV head is on several
//   attention_out, down  inputs: what the rank's heads, or its columns of gate and up, give
//   gate, up             outputs: columns
//   experts              cut like an MLP; with expert_parallel whole, in ranges
//   experts of vision    the same: a rank has experts of the same numbers for text rows and for vision rows
//   shared experts       cut like an MLP; with expert_parallel their slices are spread
//   norms, router, bias  whole
//   draft layer          its block as a dense layer; its projection whole
//   tower, resampler     whole: ranks that encode an item together cut its rows (vision/item_cut.h)
//
// So every rank has a part of each sum over inputs, and the ranks add them up (ranks/collective.h).
#include <optional>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/spec.h"
#include "model/checkpoint/tensor_map.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// The shape of the rank's part. `vocab` and `experts` stay those of the model, held_tokens and held_experts
/// say what the part has of them. invalid_argument names the key of config.json that --tensor-parallel-size
/// does not divide.
Result<ModelSpec> part_of(const ModelSpec& spec, const Shard& shard);

/// The first tokens of the ranks' ranges, and the end of the last: ranks + 1 numbers.
std::vector<int> token_ranges(const ModelSpec& spec, int ranks);

/// Of every source what the rank holds, in the order of `map`; experts are counted as in the rank's stacks.
/// `spec` and `map` are the model's. invalid_argument names a tensor whose stored format cannot be cut there.
Result<TensorMap> part_of(const TensorMap& map, const ModelSpec& spec, const Shard& shard);

/// The same of one source that is not quantised, or nothing if the rank holds none of it. `part`:
/// part_of(spec, shard).
std::optional<WeightSource> part_of(const WeightSource& source, const ModelSpec& spec, const ModelSpec& part,
                                    const Shard& shard);

}  // namespace troupe::model
