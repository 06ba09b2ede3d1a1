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
// At the end of an item the four results are merged through the last page's stage, and those of several
// blocks by the last of them, or, in a cluster, by all, a head each. Which pages a block reads:
// decode_schedule.cuh; how they come: decode_producer.cuh.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/decode_producer.cuh"
#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx_stream.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/warp_mma.cuh"

namespace troupe::kernels::cuda::decode {

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
  using L = DecodeLayout<kHeadDim>;
  /// A merge gives each warp whole heads, and each lane as many dimensions of one.
  using Vector = Floats<kHeadDim / 32>;
  static constexpr int kHeadsPerWarp = kGroup / kConsumers;

  __device__ Consumer(typename L::Shared& shared, const DecodeArgs& p, int thread)
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
    if (lane_ == 0) st::send(there(&shared_.gathered_stats[rank]), stats, barrier);
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
  const DecodeArgs& p_;
  int thread_, warp_, lane_;
  std::uint32_t k_offset_[4], v_offset_[4];
  std::uint32_t q_[kHeadDim / 32][4];
  float o_[kHeadDim / 16][4];
  float maximum_[2], sum_[2];  // of heads 2 (lane % 4) and the next; sums of this lane's tokens
};

}  // namespace troupe::kernels::cuda::decode
