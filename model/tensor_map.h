#pragma once
// Which tensor of a checkpoint is which weight of the network.
//
// Checkpoints come in two dialects. -PT files name torch modules ("model.layers.0.self_attn.q_proj.weight")
// and store a linear as [outputs, inputs]. -Paddle files say "ernie." for "model.", join q|k|v and gate|up,
// and store linears as [inputs, outputs]; embeddings and norms are the same in both. Mixtures exist (the
// joined names in torch orientation), so names and orientation are told apart separately: every name may be
// either, and the orientation is read off the first tensor whose shape shows it. Square matrices never do,
// so it is decided once and holds for the whole checkpoint.
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"
#include "model/spec.h"

namespace troupe::model {

enum class Weight {
  embedding,
  lm_head,
  final_norm,  // one of each; layer is 0
  input_norm,
  query,
  key,
  value,
  attention_out,  // per layer
  post_norm,
  gate,
  up,
  down,
};

/// Rows [first, first + outputs) of a tensor, as a matrix of outputs × inputs. A norm is one output row.
struct WeightSource {
  Weight weight{};
  int layer = 0;
  const FileTensor* tensor = nullptr;  ///< in the Checkpoint
  std::string name;                    ///< in the file
  std::int64_t first = 0;
  int outputs = 0;
  int inputs = 0;
};

struct TensorMap {
  std::vector<WeightSource> sources;  ///< every weight of the network exactly once
  bool transposed = false;            ///< linears are [inputs, outputs]; norms and the embedding never are
  bool tied = false;                  ///< the head is the embedding; there is no lm_head source
  std::vector<std::string>
      skipped;  ///< known and not needed: draft layers, rotation tables, a tied head's copy
};

/// Assigns every tensor or says which are missing, unknown or of the wrong shape or type.
Result<TensorMap> map_tensors(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace troupe::model
