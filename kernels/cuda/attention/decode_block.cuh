#pragma once
// Decode attention: one query per sequence, or a few, against its whole past. The past is read once, at
// memory bandwidth.
//
// A producer warp copies pages (K and V of 64 tokens of one KV head) into a ring of stages in shared memory;
// four consumer warps compute. Warp w handles tokens 16w … 16w + 15 of every page with a softmax of its own:
// running maximum, sum and O[head_dim × 8 heads]. K and V^T are the 16-row operand of the tensor cores, the q
// heads of the KV head are the 8 columns. So a group of up to 8 q heads costs one product, and the lanes that
// hold a head's scores also hold its maximum, sum and outputs:
//   S[16 tokens × 8] = K[16 × head_dim] · Q^T       O[head_dim × 8] += V^T[head_dim × 16] · P^T[16 × 8]
// Items of several tokens (FewLayout) have more columns, (token, head): a warp multiplies each fragment of K
// and V by several groups of 8, and several teams of four warps work on the same stage. Rows see different
// numbers of tokens, so scores are masked by column.
// At the end of a part the four warps merge through the last page's stage. Parts of one item in several
// blocks are merged by the last block to finish or, in a cluster, by all its blocks, one column of 8 each.
// decode_schedule.cuh assigns pages to blocks; decode_producer.cuh copies them.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/decode_merge.cuh"
#include "kernels/cuda/attention/decode_producer.cuh"
#include "kernels/cuda/attention/decode_shared.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::decode {

template <class Element, class L>
class Consumer : Merger<Element, L> {
 public:
  using M = Merger<Element, L>;
  using M::kTiles, M::kHeadDim, M::kHeadsPerWarp;
  using typename M::Vector;
  static constexpr KvFormat kFormat = L::kFormat;

