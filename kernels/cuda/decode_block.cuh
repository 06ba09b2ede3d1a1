#pragma once
// Attention of rows that decode: one query a sequence against its whole past, which is read once, at the
// speed of memory.
//
// A block has a warp that brings pages (K and V of 64 tokens of one KV head) into a ring of stages in shared
// memory, and four warps that consume them. Warp w sees tokens 16w … 16w + 15 of every page and keeps a
// softmax of its own: running maximum, sum, and O[head_dim × 8 heads]. The tensor cores get K and V^T as
// the 16-row operand and the KV head's q heads as the 8 columns, so that groups of 3, 5 and 8 q heads cost
// one product, and every statistic of a head lies in the lanes that hold its scores and its outputs:
//   S[16 tokens × 8] = K[16 × head_dim] · Q^T       O[head_dim × 8] += V^T[head_dim × 16] · P^T[16 × 8]
// At the end of an item the four results are merged through the last page's stage. Which pages a block
// reads: cuda/decode_schedule.cuh.
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_schedule.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/ptx_stream.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/warp_mma.cuh"

namespace troupe::kernels::cuda::decode {

using troupe::cuda::Barrier;

constexpr int kGroup = 8;  // columns of the product: the most q heads of a KV head
constexpr int kConsumers = 4;
constexpr int kConsumerThreads = 32 * kConsumers;
constexpr int kThreads = kConsumerThreads + 32;
constexpr int kBlocksPerMultiprocessor = 2;
/// Up to so many sequences one block a multiprocessor is faster: fewer partial results, and the next kernel's
/// blocks find room before these are done. With more work it is not, as a step shows and this kernel alone
/// does not: while the kernel before ends, two blocks may be put on a multiprocessor that is free early and
/// none on another.
constexpr int kFewSequences = 8;

struct Parameters {
  void* out;
  const void* q;
  const std::byte* kv;
  std::size_t block_bytes;
  std::size_t key_offset, value_offset;  // of block 0, KV head 0
  const Sequence* sequences;
  float* partials;
  std::uint32_t* counters;
  int count, rows;
  int kv_heads, group;
  int row_elements;  // of q and out
  float scale_log2;
  DecodeRows mode;
  bool teams;    // clusters of kTeam blocks
  bool settled;  // Attention::settled, of single rows: pages may be brought while the kernel before runs
};

/// What a stage holds; written by the producer before the stage is full.
struct __align__(16) PageNote {
  int tokens;  // 1 … 64; 0: no more work, and the rest is the TeamItem
  int first;   // of its part: q comes with it
  int last;    // of its part
  int row;
  int kv_head;
  int slot;
  int first_block;
  int parts;  // of the item; TeamItem::pages
};

/// A partial result: O[kGroup][head_dim] relative to the maximum, then (maximum, sum)[kGroup].
constexpr int partial_floats(int head_dim) { return kGroup * head_dim + 2 * kGroup; }

template <int kHeadDim>
struct Layout {
  static constexpr int kPieceBytes = kBlockTokens * kHeadDim * 2;
  static constexpr int kQStride = kHeadDim * 2 + 16;  // bytes; ldmatrix finds eight rows in eight banks
  static constexpr int kOStride = kHeadDim + 4;       // floats; the same for the merge's stores
  static constexpr int kStages = kHeadDim == 64 ? 6 : 3;
  static constexpr unsigned kGatheredBytes = kHeadDim * sizeof(float) + sizeof(float2);  // from one block
  struct __align__(128) Stage {
    std::byte k[kPieceBytes];
    std::byte v[kPieceBytes];
  };
  struct Shared {
    Stage stage[kStages];
    std::byte q[kStages][kGroup * kQStride];
    PageNote note[kStages];
    Barrier full[kStages];
    Barrier empty[kStages];
    float2 stats[kConsumers][kGroup];  // a merge's maxima and sums
    int arrived;
    // Of the head that this block of a cluster finishes: from each block of it O and (maximum, sum).
    Barrier gathered;
    float gathered_o[kTeam][kHeadDim];
    float2 gathered_stats[kTeam];
  };
  static_assert(sizeof(Stage) >= kConsumers * kGroup * kOStride * sizeof(float));
};

__device__ __forceinline__ void meet_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory");
}

// ---- the producer warp

template <int kHeadDim>
class Producer {
 public:
  using L = Layout<kHeadDim>;
  __device__ Producer(typename L::Shared& shared, const Parameters& p, int lane)
      : shared_(shared), p_(p), lane_(lane) {
    if (!p.settled) wait_for_previous();
  }

