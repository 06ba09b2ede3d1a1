#pragma once
// Causal attention of a batch over paged keys and values.
#include "base/draft_choices.h"
#include "gpu/device.h"
#include "kernels/batch.h"
#include "kernels/static_kv.h"

namespace troupe::kernels {

inline constexpr int kMostHeadDim = 256;  ///< the largest head_dim that every device supports
inline constexpr int kMostGroup = 48;     ///< the most query heads per KV head that every device supports
/// Up to this Batch::most_tokens a GPU reads each sequence's past once for all its tokens, divided among its
/// multiprocessors: a last token and its drafts.
inline constexpr int kMostVerified = 1 + kMostDrafts;

/// Row r at position p, head j, with KV head j / (heads / kv_heads):
/// out[r][j] = sum over first <= t <= p of softmax_t(scale * q[r][j] · K[t]) * V[t].
/// The batch's own keys and values must already be in KV memory. Softmax is computed in fp32; probabilities
/// are rounded to kv.dtype before the product with V. With 8-bit KV, K[t] and V[t] are codes times their
/// token's scale: K's scale multiplies the fp32 score, and V's the probability, which is then rounded to bf16
/// (fp32: not rounded). The GPU's flash kernel instead reads K and V rounded to bf16 after the scale. Tokens
/// are processed in tiles with absolute 64-token borders and merged in a fixed order, so a row's bits do not
/// depend on its prefill chunk or on other rows.
struct Attention {
  void* out = nullptr;      ///< (rows, padded(heads * head_dim)) of kv.dtype; may not be q
  const void* q = nullptr;  ///< (rows, padded(heads * head_dim)) of kv.dtype
  KvCache kv{};
  int layer = 0;
  int heads = 0;    ///< a multiple of kv.kv_heads, at most kMostGroup times as many
  float scale = 0;  ///< 1 / sqrt(head_dim)
  Batch batch{};
  /// `batch`, its block tables, and the keys and values of the tokens before each row's own are settled
  /// (kernels/cuda/launch.cuh): a device on which ops overlap may read them while the previous op runs.
  bool settled = false;
  /// Tokens before it are not attended to, and their keys and values may be anything; 0 or 1.
  /// Every row's position is at least this.
  int first = 0;
  /// Multiplies each output by largest magnitude / 127 of its KV head's channels, after it is rounded, and
  /// rounds it again.
  StaticKv static_kv{};
};

void run(Cpu& device, const Attention& op);
void run(Cuda& device, const Attention& op);

}  // namespace troupe::kernels
