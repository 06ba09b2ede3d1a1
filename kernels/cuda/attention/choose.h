#pragma once
// Which kernel runs each part of a batch's attention: a pure function of shapes and of the GPU.
//
// A batch has sequences that decode (one token) and pieces of prompts (more tokens). The host knows the
// number of rows and of sequences alone, which graphs freeze: if there are not more rows than sequences there
// is no piece of a prompt; else both parts are launched, and each kernel skips the other's sequences by what
// device memory says. If the host also knows that no sequence has more than a few tokens, one kernel takes
// them all. Padding is skipped by all.
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/gpu_traits.h"

namespace troupe::kernels::cuda {

enum class AttentionWay {
  none,     ///< the batch has no such part
  decode,   ///< pages stream once through mma.sync for all q heads of a KV head; a long past is cut among
            ///< blocks
  few,      ///< the same for all tokens of a sequence, up to kMostVerified
  flash,    ///< tiles of queries: wgmma on Hopper, else mma.sync
  generic,  ///< any dtype, shape and GPU; slow
};

struct AttentionShape {
  DType dtype = DType::bf16;  ///< of q, out and plain KV memory
  KvFormat kv = KvFormat::plain;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rows = 0;
  int sequences = 0;
  int most_tokens = 0;  ///< Batch::most_tokens
  int first = 0;        ///< Attention::first

  constexpr int group() const { return heads / kv_heads; }
  /// True if the batch may have a sequence with several tokens.
  constexpr bool has_pieces() const { return rows > sequences; }
  /// True if the batch may have a sequence with several tokens, and all have few.
  constexpr bool has_few_tokens() const { return most_tokens > 1 && most_tokens <= kMostVerified; }
};

struct AttentionChoice {
  AttentionWay decodes = AttentionWay::none;  ///< for sequences of one token
  AttentionWay pieces = AttentionWay::none;   ///< for sequences of several
  const char* decodes_reason = "";
  const char* pieces_reason = "";

  /// True if one launch takes every row of every sequence. With `decode` no row's past is cut then.
  constexpr bool one_launch() const { return decodes == pieces; }
};

/// Most q heads of a KV head that the decode kernel takes.
inline constexpr int kDecodeGroup = 8;
/// Shared memory of a block of the decode kernel for one token with its large ring, and of the kernels for
/// several tokens, with columns for one token and for all.
inline constexpr int kLargeDecodeBytes = 227 << 10;
inline constexpr int kFewOneTokenBytes = 113 << 10;
inline constexpr int kFewBytes = 227 << 10;

AttentionChoice choose(const AttentionShape& shape, const GpuTraits& gpu);

const char* to_string(AttentionWay way);
/// "decode (…); pieces of prompts: flash (…)".
std::string to_string(const AttentionChoice& choice);
/// "24 heads, 2 KV heads of 128 bfloat16, 512 rows of 8 sequences".
std::string to_string(const AttentionShape& shape);

}  // namespace troupe::kernels::cuda
