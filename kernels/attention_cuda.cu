// Attention on the GPU: runs each part of a batch as the chooser says. And the generic way, for all dtypes,
// shapes and GPUs.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/static_kv.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/scratch.h"

namespace troupe::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 2 * kBlockTokens;  // two for each token's score, then one for each dimension
constexpr int kPerThread = kMostHeadDim / kThreads;

struct GenericAttentionArgs {
  void* out;
  const void* q;
  const std::byte* kv;
  std::size_t block_bytes;
  std::size_t key_offset, value_offset;  // of block 0, KV head 0
  std::size_t piece_bytes, code_bytes;
  KvFormat format;
  const SequenceRows* sequences;
  int count, heads, group, head_dim;
  int row_elements;  // of q and out
  int first;         // Attention::first
  bool single;       // sequences of one token only
  bool swizzled;
  float scale_log2;
};

/// K or V of a block and a KV head.
template <class Element, bool kCodes>
class KvPiece {
 public:
  __device__ KvPiece(const GenericAttentionArgs& p, const std::byte* at) : p_(p), at_(at) {}
  /// Without the token's scale.
  __device__ float number(int token, int d) const {
    if constexpr (kCodes)
      return kv_number(p_.format, std::uint8_t(at_[kv_code_index(p_.head_dim, token, d)]));
    else
      return to_float(reinterpret_cast<const Element*>(at_)[kv_index(p_.swizzled, p_.head_dim, token, d)]);
  }
  __device__ float scale(int token) const {
    if constexpr (kCodes)
      return reinterpret_cast<const float*>(at_ + p_.code_bytes)[token];
    else
      return 1;
  }
  /// A probability, times the scale of its token, as it multiplies V.
  __device__ float weight(float probability, int token) const {
    if constexpr (!kCodes)
      return to_float(from_float<Element>(probability));
    else if constexpr (sizeof(Element) == 4)
      return probability * scale(token);
    else
      return to_float(from_float<Bf16>(probability * scale(token)));
  }

 private:
  const GenericAttentionArgs& p_;
  const std::byte* at_;
};

/// A block computes one row and one head, in tiles of 64 tokens: all scores of a tile, then what it adds to
/// every dimension of the output.
template <class Element, bool kCodes>
__global__ void __launch_bounds__(kThreads) generic_attention_kernel(const GenericAttentionArgs p) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  __shared__ float q[kMostHeadDim];
  __shared__ float weight[kBlockTokens];
  __shared__ float warp_values[kThreads / 32];
  __shared__ int found;
  const int thread = int(threadIdx.x);
  const int row = int(blockIdx.x) / p.heads, head = int(blockIdx.x) % p.heads;
  if (thread == 0) found = -1;
  __syncthreads();
  for (int s = thread; s < p.count; s += kThreads) {
    if (p.sequences[s].row <= row && row < p.sequences[s].row + p.sequences[s].tokens) found = s;
  }
  const std::size_t at = std::size_t(row) * p.row_elements + std::size_t(head * p.head_dim);
  for (int d = thread; d < p.head_dim; d += kThreads)
    q[d] = to_float(static_cast<const Element*>(p.q)[at + d]);
  __syncthreads();
  if (found < 0) return;  // padding
  const SequenceRows sequence = p.sequences[found];
  if (p.single && sequence.tokens != 1) return;
  const int length = sequence.position + row - sequence.row + 1;
  const int kv_head = head / p.group;
  float o[kPerThread] = {};
  float maximum = -INFINITY, sum = 0;
  for (int base = 0; base < length; base += kBlockTokens) {
    const int tokens = min(kBlockTokens, length - base), begin = base == 0 ? p.first : 0;
    const std::byte* block = p.kv + std::size_t(sequence.blocks[base / kBlockTokens]) * p.block_bytes;
    const KvPiece<Element, kCodes> k(p, block + p.key_offset + kv_head * p.piece_bytes);
    const KvPiece<Element, kCodes> v(p, block + p.value_offset + kv_head * p.piece_bytes);
    float score = 0;
    const int token = thread / 2;
    for (int d = thread % 2; d < p.head_dim; d += 2) {
      score += q[d] * k.number(token, d);
    }
    score += __shfl_xor_sync(~0u, score, 1);
    if constexpr (kCodes) score *= k.scale(token);
    score = token >= begin && token < tokens ? score * p.scale_log2 : -INFINITY;
    float most = score;
    for (int step = 2; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    if (thread % 32 == 0) warp_values[thread / 32] = most;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w) most = fmaxf(most, warp_values[w]);
    most = fmaxf(most, maximum);
    const float shrink = exp2f(maximum - most);
    maximum = most;
    if (thread % 2 == 0) weight[token] = exp2f(score - most);
    __syncthreads();
    sum *= shrink;
    for (int t = begin; t < tokens; ++t) sum += weight[t];
    for (int i = 0; i < kPerThread; ++i) {
      const int d = thread + i * kThreads;
      if (d >= p.head_dim) break;
      o[i] *= shrink;
      for (int t = begin; t < tokens; ++t) {
        o[i] += v.weight(weight[t], t) * v.number(t, d);
      }
    }
    __syncthreads();
  }
  auto* out = static_cast<Element*>(p.out);
  for (int i = 0; i < kPerThread; ++i) {
    const int d = thread + i * kThreads;
    if (d < p.head_dim) out[at + d] = from_float<Element>(o[i] / sum);
  }
  const int used = p.heads * p.head_dim;
  if (head == 0 && used + thread < p.row_elements) {
    out[std::size_t(row) * p.row_elements + used + thread] = from_float<Element>(0);
  }
}

}  // namespace