  __device__ void operator()(const DecodePart& part, const Shares& shares) {
    for (int base = part.first_page; base < part.end_page; base += 32) {
      const BlockId mine = base + lane_ < part.end_page ? __ldcg(part.blocks + base + lane_) : 0;
      const int pages = min(32, part.end_page - base);
      for (int i = 0; i < pages; ++i) page(part, shares, base + i, __shfl_sync(~0u, mine, i));
    }
  }

  /// Every block of a cluster finishes one head of its item.
  __device__ void expect(const TeamItem& item, int rank) {
    if (item.parts() > 1 && rank < p_.group && lane_ == 0)
      troupe::cuda::arrive_expect(&shared_.gathered, unsigned(item.parts()) * L::kGatheredBytes);
  }
  __device__ void finish(const TeamItem& item) {
    wait_for_previous();
    troupe::cuda::wait(&shared_.empty[stage_], parity_ ^ 1);
    if (lane_ == 0) {
      shared_.note[stage_] = {.tokens = 0, .row = item.row, .kv_head = item.kv_head, .parts = item.pages};
      troupe::cuda::arrive(&shared_.full[stage_]);
    }
  }

 private:
  /// Then the q that earlier pages still want.
  __device__ void wait_for_previous() {
    if (waited_) return;
    troupe::cuda::wait_for_previous();
    waited_ = true;
    for (int stage = 0; stage < L::kStages; ++stage) {
      const int row = __shfl_sync(~0u, row_, stage), kv_head = __shfl_sync(~0u, kv_head_, stage);
      if (row >= 0) bring_q(stage, row, kv_head);
    }
  }
  __device__ void bring_q(int stage, int row, int kv_head) {
    const int head = lane_ - 16;
    if (head < 0 || head >= p_.group) return;
    const auto* q = static_cast<const std::byte*>(p_.q) + std::size_t(row) * p_.row_elements * 2 +
                    std::size_t(kv_head * p_.group + head) * kRowBytes;
    troupe::cuda::copy_bulk(&shared_.q[stage][head * L::kQStride], q, kRowBytes, &shared_.full[stage]);
  }

  __device__ void page(const DecodePart& part, const Shares& shares, int page, BlockId block) {
    // Before the wait: pages without the row's own token, while no stage has to come free.
    if (brought_++ == L::kStages || page >= (part.length - 1) / kBlockTokens) wait_for_previous();
    const int tokens = min(kBlockTokens, part.length - page * kBlockTokens);
    const bool first = page == part.first_page, last = page == part.end_page - 1;
    Barrier* full = &shared_.full[stage_];
    troupe::cuda::wait(&shared_.empty[stage_], parity_ ^ 1);
    const std::byte* from = p_.kv + std::size_t(block) * p_.block_bytes +
                            std::size_t(part.kv_head) * L::kPieceBytes +
                            (lane_ % 2 == 0 ? p_.key_offset : p_.value_offset);
    std::byte* to = lane_ % 2 == 0 ? shared_.stage[stage_].k : shared_.stage[stage_].v;
    if (tokens == kBlockTokens) {
      if (lane_ < 2) troupe::cuda::copy_bulk(to, from, L::kPieceBytes, full);
    } else if (lane_ < 2 * (kHeadDim / 64)) {  // of each half the rows there are
      const int half = lane_ / 2 * (kBlockTokens * 128);
      troupe::cuda::copy_bulk(to + half, from + half, unsigned(tokens) * 128, full);
    }
    if (first && waited_) bring_q(stage_, part.row, part.kv_head);
    if (first && !waited_ && lane_ == stage_) {
      row_ = part.row;
      kv_head_ = part.kv_head;
    }
    // The copies are on their way: the rest has time. The phase does not end before its one arrival.
    if (lane_ == 0) {
      PageNote note{.tokens = tokens,
                    .first = first,
                    .last = last,
                    .row = part.row,
                    .kv_head = part.kv_head,
                    .slot = part.slot};
      if (last && part.slot >= 0) {
        note.first_block = int(shares.of(part.item));
        note.parts = int(shares.of(part.item + part.item_pages - 1)) - note.first_block + 1;
      }
      shared_.note[stage_] = note;
      const unsigned rows = 2 * unsigned(tokens) + (first ? unsigned(p_.group) : 0);
      troupe::cuda::arrive_expect(full, rows * kRowBytes);
    }
    __syncwarp();
    if (++stage_ == L::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  static constexpr unsigned kRowBytes = kHeadDim * 2;
  typename L::Shared& shared_;
  const Parameters& p_;
  int lane_;
  int stage_ = 0;
  unsigned parity_ = 0;
  int brought_ = 0;  // pages
  bool waited_ = false;
  int row_ = -1, kv_head_ = 0;  // of lane s: of the q that stage s wants after the wait
};

// ---- the consumer warps

template <int kFloats>
struct __align__(4 * kFloats) Floats {
  static constexpr int kSize = kFloats;
  float v[kFloats];
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) v[i] *= factor;
  }
  __device__ void add(float factor, const Floats& other) {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) v[i] += factor * other.v[i];
  }
  /// The lane's share of a row that other blocks have written.
  __device__ void load(const float* row, int lane) {
    if constexpr (kFloats == 4) {
      const float4 f = __ldcg(reinterpret_cast<const float4*>(row) + lane);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
      static_assert(kFloats == 2);
      const float2 f = __ldcg(reinterpret_cast<const float2*>(row) + lane);
      v[0] = f.x, v[1] = f.y;
    }
  }
};

