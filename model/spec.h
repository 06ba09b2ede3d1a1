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

/// An ERNIE-4.5 dense decoder. All counts are positive, products of any two fit in 32 bits, and
/// heads is a multiple of kv_heads.
struct ModelSpec {
  std::string architecture;  ///< "Ernie4_5ForCausalLM", as the file names it
  int vocab = 0;             ///< rows of the embedding; the tokenizer may know fewer
  int hidden = 0;
  int intermediate = 0;  ///< width of the MLP
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;       ///< heads · head_dim may differ from hidden
  int max_positions = 0;  ///< positions that the model was trained for
  float rope_theta = 0;
  float rms_norm_eps = 0;
  /// Whether the head is the embedding. Absent: it is, unless the checkpoint has an lm_head.
  std::optional<bool> tied;
  std::optional<DType> stored;   ///< what the file says its weights are, if it does
  std::vector<TokenId> eos_ids;  ///< of config.json; generation_config.json may say more

  int q_width() const { return heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  /// Keys and values of one token, all layers.
  std::int64_t kv_bytes_per_token(DType type) const;
  /// Elements of all weights; an untied head counts.
  std::int64_t parameters() const;
};

/// Reads and validates `directory`/`config_name`. Errors name the file, the key, the value and what is
/// allowed. A model of the family that cannot run yet is Code::unsupported; any other architecture is
/// invalid_argument and named.
Result<ModelSpec> read_spec(const std::filesystem::path& directory,
                            const std::string& config_name = "config.json");

/// The same from the file's text; `where` begins the messages.
Result<ModelSpec> parse_spec(std::string_view json, const std::string& where);

/// Equal for two specs exactly when every field that shapes the network is (FNV-1a of the values).
std::uint64_t spec_hash(const ModelSpec& spec);

}  // namespace troupe::model