void run_generic_attention(Cuda& device, const Attention& op, DecodeRows rows) {
  const KvCache& kv = op.kv;
  TROUPE_CHECK(kv.head_dim <= kMostHeadDim);
  const GenericAttentionArgs parameters{.out = op.out,
                                        .q = op.q,
                                        .kv = static_cast<const std::byte*>(kv.data),
                                        .block_bytes = kv.block_bytes(),
                                        .key_offset = kv.key_offset(0, op.layer, 0),
                                        .value_offset = kv.value_offset(0, op.layer, 0),
                                        .piece_bytes = kv.piece_bytes(),
                                        .code_bytes = kv.code_bytes(),
                                        .format = kv.format,
                                        .sequences = op.batch.sequences,
                                        .count = op.batch.count,
                                        .heads = op.heads,
                                        .group = op.heads / kv.kv_heads,
                                        .head_dim = kv.head_dim,
                                        .row_elements = padded(op.heads * kv.head_dim),
                                        .first = op.first,
                                        .single = rows == DecodeRows::single,
                                        .swizzled = swizzled(kv.dtype, kv.head_dim),
                                        .scale_log2 = op.scale * std::numbers::log2e_v<float>};
  const troupe::cuda::Shape shape{.grid = unsigned(op.batch.rows * op.heads), .block = kThreads};
  with_element(kv.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto kernel =
        kv.quantised() ? generic_attention_kernel<Element, true> : generic_attention_kernel<Element, false>;
    troupe::cuda::launch(device, kernel, shape, parameters);
  });
}

}  // namespace cuda

namespace cuda {
namespace {

void run_ways(Cuda& device, const Attention& op) {
  const GpuTraits gpu = traits_of(device);
  const AttentionChoice choice = choose(shape_of(op), gpu);
  void* const memory = device.scratch(scratch_bytes(op, gpu));
  if (choice.decodes == AttentionWay::few) return run_decode_attention(device, op, DecodeRows::few, memory);
  if (choice.decodes == AttentionWay::decode)
    run_decode_attention(device, op, choice.one_launch() ? DecodeRows::all : DecodeRows::single, memory);
  if (choice.decodes == AttentionWay::generic) {
    run_generic_attention(device, op,
                          choice.pieces == AttentionWay::flash ? DecodeRows::single : DecodeRows::all);
  }
  if (choice.pieces == AttentionWay::flash) run_prefill_attention(device, op, memory);
}

}  // namespace
}  // namespace cuda

void run(Cuda& device, const Attention& op) {
  TROUPE_CHECK(op.heads % op.kv.kv_heads == 0);
  cuda::run_ways(device, op);
  if (op.static_kv.given())
    cuda::scale_outputs(device,
                        {op.out, op.kv.dtype, op.batch.rows, op.heads, op.kv.kv_heads, op.kv.head_dim},
                        op.static_kv.values);
}

}  // namespace troupe::kernels