/// Adds one to a counter of all blocks and returns the sum; orders what the block's threads wrote before its
/// last barrier before what they read after the next.
__device__ __forceinline__ int count_up(std::uint32_t* counter) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before + 1;
}

template <class Element, int kHeadDim>
class Consumer {
 public:
  using L = Layout<kHeadDim>;
  /// A merge gives each warp whole heads, and each lane as many dimensions of one.
  using Vector = Floats<kHeadDim / 32>;
  static constexpr int kHeadsPerWarp = kGroup / kConsumers;

  __device__ Consumer(typename L::Shared& shared, const Parameters& p, int thread)
      : shared_(shared), p_(p), thread_(thread), warp_(thread / 32), lane_(thread % 32) {
    const int swizzle = lane_ % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      k_offset_[i] = (16 * warp_ + lane_ % 16) * 128 + (((2 * i + lane_ / 16) ^ swizzle) * 16);
      v_offset_[i] =
          (16 * warp_ + lane_ / 16 * 8 + lane_ % 8) * 128 + (((2 * i + lane_ / 8 % 2) ^ swizzle) * 16);
    }
  }

  __device__ void consume() {
    forget();
    unsigned parity = 0;
    for (int stage = 0;;) {
      troupe::cuda::wait(&shared_.full[stage], parity);
      const PageNote note = shared_.note[stage];
      if (note.tokens == 0) return gather({note.parts, note.row, note.kv_head});
      if (note.first) begin(stage);
      if (note.tokens > 16 * warp_) attend(stage, note.tokens - 16 * warp_);
      if (note.last) end(stage, note);
      __syncwarp();
      troupe::cuda::arrive(&shared_.empty[stage]);
      if (++stage == L::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  __device__ void begin(int stage) {
    const std::uint32_t from =
        troupe::cuda::shared_address(shared_.q[stage]) + (lane_ % 8) * L::kQStride + lane_ / 8 * 16;
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) load_matrices(q_[i], from + i * 64);
  }

  /// Nothing of an item outlives it: the merge has the registers for itself.
  __device__ void forget() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) q_[i][0] = q_[i][1] = q_[i][2] = q_[i][3] = 0;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) o_[i][0] = o_[i][1] = o_[i][2] = o_[i][3] = 0;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
  }

  /// The first `tokens` of this warp's 16 tokens, at least one.
  __device__ void attend(int stage, int tokens) {
    const std::uint32_t k = troupe::cuda::shared_address(shared_.stage[stage].k);
    const std::uint32_t v = troupe::cuda::shared_address(shared_.stage[stage].v);
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      std::uint32_t a[4];
      load_matrices(a, k + i / 4 * (kBlockTokens * 128) + k_offset_[i % 4]);
      multiply_add<Element>(s[i % 2], a, q_[i / 2][i % 2 * 2], q_[i / 2][i % 2 * 2 + 1]);
    }
    std::uint32_t values[kHeadDim / 16][4];  // on their way while the scores become probabilities
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      load_matrices_transposed(values[i], v + i / 4 * (kBlockTokens * 128) + v_offset_[i % 4]);
    }
    const int upper = lane_ / 4;  // tokens of the scores: upper, upper + 8; heads 2 (lane % 4), and the next
    float score[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = upper + i / 2 * 8 < tokens ? (s[0][i] + s[1][i]) * p_.scale_log2 : -INFINITY;
    }
    float most[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(score[i], score[2 + i]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], step));
    }
    if (__any_sync(~0u, most[0] > maximum_[0] || most[1] > maximum_[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        most[i] = fmaxf(most[i], maximum_[i]);
        const float shrink = fast_exp2(maximum_[i] - most[i]);
        maximum_[i] = most[i];
        sum_[i] *= shrink;
#pragma unroll
        for (int j = 0; j < kHeadDim / 16; ++j) {
          o_[j][i] *= shrink;
          o_[j][2 + i] *= shrink;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = fast_exp2(score[i] - maximum_[i % 2]);
      sum_[i % 2] += score[i];
    }
    const std::uint32_t p0 = transposed(pack_two<Element>(score[0], score[1]));
    const std::uint32_t p1 = transposed(pack_two<Element>(score[2], score[3]));
    // A probability of zero does not keep a NaN out: the rows beyond the past hold anything.
    const int even = lane_ % 4 * 2;
    const std::uint32_t keep0 = (even < tokens ? 0xffffu : 0) | (even + 1 < tokens ? 0xffff0000u : 0);
    const std::uint32_t keep1 = (even + 8 < tokens ? 0xffffu : 0) | (even + 9 < tokens ? 0xffff0000u : 0);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      values[i][0] &= keep0;
      values[i][1] &= keep0;
      values[i][2] &= keep1;
      values[i][3] &= keep1;
      multiply_add<Element>(o_[i], values[i], p0, p1);
    }
  }

  /// Merges the four warps; the stage, which all have read, is the working memory.
  __device__ void end(int stage, const PageNote& note) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum_[i] += __shfl_xor_sync(~0u, sum_[i], step);
    }
    const int dimension = lane_ / 4, head = lane_ % 4 * 2;
    auto* memory = reinterpret_cast<float*>(&shared_.stage[stage]);
    meet_consumers();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        memory[(warp_ * kGroup + head + j % 2) * L::kOStride + 16 * i + j / 2 * 8 + dimension] = o_[i][j];
      }
    }
    if (dimension == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) shared_.stats[warp_][head + i] = make_float2(maximum_[i], sum_[i]);
    }
    meet_consumers();
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int h = warp_ + i * kConsumers;
      if (h >= p_.group) break;
      float2 stats[kConsumers];
      float most = -INFINITY;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) {
        stats[w] = shared_.stats[w][h];
        most = fmaxf(most, stats[w].x);
      }
      Vector o{};
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) {
        const float weight = fast_exp2(stats[w].x - most);
        sum += weight * stats[w].y;
        o.add(weight, *reinterpret_cast<const Vector*>(
                          &memory[(w * kGroup + h) * L::kOStride + lane_ * Vector::kSize]));
      }
      if (note.slot == kSlotOfTeam) {
        send(h, o, make_float2(most, sum));
      } else if (note.slot < 0) {
        store(note.row, note.kv_head, h, lane_, o, 1 / sum);
      } else {
        float* partial = slot(note.slot);
        reinterpret_cast<Vector*>(partial + h * kHeadDim)[lane_] = o;
        if (lane_ == 0) reinterpret_cast<float2*>(partial + kGroup * kHeadDim)[h] = make_float2(most, sum);
      }
    }
    if (note.slot >= 0) merge_if_last(note);
    troupe::cuda::fence_proxy_async();
    forget();
  }

  /// The block that comes last adds up the parts of the item, in the order of their tokens.
  __device__ void merge_if_last(const PageNote& note) {
    meet_consumers();
    if (thread_ == 0) {
      std::uint32_t* counter = p_.counters + note.first_block;
      shared_.arrived = count_up(counter);
      if (shared_.arrived == note.parts) *counter = 0;
    }
    meet_consumers();
    if (shared_.arrived != note.parts) return;
    // Eight parts at a time: lane l has the maximum and sum of part l % 8 of the warp's head l / 8 % 2. This
    // runs once and is fetched as it runs: short code counts for more than loads in flight.
    constexpr int kBatch = 8;
    const int mine = warp_ + lane_ / kBatch % kHeadsPerWarp * kConsumers;
    Vector o[kHeadsPerWarp] = {};
    float maximum = -INFINITY, sum = 0;
#pragma unroll 1
    for (int base = 0; base < note.parts; base += kBatch) {
      // Part 0 lies where parts that begin an item do, part i in slot first_block + i.
      const float* begun = slot(note.first_block + int(gridDim.x));
      const float* others = slot(note.first_block + base);
      float2 stats = make_float2(-INFINITY, 0);
      if (base + lane_ % kBatch < note.parts && mine < p_.group) {
        const float* from =
            base + lane_ % kBatch == 0 ? begun : others + lane_ % kBatch * partial_floats(kHeadDim);
        stats = __ldcg(reinterpret_cast<const float2*>(from + kGroup * kHeadDim) + mine);
      }
      Vector other[kHeadsPerWarp][kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float* from = base + j == 0 ? begun : others + j * partial_floats(kHeadDim);
#pragma unroll
        for (int i = 0; i < kHeadsPerWarp; ++i) {
          const int h = warp_ + i * kConsumers;
          other[i][j] = {};
          if (base + j < note.parts && h < p_.group) other[i][j].load(from + h * kHeadDim, lane_);
        }
      }
      float most = stats.x;
#pragma unroll
      for (int step = 1; step < kBatch; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      most = fmaxf(most, maximum);
      const float shrink = fast_exp2(maximum - most), weight = fast_exp2(stats.x - most);
      maximum = most;
      sum = sum * shrink + weight * stats.y;
#pragma unroll
      for (int i = 0; i < kHeadsPerWarp; ++i) {
        o[i].scale(__shfl_sync(~0u, shrink, i * kBatch));
#pragma unroll
        for (int j = 0; j < kBatch; ++j) o[i].add(__shfl_sync(~0u, weight, i * kBatch + j), other[i][j]);
      }
    }
#pragma unroll
    for (int step = 1; step < kBatch; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int h = warp_ + i * kConsumers;
      const float all = __shfl_sync(~0u, sum, i * kBatch);
      if (h < p_.group) store(note.row, note.kv_head, h, lane_, o[i], 1 / all);
    }
  }

  __device__ float* slot(int i) const { return p_.partials + std::size_t(i) * partial_floats(kHeadDim); }

  /// To the block of the cluster that finishes the head.
  __device__ void send(int head, const Vector& o, float2 stats) {
    namespace st = troupe::cuda::stream;
    const int rank = int(blockIdx.x % kTeam);
    const auto there = [&](const void* own) { return st::address_at(st::address_of(own), head); };
    const st::Address barrier = there(&shared_.gathered);
    st::send(there(&shared_.gathered_o[rank][lane_ * Vector::kSize]), o.v, barrier);
    const float of_stats[2] = {stats.x, stats.y};
    if (lane_ == 0) st::send(there(&shared_.gathered_stats[rank]), of_stats, barrier);
  }

  /// This block's head of the item, of which all parts have come.
  __device__ void gather(const TeamItem& item) {
    const int head = int(blockIdx.x % kTeam);
    if (!p_.teams || item.parts() <= 1 || head >= p_.group) return;
    troupe::cuda::wait(&shared_.gathered, 0);
    if (thread_ * 2 >= kHeadDim) return;
    float most = -INFINITY;
#pragma unroll
    for (int r = 0; r < kTeam; ++r) {
      if (item.has(r)) most = fmaxf(most, shared_.gathered_stats[r].x);
    }
    Floats<2> o{};
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kTeam; ++r) {
      if (!item.has(r)) continue;
      const float2 stats = shared_.gathered_stats[r];
      const float weight = fast_exp2(stats.x - most);
      sum += weight * stats.y;
      o.add(weight, *reinterpret_cast<const Floats<2>*>(&shared_.gathered_o[r][thread_ * 2]));
    }
    store(item.row, item.kv_head, head, thread_, o, 1 / sum);
  }

  template <int kSize>
  __device__ void store(int row, int kv_head, int head, int column, const Floats<kSize>& o, float factor) {
    auto* out = static_cast<Element*>(p_.out) + std::size_t(row) * p_.row_elements +
                (kv_head * p_.group + head) * kHeadDim + column * kSize;
#pragma unroll
    for (int i = 0; i < kSize; i += 2) {
      *reinterpret_cast<std::uint32_t*>(out + i) = pack_two<Element>(o.v[i] * factor, o.v[i + 1] * factor);
    }
  }

  typename L::Shared& shared_;
  const Parameters& p_;
  int thread_, warp_, lane_;
  std::uint32_t k_offset_[4], v_offset_[4];
  std::uint32_t q_[kHeadDim / 32][4];
  float o_[kHeadDim / 16][4];
  float maximum_[2], sum_[2];  // of heads 2 (lane % 4) and the next; sums of this lane's tokens
};

}  // namespace troupe::kernels::cuda::decode
