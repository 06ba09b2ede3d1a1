#pragma once
// What a checkpoint's config.json says, validated: the shape of the network and nothing else.
//
// Both sides of the rings read the same file; spec_hash() is how they find out that they did not.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gpu/dtype.h"

namespace troupe::model {

/// An ERNIE-4.5 text decoder, dense or with mixtures of experts. All counts but those of experts are
/// positive, products of any two fit in 64 bits, and heads is a multiple of kv_heads.
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
  int top_k = 0;                ///< experts that a token is given to, 1 … experts
  int expert_intermediate = 0;  ///< width of an expert's MLP
  int shared_experts = 0;  ///< all tokens take them; one MLP of width shared_experts · expert_intermediate
  int moe_start = 0;       ///< first layer that may be a mixture of experts
  int moe_end = -1;        ///< the last, at most layers - 1
  int moe_interval = 1;
  /// Whether the head is the embedding. Absent: it is, unless the checkpoint has an lm_head.
  std::optional<bool> tied;
  float initializer_range = 0.02f;  ///< standard deviation of dummy weights
  std::optional<DType> stored;   ///< what the file says its weights are, if it does
  std::vector<TokenId> eos_ids;  ///< of config.json; generation_config.json may say more

  int q_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  /// Whether the layer is a mixture of experts rather than a dense MLP.
  bool moe_layer(int layer) const {
    return experts > 0 && (layer + 1) % moe_interval == 0 && layer >= moe_start && layer <= moe_end;
  }
  int moe_layers() const;  ///< how many are
  /// Keys and values of one token, all layers.
  std::int64_t kv_bytes_per_token(DType type) const;
  /// Elements of all weights; an untied head counts.
  std::int64_t parameters() const;
  /// Those that one token's logits take: of a layer's experts top_k and the shared ones.
  std::int64_t active_parameters() const;
};

/// Reads and validates `directory`/`config_name`. Errors name the file, the key, the value and what is
/// allowed. A model of the family that cannot run yet is Code::unsupported; any other architecture is
/// invalid_argument and named. Of a mixture of experts the number of experts, of those that a token takes and
/// their width have to be there; other missing keys mean what transformers means by them, and the
/// checkpoint's tensors show where that is wrong.
Result<ModelSpec> read_spec(const std::filesystem::path& directory,
                            const std::string& config_name = "config.json");

/// The same from the file's text; `where` begins the messages.
Result<ModelSpec> parse_spec(std::string_view json, const std::string& where);

/// Equal for two specs exactly when every field that shapes the network is (FNV-1a of the values).
std::uint64_t spec_hash(const ModelSpec& spec);

}  // namespace troupe::model
