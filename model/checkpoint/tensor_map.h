#pragma once
// Which tensor of a checkpoint is which weight of the network.
//
// Checkpoints come in two dialects. -PT files name torch modules ("model.layers.0.self_attn.q_proj.weight")
// and store a linear as [outputs, inputs]. -Paddle files say "ernie." for "model.", join q|k|v and gate|up,
// and store linears as [inputs, outputs]; embeddings and norms are the same in both. Mixtures exist (joined
// names in torch orientation), so names and orientation are recognised separately: every name may be of
// either dialect, and the first tensor whose shape shows the orientation decides it for the whole checkpoint.
// Square matrices do not show it. A router has an orientation of its own.
//
// Experts come one by one (mlp.experts.7.gate_proj, .up_proj, or joined .up_gate_proj; .down_proj) or
// stacked, as transformers holds them in memory (mlp.experts.gate_up_proj, [experts, 2 · width, hidden]).
// Shared experts are one MLP in the file, which is cut into slices of an expert's width.
//
// A vision-language model's experts of both modalities are one list in the hub's files, text first, and two
// stacks as transformers holds them in memory (mlp.text_moe, mlp.vision_moe); the names of both are read.
//
// A linear may be quantised already: several tensors, as stored_quantisation.h says.
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/spec.h"

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
  down,  // of the layer's MLP, or of each of its experts
  router,
  router_bias,  // of a mixture of experts
  vision_gate,
  vision_up,
  vision_down,
  vision_router,
  vision_router_bias,  // the same for vision rows
  key_scale,
  value_scale,  ///< static scales of int8 keys and values, a number for each channel
  vision,       // a tensor of the tower or the resampler
  draft_embedding_norm,
  draft_hidden_norm,
  draft_projection,  // of the draft layer, whose block has the weights of a dense layer
};

/// Of wint2 (kernels/wint2.h), beside codes and scales of groups.
struct Wint2Tensors {
  const FileTensor* super_scales = nullptr;
  const FileTensor* code_scales = nullptr;
  const FileTensor* code_zps = nullptr;
};

/// A part of a tensor, as a matrix of outputs × inputs. Norms and biases are one output row.
struct WeightSource {
  Weight weight{};
  int layer = 0;                       ///< or kDraftLayer; of Weight::vision its index in vision_tensors()
  int expert = kNoExpert;              ///< shared experts come after the others
  const FileTensor* tensor = nullptr;  ///< in the Checkpoint
  std::string name;                    ///< in the file
  std::int64_t first = 0;              ///< element of the tensor where the part begins
  std::int64_t stride = 0;             ///< elements from one of its lines to the next
  bool transposed = false;             ///< a line holds an input's weights rather than an output's
  int outputs = 0;
  int inputs = 0;

  /// Of a part of longer rows: the input of a whole row that is the first here, and how many the row has; 0,
  /// 0 for whole rows.
  int first_input = 0;
  int row_inputs = 0;

  /// Of a source that is quantised already: `tensor` holds codes, which `first` and `stride` count in rows of
  /// outputs, whatever their order; never transposed. Of wint2 they count columns: a line of `stride` outputs
  /// has four inputs of each, and in `scales` kernels::kWint2Unit.
  std::optional<StoredFormat> stored{};
  const FileTensor* scales = nullptr;
  std::int64_t first_scale = 0;
  std::int64_t scale_stride =
      0;  ///< scales from one output's first to the next one's; fp8: from one row to the next
  int first_in_block = 0;  ///< as in kernels::StoredScales
  /// Of W4A8: the tensor with the static scale of the rows that it multiplies.
  const FileTensor* input_scale = nullptr;
  Wint2Tensors wint2{};

  std::uint64_t offset() const;      ///< in the tensor's file, where the first element lies
  std::uint64_t row_offset() const;  ///< where the first row begins of which this is a part
  std::uint64_t bytes() const;       ///< of its elements alone
  std::uint64_t span() const;        ///< from the first element to the last

  static constexpr int kNoExpert = -1;
  static constexpr int kDraftLayer = -1;
};

struct TensorMap {
  std::vector<WeightSource> sources;  ///< every weight of the network exactly once
  bool transposed = false;            ///< linears are [inputs, outputs]; norms and the embedding never are
  bool tied = false;                  ///< the head is the embedding; there is no lm_head source
  std::vector<std::string>
      skipped;  ///< known and not needed: draft layers, rotation tables, a tied head's copy
};

/// Assigns every tensor. The error says which tensors are missing, unknown, or of the wrong shape or type, or
/// in which layer the checkpoint has experts and the config does not, or the other way round.
Result<TensorMap> map_tensors(const ModelSpec& spec, const Checkpoint& checkpoint);

/// Assigns the tensors of the draft layer alone, "model.mtp_…", and looks at no others. `spec`: the model's,
/// with the stored_quantisation of this checkpoint. The projection is read in either orientation.
Result<TensorMap> map_draft_tensors(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace troupe::model
