#pragma once
// The shape of the network, read from a checkpoint's config.json and validated.
//
// Engine and worker read the file each for itself; they compare spec_hash() to make sure that it was the
// same.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gpu/dtype.h"
#include "model/checkpoint/expert_tensors.h"
#include "model/checkpoint/stored_quantisation.h"
#include "model/checkpoint/vision_spec.h"

namespace troupe::model {

/// An ERNIE-4.5 decoder, dense or with mixtures of experts, and the vision side if it has one. All counts but
/// those of experts are positive, products of any two fit in 64 bits, and heads is a multiple of kv_heads.
struct ModelSpec {
  std::string architecture;  ///< "Ernie4_5ForCausalLM", as the file names it
  int vocab = 0;             ///< rows of the embedding; the tokenizer may know fewer
  int hidden = 0;
  int intermediate = 0;  ///< width of a dense layer's MLP
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;       ///< heads · head_dim may differ from hidden
  int max_positions = 0;  ///< positions that the model was trained for
  float rope_theta = 0;
  float rms_norm_eps = 0;
  int experts = 0;              ///< of a layer, without the shared ones; 0 in a dense model
  int top_k = 0;                ///< experts of a token, 1 … experts
  int expert_intermediate = 0;  ///< width of an expert's MLP
  int shared_experts = 0;  ///< all tokens take them; one MLP of width shared_experts · expert_intermediate
  int moe_start = 0;       ///< first layer that may be a mixture of experts
  int moe_end = -1;        ///< the last, at most layers - 1
  int moe_interval = 1;
  /// True if the head is the embedding. Absent: it is, unless the checkpoint has an lm_head.
  std::optional<bool> tied;
  float initializer_range = 0.02f;                        ///< standard deviation of dummy weights
  std::optional<DType> stored;                            ///< dtype of the weights, if the file names it
  std::optional<StoredQuantisation> stored_quantisation;  ///< of a checkpoint that is quantised already
  std::vector<TokenId> eos_ids;  ///< of config.json; generation_config.json may name more
  int nextn_layers = 0;  ///< draft layers that the file says the checkpoint has (num_nextn_predict_layers)
  /// Draft layers that are loaded, 0 or 1: set where the model is opened, never by the file. Keys and values
  /// of the draft layer follow those of the model's layers.
  int draft_layers = 0;
  /// Of a vision-language model, whose experts above are those of text rows.
  std::optional<VisionSpec> vision;

  /// Set in the shape of one rank's part alone (ranks/part.h): `count` 0 is everything.
  struct Held {
    int first = 0;
    int count = 0;
  };
  Held held_tokens;   ///< rows of the embedding and of the head
  Held held_experts;  ///< shared ones not counted

  int tokens_held() const { return held_tokens.count > 0 ? held_tokens.count : vocab; }
  int experts_held() const { return held_experts.count > 0 ? held_experts.count : experts; }

  int q_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  int kv_layers() const { return layers + draft_layers; }
  /// True if the layer is a mixture of experts, false if it is a dense MLP.
  bool moe_layer(int layer) const {
    return experts > 0 && (layer + 1) % moe_interval == 0 && layer >= moe_start && layer <= moe_end;
  }
  int moe_layers() const;  ///< number of layers that are mixtures of experts
  /// True if there is an MLP of the width `intermediate`.
  bool has_dense_mlp() const { return moe_layers() < layers || draft_layers > 0; }
  /// Bytes of one token's keys and values in all layers.
  std::int64_t kv_bytes_per_token(DType type) const;
  /// Elements of all weights; an untied head counts.
  std::int64_t parameters() const;
  /// Elements of the weights that one text token uses: top_k of a layer's experts and the shared ones.
  std::int64_t active_parameters() const;
};

/// Reads and validates `directory`/`config_name`. Errors name the file, the key, the value and what is
/// allowed. What a model of the family has and cannot run is Code::unsupported; any other architecture is
/// invalid_argument and named. A vision-language model may have its keys flat, as the hub, or in text_config,
/// as transformers. A mixture of experts needs the keys for the number of experts, the experts of a token,
/// and their width. How many experts are shared and which layers have experts is read off the tensors in
/// `directory` where the file does not say; without tensors, none are shared and all layers but the first
/// have experts. Other missing keys have the defaults of transformers.
Result<ModelSpec> read_spec(const std::filesystem::path& directory,
                            const std::string& config_name = "config.json");

/// Finds the experts among the tensors of the checkpoint that belongs to a config.json. The argument is
/// hidden_size.
using FindExpertTensors = std::function<Result<ExpertTensors>(int)>;

/// The same from the file's text; `where` begins the messages. `find` is called if a key about experts is
/// missing; null: there are no tensors.
Result<ModelSpec> parse_spec(std::string_view json, const std::string& where,
                             const FindExpertTensors& find = {});

/// One module of each kind that checkpoints quantise, as -PT checkpoints name them: attention, a dense MLP,
/// an expert, the head. Empty where the model has none.
std::vector<std::string> linear_modules(const ModelSpec& spec);

/// The same of an expert of that layer, and of the shared experts.
std::string expert_module(int layer);
std::string shared_module(int layer);

/// FNV-1a of every field that shapes the network: equal for equal specs.
std::uint64_t spec_hash(const ModelSpec& spec);

}  // namespace troupe::model