  __device__ Consumer(typename L::Shared& shared, const DecodeArgs& p, int thread) : M(shared, p, thread) {
    if constexpr (L::kFew) {
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int token = ((tile_ + i / 2) * kMaxGroup + lane_ % 4 * 2 + i % 2) / p.group;
        token_of_column_ |= unsigned(min(token, 15)) << 4 * i;
      }
    }
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
      if constexpr (L::kFew) {
        const FewInfo few = shared_.few[stage];
        if (info.tokens == 0) return merge_cluster_parts({info.parts, info.row, info.kv_head, few.tokens});
        columns_ = few.tokens * p_.group;
        const bool busy = tile_ * kMaxGroup < columns_;  // this team has columns
        if (L::kHoldsQueries && info.first) {
          if (busy) load_q(few.queries);
          release_queries(few.queries);
        }
        if (busy && info.tokens > 16 * warp_) add_page(stage, info.tokens - 16 * warp_, few);
        if (info.last) finish_part(stage, info);
        if (!L::kHoldsQueries && info.last) release_queries(few.queries);
      } else {
        if (info.tokens == 0) return merge_cluster_parts({info.parts, info.row, info.kv_head});
        if (info.first) load_q(stage);
        if (info.tokens > 16 * warp_) add_page(stage, info.tokens - 16 * warp_, {});
        if (info.last) finish_part(stage, info);
      }
      __syncwarp();
      ptx::mbarrier_arrive(&shared_.empty[stage]);
      if (++stage == L::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

 private:
  using M::column_of, M::columns_from, M::merge_cluster_parts, M::merge_if_last, M::merging, M::send_to_peer,
      M::slot, M::store, M::sync_team, M::team_stats;
  using M::columns_, M::lane_, M::p_, M::shared_, M::tile_, M::warp_;

  /// The maximum of no scores. A column of several tokens' items may see none of a warp's tokens: it is
  /// finite there, so that exp2(-INFINITY - kLowest) is 0.
  static constexpr float kLowest = L::kFew ? -1e30f : -INFINITY;

  /// Where this lane loads q of a tile's columns.
  __device__ auto queries_at(int slot, int tile) const {
    const std::byte* const q = shared_.q[slot] + (L::kFew ? (tile_ + tile) * kMaxGroup * L::kQStride : 0);
    if constexpr (L::kCodes)  // dimensions 4 (lane % 4) … + 3 of each 16, as ldmatrix gives the codes of K
      return q + lane_ / 4 * L::kQStride + lane_ % 4 * 8;
    else
      return ptx::shared_address(q) + (lane_ % 8) * L::kQStride + lane_ / 8 * 16;
  }
  /// q of dimensions 32 i … 32 i + 31.
  template <class Place>
  __device__ static void load_q(std::uint32_t (&q)[4], Place from, int i) {
    if constexpr (L::kCodes) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 four = *reinterpret_cast<const uint2*>(from + (2 * i + j) * 32);
        q[2 * j] = four.x;
        q[2 * j + 1] = four.y;
      }
    } else {
      ptx::ldmatrix_x4(q, from + i * 64);
    }
  }
  __device__ void load_q(int slot) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const auto from = queries_at(slot, t);
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) load_q(q_[t][i], from, i);
    }
  }
  __device__ void release_queries(int slot) {
    __syncwarp();
    ptx::mbarrier_arrive(&shared_.queries_empty[slot]);
  }

  /// Clears q, O and the statistics: the compiler may then reuse their registers in the merge.
  __device__ void reset() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (L::kHoldsQueries) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 32; ++i) q_[t][i][0] = q_[t][i][1] = q_[t][i][2] = q_[t][i][3] = 0;
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) o_[t][i][0] = o_[t][i][1] = o_[t][i][2] = o_[t][i][3] = 0;
      maximum_[t][0] = maximum_[t][1] = kLowest;
      sum_[t][0] = sum_[t][1] = 0;
    }
  }

  /// Attends to the first `tokens` (at least one) of this warp's 16 tokens of the page.
  __device__ void add_page(int stage, int tokens, const FewInfo& few) {
    const std::uint32_t k = ptx::shared_address(shared_.stage[stage].k);
    const std::uint32_t v = ptx::shared_address(shared_.stage[stage].v);
    constexpr int kSums = kTiles < 3 ? 2 : 1;  // products that do not wait for each other
    float s[kTiles][kSums][4] = {};
    // Loaded while the scores become probabilities.
    std::uint32_t values[L::kHoldsValues ? (L::kCodes ? kHeadDim / 32 : kHeadDim / 16) : 1][4];
    std::uint32_t passing_q[L::kHoldsQueries ? 1 : kTiles][4];
    const auto q = [&](int t, int i) -> std::uint32_t(&)[4] {
      if constexpr (L::kHoldsQueries)
        return q_[t][i];
      else
        return passing_q[t];
    };
    const auto next_q = [&](int i) {
      if constexpr (!L::kHoldsQueries) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) load_q(passing_q[t], queries_at(few.queries, t), i);
      }
    };
    if constexpr (L::kCodes) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) {
        std::uint32_t a[4];  // 16 dimensions of tokens 0 … 7, of tokens 8 … 15; and the next 16 dimensions
        ptx::ldmatrix_x4(a, k + k_offset_[i]);
        next_q(i);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::uint32_t first[2] = {expand_two<kFormat, 0, 1>(a[2 * j]),
                                          expand_two<kFormat, 0, 1>(a[2 * j + 1])},
                              second[2] = {expand_two<kFormat, 2, 3>(a[2 * j]),
                                           expand_two<kFormat, 2, 3>(a[2 * j + 1])};
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            ptx::mma<Element>(s[t][j % kSums], first[0], first[1], second[0], second[1], q(t, i)[2 * j],
                              q(t, i)[2 * j + 1]);
          }
        }
      }
      if constexpr (L::kHoldsValues) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 32; ++i) ptx::ldmatrix_x4_transposed(values[i], v + k_offset_[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        std::uint32_t a[4];
        ptx::ldmatrix_x4(a, k + i / 4 * (kBlockTokens * 128) + k_offset_[i % 4]);
        if (i % 2 == 0) next_q(i / 2);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          ptx::mma<Element>(s[t][i % kSums], a[0], a[1], a[2], a[3], q(t, i / 2)[i % 2 * 2],
                            q(t, i / 2)[i % 2 * 2 + 1]);
        }
      }
      if constexpr (L::kHoldsValues) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; ++i) {
          ptx::ldmatrix_x4_transposed(values[i], v + i / 4 * (kBlockTokens * 128) + v_offset_[i % 4]);
        }
      }
    }
    const int upper =
        lane_ / 4;  // this lane has tokens upper and upper + 8 of columns 2 (lane % 4) and the next
    const int begin = L::kFew ? few.begin - 16 * warp_ : 0;
    float key_scale[2] = {p_.scale_log2, p_.scale_log2}, value_scale[2] = {1, 1};
    if constexpr (L::kCodes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = upper + 8 * i, at = L::kScalesOffset + 4 * (16 * warp_ + token);
        key_scale[i] *= *reinterpret_cast<const float*>(shared_.stage[stage].k + at);
        const float scale = *reinterpret_cast<const float*>(shared_.stage[stage].v + at);
        value_scale[i] = token < tokens && (!L::kFew || token >= begin) ? scale : 0.0f;
      }
    }
    float score[kTiles][4], new_maximum[kTiles][2];
    bool grown = false;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = upper + i / 2 * 8;
        bool seen = token < tokens;
        if constexpr (L::kFew) {
          const int visible = few.visible - 16 * warp_ + int(token_of_column_ >> 4 * (2 * t + i % 2) & 15);
          seen = token < min(tokens, visible) && token >= begin;
        }
        score[t][i] =
            seen ? (kSums == 2 ? s[t][0][i] + s[t][kSums - 1][i] : s[t][0][i]) * key_scale[i / 2] : -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        new_maximum[t][i] = fmaxf(score[t][i], score[t][2 + i]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          new_maximum[t][i] = fmaxf(new_maximum[t][i], __shfl_xor_sync(~0u, new_maximum[t][i], step));
      }
      grown = grown || new_maximum[t][0] > maximum_[t][0] || new_maximum[t][1] > maximum_[t][1];
    }
    if (__any_sync(~0u, grown)) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          new_maximum[t][i] = fmaxf(new_maximum[t][i], maximum_[t][i]);
          const float shrink = ptx::exp2_approx(maximum_[t][i] - new_maximum[t][i]);
          maximum_[t][i] = new_maximum[t][i];
          sum_[t][i] *= shrink;
