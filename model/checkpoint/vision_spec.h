#pragma once
// The vision side of an ERNIE-4.5 vision-language model, read from its config.json: tower, resampler, and
// what differs in the decoder.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/ids.h"
#include "base/status.h"

namespace troupe::model {

inline constexpr float kTowerEps = 1e-6f;            ///< of every LayerNorm; config.json does not say it
inline constexpr double kTowerRopeTheta = 10'000.0;  ///< likewise

/// All counts are positive; head_dim() is a multiple of 4. A patch has kPatchBytes (base/patch_grid.h), and
/// kMergeSide² patches of kMergeFrames frames become one token.
struct VisionSpec {
  int depth = 0;  ///< blocks of the tower
  int width = 0;
  int heads = 0;
  int intermediate = 0;         ///< of a block's MLP
  int expert_intermediate = 0;  ///< of an expert of vision rows; there are as many as ModelSpec::experts
  int temporal_pairs = 0;       ///< last pairs of a decoder's head that turn with time (freq_allocation)

  // Tokens. Those of vision rows are the patches and the four boundaries.
  TokenId patch = 0;  ///< stands for each token of an image; the hub's models use it for videos too
  TokenId video_patch = 0;
  TokenId image_start = 0, image_end = 0;
  TokenId video_start = 0, video_end = 0;

  int head_dim() const { return width / heads; }
  int merged_width() const { return 4 * width; }  ///< of the patches that become one token, of one frame

  bool is_boundary(TokenId id) const {
    return id == image_start || id == image_end || id == video_start || id == video_end;
  }
};

/// What a config.json says of its two kinds of experts and of its tower. Changes `config` into that of the
/// text model alone: text_config's keys move up, a pair of numbers becomes its first, mlp_layer_types becomes
/// first layer, last layer and interval. Errors name the key, the value and what is allowed; layers with
/// experts for one kind of row alone are Code::unsupported. `where` begins the messages.
Status split_vision(nlohmann::json& config, const std::string& where, VisionSpec& vision);

/// Checks what depends on both sides: pairs of a head and ids of the vocabulary.
Status check_vision(const VisionSpec& vision, int head_dim, int vocab, const std::string& where);

}  // namespace troupe::model
