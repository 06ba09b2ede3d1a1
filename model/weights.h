#pragma once
// The network's weights in device memory, in the device's own order, each in its own format.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/buffer.h"
#include "kernels/matrix.h"
#include "kernels/moe.h"
#include "kernels/static_kv.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/spec.h"
#include "model/checkpoint/tensor_map.h"
#include "model/load_progress.h"
#include "model/ranks/shard.h"
#include "model/vision/vision_weights.h"
#include "model/weight_formats.h"

namespace troupe::model {

/// The experts of vision rows, which have their own router and no shared slices.
struct VisionExperts {
  kernels::Matrix router{};
  const float* router_bias = nullptr;
  kernels::MatrixStack gate_up{};
  kernels::MatrixStack down{};
};

struct LayerWeights {
  const float* input_norm = nullptr;
  kernels::Matrix qkv{};  ///< query, key and value rows, one after the other
  kernels::Matrix attention_out{};
  kernels::StaticKv static_kv{};  ///< of a checkpoint with static scales
  const float* post_norm = nullptr;

  // A dense layer's MLP,
  kernels::Matrix gate_up{};
  kernels::Matrix down{};
  // or a mixture of experts: see kernels/moe.h. The shared experts' slices end the stacks, or are MLPs of
  // their own where their format is another.
  kernels::Matrix router{};            ///< f32; experts outputs
  const float* router_bias = nullptr;  ///< (experts)
  kernels::MatrixStack expert_gate_up{};
  kernels::MatrixStack expert_down{};
  kernels::MatrixStack shared_gate_up{};  ///< count 0: the slices are in the stacks above
  kernels::MatrixStack shared_down{};
  kernels::StaticInput* gate_up_inputs = nullptr;  ///< (experts held) of W4A8 experts; null: of others
  kernels::StaticInput* down_inputs = nullptr;
  VisionExperts vision{};  ///< of a vision-language model's mixture

  bool moe() const { return expert_gate_up.count > 0; }
};

/// The layer that drafts the token after the next one: see draft_pass.inl.
struct DraftWeights {
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  kernels::Matrix
      projection{};      ///< hidden outputs; inputs: hidden of the embedding, then as many of the hidden row
  LayerWeights block{};  ///< dense

  bool loaded() const { return projection.outputs > 0; }
};

/// The place of every weight in one piece of memory. With a null View only `bytes` is meaningful.
struct WeightLayout {
  kernels::Matrix embedding{};
  kernels::Matrix lm_head{};  ///< the embedding itself when tied and of the same format
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
  VisionWeights vision{};  ///< of a vision-language model
  DraftWeights draft{};    ///< with ModelSpec::draft_layers
  std::size_t bytes = 0;

  static WeightLayout make(const ModelSpec& spec, const WeightFormats& formats, bool tied, View memory);

  /// `layer` as in WeightSource.
  const LayerWeights& layer(int layer) const {
    return layer == WeightSource::kDraftLayer ? draft.block : layers[static_cast<std::size_t>(layer)];
  }

  /// A tied head that is a matrix of its own, because its format differs from the embedding's.
  bool head_copies_embedding(bool tied) const { return tied && lm_head.format != embedding.format; }
};

/// Name of a weight in a -PT checkpoint: what a dummy weight's seed is made from. `expert` as in
/// WeightSource; the shared experts' slices are counted on after the experts.
std::string weight_name(Weight weight, int layer, int expert);

/// Of dummy correction biases. ERNIE-4.5-21B-A3B's lie at 22 … 63, and all of a layer within 0.005 … 0.03.
inline constexpr float kLowestBias = 22, kBiasLevels = 41, kLeastBiasDeviation = 0.0015f;

/// Owns the memory. The device outlives it.
template <Device D>
class Weights {
 public:
  /// Reads, converts or quantises, and packs every source. The checkpoint is not needed afterwards. A file
  /// that cannot be read any more is a Status that names it; so is a tensor to be quantised with a NaN or
  /// infinity.
  static Result<Weights> load(D& device, const ModelSpec& spec, const WeightFormats& formats,
                              const TensorMap& map, const LoadProgress& progress = {});

  /// Every weight is drawn as kernels::FillRandom says, from `seed` and the weight's name. With r the spec's
  /// initializer_range: matrices N(0, r), norms 1 + N(0, r). Correction biases are as in released models: a
  /// level of the layer, kLowestBias to kBiasLevels above it, and around it N(0, r²), at least N(0,
  /// kLeastBiasDeviation), whose numbers have bf16. The spread is small beside the probabilities that it is
  /// added to, so routing stays nearly as even as without it. Quantised formats quantise the same numbers.
  /// `spec` is the model's; a rank draws its part of the same numbers.
  static Result<Weights> dummy(D& device, const ModelSpec& spec, const WeightFormats& formats,
                               std::uint64_t seed, const Shard& shard = {});

  const WeightLayout& layout() const { return layout_; }
  std::size_t bytes() const { return memory_.bytes(); }
  /// What an operator may want to know of the load, in a sentence; empty: nothing.
  std::string note() const {
    if (wint2_outputs_ == 0) return {};
    return std::to_string(wint2_differing_) + " of " + std::to_string(wint2_outputs_) +
           " wint2 outputs have a byte whose code word depends on how a product is rounded; here it is not";
  }

 private:
  std::int64_t wint2_differing_ = 0, wint2_outputs_ = 0;
  Buffer<D> memory_;
  WeightLayout layout_;
};

}  // namespace troupe::model