#pragma unroll
          for (int j = 0; j < kHeadDim / 16; ++j) {
            o_[t][j][i] *= shrink;
            o_[t][j][2 + i] *= shrink;
          }
        }
      }
    }
    std::uint32_t p0[kTiles], p1[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[t][i] = ptx::exp2_approx(score[t][i] - maximum_[t][i % 2]);
        sum_[t][i % 2] += score[t][i];
        if constexpr (L::kCodes) score[t][i] *= value_scale[i / 2];
      }
      p0[t] = ptx::movmatrix_transposed(pack_two<Element>(score[t][0], score[t][1]));
      p1[t] = ptx::movmatrix_transposed(pack_two<Element>(score[t][2], score[t][3]));
    }
    if constexpr (L::kCodes) {
      // A register has dimensions 2 (lane / 4) and the next of tokens 2 (lane % 4) and the next. Rows lane /
      // 4 of a product are even dimensions, rows 8 + lane / 4 odd ones: dimension_of().
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        std::uint32_t(&pair)[4] = values[L::kHoldsValues ? i / 2 : 0];
        if constexpr (!L::kHoldsValues) {
          if (i % 2 == 0) ptx::ldmatrix_x4_transposed(pair, v + k_offset_[i / 2]);
        }
        const std::uint32_t first = pair[i % 2 * 2], second = pair[i % 2 * 2 + 1];
        const std::uint32_t a[4] = {expand_two<kFormat, 0, 2>(first), expand_two<kFormat, 1, 3>(first),
                                    expand_two<kFormat, 0, 2>(second), expand_two<kFormat, 1, 3>(second)};
#pragma unroll
        for (int t = 0; t < kTiles; ++t) ptx::mma<Element>(o_[t][i], a[0], a[1], a[2], a[3], p0[t], p1[t]);
      }
    } else {
      // Rows past the sequence's end are uninitialised, and tokens before `begin` may be anything. Zero times
      // NaN is NaN, so their values are masked too. (Codes are always finite.)
      const int even = lane_ % 4 * 2;
      std::uint32_t keep0 = (even < tokens ? 0xffffu : 0) | (even + 1 < tokens ? 0xffff0000u : 0);
      const std::uint32_t keep1 = (even + 8 < tokens ? 0xffffu : 0) | (even + 9 < tokens ? 0xffff0000u : 0);
      if constexpr (L::kFew) {
        if (even < begin) keep0 &= 0xffff0000u;  // begin is at most 1
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        std::uint32_t(&a)[4] = values[L::kHoldsValues ? i : 0];
        if constexpr (!L::kHoldsValues)
          ptx::ldmatrix_x4_transposed(a, v + i / 4 * (kBlockTokens * 128) + v_offset_[i % 4]);
        a[0] &= keep0;
        a[1] &= keep0;
        a[2] &= keep1;
        a[3] &= keep1;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) ptx::mma<Element>(o_[t][i], a[0], a[1], a[2], a[3], p0[t], p1[t]);
      }
    }
  }

  /// Dimension of o_[tile][i][j] in lanes 4 * row … 4 * row + 3.
  __device__ static int dimension_of(int i, int j, int row) {
    return 16 * i + (L::kCodes ? 2 * row + j / 2 : row + j / 2 * 8);
  }

  /// Merges the four warps' results of a part.
  __device__ void finish_part(int stage, const PageInfo& info) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (L::kFew && columns_from(t) <= 0) break;
      finish_tile(t, stage, info);
    }
    if (info.slot >= 0) merge_if_last(info);
    ptx::fence_proxy_async();
    reset();
  }

  __device__ void finish_tile(int t, int stage, const PageInfo& info) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum_[t][i] += __shfl_xor_sync(~0u, sum_[t][i], step);
    }
    const int row = lane_ / 4, head = lane_ % 4 * 2;
    float* const memory = merging(stage);
    float2(&all_stats)[kConsumers][kMaxGroup] = team_stats();
    sync_team();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        memory[(warp_ * kMaxGroup + head + j % 2) * L::kOStride + dimension_of(i, j, row)] = o_[t][i][j];
      }
    }
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) all_stats[warp_][head + i] = make_float2(maximum_[t][i], sum_[t][i]);
    }
    sync_team();
