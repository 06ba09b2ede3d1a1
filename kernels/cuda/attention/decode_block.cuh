#pragma once
// Decode attention: one query per sequence against its whole past. The past is read once, at memory
// bandwidth.
//
// A producer warp copies pages (K and V of 64 tokens of one KV head) into a ring of stages in shared memory;
// four consumer warps compute. Warp w handles tokens 16w … 16w + 15 of every page with a softmax of its own:
// running maximum, sum and O[head_dim × 8 heads]. K and V^T are the 16-row operand of the tensor cores, the q
// heads of the KV head are the 8 columns. So a group of up to 8 q heads costs one product, and the lanes that
// hold a head's scores also hold its maximum, sum and outputs:
//   S[16 tokens × 8] = K[16 × head_dim] · Q^T       O[head_dim × 8] += V^T[head_dim × 16] · P^T[16 × 8]
// At the end of a part the four warps merge through the last page's stage. Parts of one item in several
// blocks are merged by the last block to finish or, in a cluster, by all its blocks, one head each.
// decode_schedule.cuh assigns pages to blocks; decode_producer.cuh copies them.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/decode_producer.cuh"
#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::decode {

template <class Element, int kHeadDim, KvFormat kFormat>
class Consumer {
 public:
  using L = DecodeLayout<kHeadDim, kFormat>;
  /// In a merge each warp has whole heads, and each lane this many dimensions of a head.
  using Vector = Floats<kHeadDim / 32>;
  static constexpr int kHeadsPerWarp = kMaxGroup / kConsumers;

