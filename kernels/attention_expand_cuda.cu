// 8-bit pages expanded for prefill attention: kernels/cuda/attention/expand.h.
#include "base/check.h"
#include "kernels/cuda/attention/expand.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

struct ExpandArgs {
  const SequenceRows* sequences = nullptr;
  int count = 0;
  Expanded into{};
  const std::byte* from = nullptr;  // block 0 of the layer
  std::size_t from_block_bytes = 0, to_block_bytes = 0;
  std::size_t from_piece_bytes = 0, to_piece_bytes = 0, scales_offset = 0;
  int pieces = 0;  // K and V of each KV head
  int head_dim = 0;
};

__device__ __forceinline__ int pages_of(const SequenceRows& s) {
  return s.tokens > 1 ? (s.position + s.tokens + kBlockTokens - 1) / kBlockTokens : 0;
}

/// Gives pages to sequences in their order until one does not fit; that one and all after it remain. One
/// block.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const ExpandArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  __shared__ int warp_pages[kPlanThreads / 32];
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Expanded& e = a.into;
  for (int i = thread; i < kExpandedPages; i += kPlanThreads) e.blocks[i] = i;
  int before = 0, left_out = 0;  // of earlier rounds of sequences
  for (int base = 0; base < a.count; base += kPlanThreads) {
    const int s = base + thread;
    SequenceRows sequence = s < a.count ? a.sequences[s] : SequenceRows{};
    int pages = pages_of(sequence);
    int sum = pages;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, unsigned(step));
      if (lane >= step) sum = min(sum + other, kExpandedPages + 1);
    }
    if (lane == 31) warp_pages[warp] = sum;
    __syncthreads();
    int total = before;
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      if (w == warp) sum = min(sum + total, kExpandedPages + 1);
      total = min(total + warp_pages[w], kExpandedPages + 1);
    }
    const bool fits = pages > 0 && sum <= kExpandedPages;
    const bool remains = pages > 0 && !fits;
    left_out += __syncthreads_count(remains);
    before = total;
    if (s >= a.count) continue;
    // first_page[s + 1] is the end of s; past the last sequence that fits it does not grow.
    e.first_page[s + 1] = min(sum, kExpandedPages);
    SequenceRows remaining = sequence, fitting = sequence;
    fitting.blocks = e.blocks + (fits ? sum - pages : 0);
    if (!fits) fitting.tokens = 0;
    if (!remains) remaining.tokens = 0;
    e.fitting[s] = fitting;
    e.remaining[s] = remaining;
  }
  if (thread == 0) {
    e.first_page[0] = 0;
    *e.remaining_count = left_out;
  }
}

/// A warp expands 16 dimensions of 32 tokens at a time; a block takes K or V of one KV head of a page.
template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads) expand_kernel(const ExpandArgs a) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const Expanded& e = a.into;
  const int pages = e.first_page[a.count];
  for (int item = int(blockIdx.x); item < pages * a.pieces; item += int(gridDim.x)) {
    const int page = item / a.pieces, piece = item % a.pieces;
    int low = 0, high = a.count;  // the last sequence whose first page is <= page
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (e.first_page[middle] <= page ? low : high) = middle;
    }
    const SequenceRows sequence = a.sequences[low];
    if (e.fitting[low].tokens == 0) continue;
    const int in_sequence = page - e.first_page[low];
    const std::byte* from = a.from + std::size_t(sequence.blocks[in_sequence]) * a.from_block_bytes +
                            std::size_t(piece) * a.from_piece_bytes;
    auto* to =
        reinterpret_cast<Bf16*>(static_cast<std::byte*>(e.kv.data) + std::size_t(page) * a.to_block_bytes +
                                std::size_t(piece) * a.to_piece_bytes);
    const int tokens = min(kBlockTokens, sequence.position + sequence.tokens - in_sequence * kBlockTokens);
    const int chunks = a.head_dim / 16;
    for (int i = int(threadIdx.x); i < tokens * chunks; i += kThreads) {
      const int t = i / chunks, d = i % chunks * 16;
      const uint4 codes = *reinterpret_cast<const uint4*>(from + kv_code_index(a.head_dim, t, d));
      const float scale = reinterpret_cast<const float*>(from + a.scales_offset)[t];
      const std::uint32_t four[4] = {codes.x, codes.y, codes.z, codes.w};
      std::uint32_t out[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto scaled = [&](std::uint32_t two) {
          return pack_two<Bf16>(__uint_as_float(two << 16) * scale,
                                __uint_as_float(two & 0xffff0000u) * scale);
        };
        out[2 * j] = scaled(expand_two<kFormat, 0, 1>(four[j]));
        out[2 * j + 1] = scaled(expand_two<kFormat, 2, 3>(four[j]));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        *reinterpret_cast<uint4*>(to + kv_index(true, a.head_dim, t, d + 8 * j)) =
            make_uint4(out[4 * j], out[4 * j + 1], out[4 * j + 2], out[4 * j + 3]);
      }
    }
  }
}

}  // namespace

void expand(Cuda& device, const Attention& op, const Expanded& into) {
  TROUPE_CHECK(op.kv.quantised() && op.kv.dtype == DType::bf16 && op.kv.head_dim % 64 == 0);
  const ExpandArgs arguments{
      .sequences = op.batch.sequences,
      .count = op.batch.count,
      .into = into,
      .from = static_cast<const std::byte*>(op.kv.data) + op.kv.key_offset(0, op.layer, 0),
      .from_block_bytes = op.kv.block_bytes(),
      .to_block_bytes = into.kv.block_bytes(),
      .from_piece_bytes = op.kv.piece_bytes(),
      .to_piece_bytes = into.kv.piece_bytes(),
      .scales_offset = op.kv.code_bytes(),
      .pieces = 2 * op.kv.kv_heads,
      .head_dim = op.kv.head_dim};
  troupe::cuda::launch(device, plan_kernel, {.grid = 1, .block = kPlanThreads}, arguments);
  const auto kernel =
      op.kv.format == KvFormat::int8 ? expand_kernel<KvFormat::int8> : expand_kernel<KvFormat::fp8>;
  troupe::cuda::launch(
      device, kernel,
      {.grid = unsigned(kBlocksPerMultiprocessor * device.multiprocessors()), .block = kThreads}, arguments);
}

}  // namespace troupe::kernels::cuda