#pragma unroll
    for (int i = 0; i < kHeadsPerWarp; ++i) {
      const int h = warp_ + i * kConsumers;
      if (h >= columns_from(t)) break;
      float2 stats[kConsumers];
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) {
        stats[w] = all_stats[w][h];
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
        send_to_peer(t, h, o, make_float2(largest, sum));
      } else if (info.slot < 0) {
        store(info.row, info.kv_head, column_of(t, h), lane_, o, 1 / sum);
      } else {
        float* partial = slot(info.slot);
        reinterpret_cast<Vector*>(partial + column_of(t, h) * kHeadDim)[lane_] = o;
        if (lane_ == 0)
          reinterpret_cast<float2*>(partial + L::kColumns * kHeadDim)[column_of(t, h)] =
              make_float2(largest, sum);
      }
    }
  }

  std::uint32_t token_of_column_ = 0;  // 4 bits for each of this lane's columns
  std::uint32_t k_offset_[4], v_offset_[4];
  std::uint32_t q_[L::kHoldsQueries ? kTiles : 1][kHeadDim / 32][4];
  float o_[kTiles][kHeadDim / 16][4];
  // Of columns 2 (lane % 4) and the next of each tile; sum_ covers this lane's tokens only.
  float maximum_[kTiles][2], sum_[kTiles][2];
};

}  // namespace troupe::kernels::cuda::decode