  __device__ Consumer(typename L::Shared& shared, const DecodeArgs& p, int thread)
      : shared_(shared), p_(p), thread_(thread), warp_(thread / 32), lane_(thread % 32) {
    const int swizzle = lane_ % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (L::kCodes) {  // kv_code_index(); the same for K and V
        const int turn = kHeadDim == 64 ? lane_ / 2 % 4 : swizzle;
        if (i < kHeadDim / 32)
          k_offset_[i] = (16 * warp_ + lane_ % 16) * kHeadDim + ((2 * i + lane_ / 16) ^ turn) * 16;
        continue;
      }
      k_offset_[i] = (16 * warp_ + lane_ % 16) * 128 + (((2 * i + lane_ / 16) ^ swizzle) * 16);
      v_offset_[i] =
          (16 * warp_ + lane_ / 16 * 8 + lane_ % 8) * 128 + (((2 * i + lane_ / 8 % 2) ^ swizzle) * 16);
    }
  }

  __device__ void consume() {
    reset();
    unsigned parity = 0;
    for (int stage = 0;;) {
      ptx::mbarrier_wait(&shared_.full[stage], parity);
      const PageInfo info = shared_.info[stage];
      if (info.tokens == 0) return merge_cluster_parts({info.parts, info.row, info.kv_head});
      if (info.first) load_q(stage);
      if (info.tokens > 16 * warp_) add_page(stage, info.tokens - 16 * warp_);
      if (info.last) finish_part(stage, info);
      __syncwarp();
      ptx::mbarrier_arrive(&shared_.empty[stage]);
      if (++stage == L::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  __device__ void load_q(int stage) {
    if constexpr (L::kCodes) {  // dimensions 4 (lane % 4) … + 3 of each 16, as ldmatrix gives the codes of K
      const std::byte* from = shared_.q[stage] + lane_ / 4 * L::kQStride + lane_ % 4 * 8;
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        const uint2 four = *reinterpret_cast<const uint2*>(from + i * 32);
        q_[i / 2][i % 2 * 2] = four.x;
        q_[i / 2][i % 2 * 2 + 1] = four.y;
      }
      return;
    }
    const std::uint32_t from =
        ptx::shared_address(shared_.q[stage]) + (lane_ % 8) * L::kQStride + lane_ / 8 * 16;
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) ptx::ldmatrix_x4(q_[i], from + i * 64);
  }

  /// Clears q, O and the statistics: the compiler may then reuse their registers in the merge.
  __device__ void reset() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) q_[i][0] = q_[i][1] = q_[i][2] = q_[i][3] = 0;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) o_[i][0] = o_[i][1] = o_[i][2] = o_[i][3] = 0;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
  }

  /// Attends to the first `tokens` (at least one) of this warp's 16 tokens of the page.
  __device__ void add_page(int stage, int tokens) {
    const std::uint32_t k = ptx::shared_address(shared_.stage[stage].k);
    const std::uint32_t v = ptx::shared_address(shared_.stage[stage].v);
    float s[2][4] = {};
    // Loaded while the scores become probabilities.
    std::uint32_t values[L::kCodes ? kHeadDim / 32 : kHeadDim / 16][4];
    if constexpr (L::kCodes) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) {
        std::uint32_t a[4];  // 16 dimensions of tokens 0 … 7, of tokens 8 … 15; and the next 16 dimensions
        ptx::ldmatrix_x4(a, k + k_offset_[i]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          ptx::mma<Element>(s[j], expand_two<kFormat, 0, 1>(a[2 * j]),
                            expand_two<kFormat, 0, 1>(a[2 * j + 1]), expand_two<kFormat, 2, 3>(a[2 * j]),
                            expand_two<kFormat, 2, 3>(a[2 * j + 1]), q_[i][2 * j], q_[i][2 * j + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) ptx::ldmatrix_x4_transposed(values[i], v + k_offset_[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        std::uint32_t a[4];
        ptx::ldmatrix_x4(a, k + i / 4 * (kBlockTokens * 128) + k_offset_[i % 4]);
        ptx::mma<Element>(s[i % 2], a[0], a[1], a[2], a[3], q_[i / 2][i % 2 * 2], q_[i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        ptx::ldmatrix_x4_transposed(values[i], v + i / 4 * (kBlockTokens * 128) + v_offset_[i % 4]);
      }
    }
    const int upper =
        lane_ / 4;  // this lane has tokens upper and upper + 8 of heads 2 (lane % 4) and the next
    float key_scale[2] = {p_.scale_log2, p_.scale_log2}, value_scale[2] = {1, 1};
    if constexpr (L::kCodes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = upper + 8 * i, at = L::kScalesOffset + 4 * (16 * warp_ + token);
        key_scale[i] *= *reinterpret_cast<const float*>(shared_.stage[stage].k + at);
        const float scale = *reinterpret_cast<const float*>(shared_.stage[stage].v + at);
        value_scale[i] = token < tokens ? scale : 0.0f;
      }
    }
    float score[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = upper + i / 2 * 8 < tokens ? (s[0][i] + s[1][i]) * key_scale[i / 2] : -INFINITY;
    }
    float new_maximum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      new_maximum[i] = fmaxf(score[i], score[2 + i]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        new_maximum[i] = fmaxf(new_maximum[i], __shfl_xor_sync(~0u, new_maximum[i], step));
    }
    if (__any_sync(~0u, new_maximum[0] > maximum_[0] || new_maximum[1] > maximum_[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        new_maximum[i] = fmaxf(new_maximum[i], maximum_[i]);
        const float shrink = ptx::exp2_approx(maximum_[i] - new_maximum[i]);
        maximum_[i] = new_maximum[i];
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
      score[i] = ptx::exp2_approx(score[i] - maximum_[i % 2]);
      sum_[i % 2] += score[i];
      if constexpr (L::kCodes) score[i] *= value_scale[i / 2];
    }
    const std::uint32_t p0 = ptx::movmatrix_transposed(pack_two<Element>(score[0], score[1]));
    const std::uint32_t p1 = ptx::movmatrix_transposed(pack_two<Element>(score[2], score[3]));
    if constexpr (L::kCodes) {
      // A register has dimensions 2 (lane / 4) and the next of tokens 2 (lane % 4) and the next. Rows lane /
      // 4 of a product are even dimensions, rows 8 + lane / 4 odd ones: dimension_of().
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        const std::uint32_t first = values[i / 2][i % 2 * 2], second = values[i / 2][i % 2 * 2 + 1];
        ptx::mma<Element>(o_[i], expand_two<kFormat, 0, 2>(first), expand_two<kFormat, 1, 3>(first),
                          expand_two<kFormat, 0, 2>(second), expand_two<kFormat, 1, 3>(second), p0, p1);
      }
    } else {
      // Rows past the sequence's end are uninitialised. Zero times NaN is NaN, so their values are masked
      // too. (Codes are always finite.)
      const int even = lane_ % 4 * 2;
      const std::uint32_t keep0 = (even < tokens ? 0xffffu : 0) | (even + 1 < tokens ? 0xffff0000u : 0);
      const std::uint32_t keep1 = (even + 8 < tokens ? 0xffffu : 0) | (even + 9 < tokens ? 0xffff0000u : 0);
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        values[i][0] &= keep0;
        values[i][1] &= keep0;
        values[i][2] &= keep1;
        values[i][3] &= keep1;
        ptx::mma<Element>(o_[i], values[i][0], values[i][1], values[i][2], values[i][3], p0, p1);
      }
    }
  }

  /// Dimension of o_[i][j] in lanes 4 * row … 4 * row + 3.
  __device__ static int dimension_of(int i, int j, int row) {
    return 16 * i + (L::kCodes ? 2 * row + j / 2 : row + j / 2 * 8);
  }

  /// Merges the four warps' results of a part. The stage is the scratch memory, once all warps have read it.
  __device__ void finish_part(int stage, const PageInfo& info) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum_[i] += __shfl_xor_sync(~0u, sum_[i], step);
    }
    const int row = lane_ / 4, head = lane_ % 4 * 2;
    auto* memory = reinterpret_cast<float*>(&shared_.stage[stage]);
    sync_consumers();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        memory[(warp_ * kMaxGroup + head + j % 2) * L::kOStride + dimension_of(i, j, row)] = o_[i][j];
      }
    }
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) shared_.stats[warp_][head + i] = make_float2(maximum_[i], sum_[i]);
    }
    sync_consumers();
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int h = warp_ + i * kConsumers;
      if (h >= p_.group) break;
      float2 stats[kConsumers];
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) {
        stats[w] = shared_.stats[w][h];
        largest = fmaxf(largest, stats[w].x);
      }
      Vector o{};
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) {
        const float weight = ptx::exp2_approx(stats[w].x - largest);
        sum += weight * stats[w].y;
        o.add_scaled(weight, *reinterpret_cast<const Vector*>(
                                 &memory[(w * kMaxGroup + h) * L::kOStride + lane_ * Vector::kSize]));
      }
      if (info.slot == kClusterSlot) {
        send_to_peer(h, o, make_float2(largest, sum));
      } else if (info.slot < 0) {
        store(info.row, info.kv_head, h, lane_, o, 1 / sum);
      } else {
        float* partial = slot(info.slot);
        reinterpret_cast<Vector*>(partial + h * kHeadDim)[lane_] = o;
        if (lane_ == 0)
          reinterpret_cast<float2*>(partial + kMaxGroup * kHeadDim)[h] = make_float2(largest, sum);
      }
    }
    if (info.slot >= 0) merge_if_last(info);
    ptx::fence_proxy_async();
    reset();
  }

  /// The last block to finish merges the parts of the item, in token order.
  __device__ void merge_if_last(const PageInfo& info) {
    sync_consumers();
    if (thread_ == 0) {
      std::uint32_t* counter = p_.counters + info.first_block;
      // Orders what the block wrote before its last barrier before what it reads after the next.
      shared_.arrived = int(ptx::atomic_increment_acq_rel(counter)) + 1;
      if (shared_.arrived == info.parts) *counter = 0;
    }
    sync_consumers();
    if (shared_.arrived != info.parts) return;
    // Eight parts at a time: lane l has the maximum and sum of part l % 8 of the warp's head l / 8 % 2. This
    // code runs once, uncached: fewer instructions matter more than more loads in flight.
    constexpr int kBatch = 8;
    const int mine = warp_ + lane_ / kBatch % kHeadsPerWarp * kConsumers;
    Vector o[kHeadsPerWarp] = {};
    float maximum = -INFINITY, sum = 0;
#pragma unroll 1
    for (int base = 0; base < info.parts; base += kBatch) {
      // Part 0 is in the slot for parts that begin an item, part i in slot first_block + i.
      const float* first_part = slot(info.first_block + int(gridDim.x));
      const float* parts = slot(info.first_block + base);
      float2 stats = make_float2(-INFINITY, 0);
      if (base + lane_ % kBatch < info.parts && mine < p_.group) {
        const float* from =
            base + lane_ % kBatch == 0 ? first_part : parts + lane_ % kBatch * partial_floats(kHeadDim);
        stats = __ldcg(reinterpret_cast<const float2*>(from + kMaxGroup * kHeadDim) + mine);
      }
      Vector loaded[kHeadsPerWarp][kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float* from = base + j == 0 ? first_part : parts + j * partial_floats(kHeadDim);
#pragma unroll
        for (int i = 0; i < kHeadsPerWarp; ++i) {
          const int h = warp_ + i * kConsumers;
          loaded[i][j] = {};
          if (base + j < info.parts && h < p_.group) loaded[i][j].load(from + h * kHeadDim, lane_);
        }
      }
      float new_maximum = stats.x;
#pragma unroll
      for (int step = 1; step < kBatch; step *= 2)
        new_maximum = fmaxf(new_maximum, __shfl_xor_sync(~0u, new_maximum, step));
      new_maximum = fmaxf(new_maximum, maximum);
      const float shrink = ptx::exp2_approx(maximum - new_maximum);
      const float weight = ptx::exp2_approx(stats.x - new_maximum);
      maximum = new_maximum;
      sum = sum * shrink + weight * stats.y;
#pragma unroll
      for (int i = 0; i < kHeadsPerWarp; ++i) {
        o[i].scale(__shfl_sync(~0u, shrink, i * kBatch));
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
          o[i].add_scaled(__shfl_sync(~0u, weight, i * kBatch + j), loaded[i][j]);
      }
    }
#pragma unroll
    for (int step = 1; step < kBatch; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int h = warp_ + i * kConsumers;
      const float all = __shfl_sync(~0u, sum, i * kBatch);
      if (h < p_.group) store(info.row, info.kv_head, h, lane_, o[i], 1 / all);
    }
  }

  __device__ float* slot(int i) const { return p_.partials + std::size_t(i) * partial_floats(kHeadDim); }

  /// Sends this block's part of a head to the block of the cluster that merges that head.
  __device__ void send_to_peer(int head, const Vector& o, float2 stats) {
    const int rank = int(blockIdx.x % kClusterBlocks);
    const auto on_peer = [&](const void* own) { return ptx::peer_address(ptx::shared_address(own), head); };
    const ptx::SharedAddress barrier = on_peer(&shared_.gathered);
    ptx::store_async(on_peer(&shared_.gathered_o[rank][lane_ * Vector::kSize]), o.v, barrier);
    if (lane_ == 0) ptx::store_async(on_peer(&shared_.gathered_stats[rank]), stats, barrier);
  }

  /// Waits for all parts of this block's head of the item, and merges and stores them.
  __device__ void merge_cluster_parts(const ClusterItem& item) {
    const int head = int(blockIdx.x % kClusterBlocks);
    if (!p_.clusters || item.parts() <= 1 || head >= p_.group) return;
    ptx::mbarrier_wait(&shared_.gathered, 0);
    if (thread_ * 2 >= kHeadDim) return;
    float largest = -INFINITY;
#pragma unroll
    for (int r = 0; r < kClusterBlocks; ++r) {
      if (item.has_pages(r)) largest = fmaxf(largest, shared_.gathered_stats[r].x);
    }
    Floats<2> o{};
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kClusterBlocks; ++r) {
      if (!item.has_pages(r)) continue;
      const float2 stats = shared_.gathered_stats[r];
      const float weight = ptx::exp2_approx(stats.x - largest);
      sum += weight * stats.y;
      o.add_scaled(weight, *reinterpret_cast<const Floats<2>*>(&shared_.gathered_o[r][thread_ * 2]));
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
  float maximum_[2], sum_[2];  // of heads 2 (lane % 4) and the next; sum_ covers this lane's tokens only
};

}  // namespace troupe::kernels::cuda::decode
