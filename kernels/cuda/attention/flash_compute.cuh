#pragma once
// A consumer warpgroup of prefill attention: 64 rows of a tile against the ring's stages of keys and values.
#include "kernels/cuda/attention/flash_shape.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda {

// Named barriers. 0 is __syncthreads().
inline constexpr int kFlashOwnBarrier = 1;   // + warpgroup: synchronises its 128 threads
inline constexpr int kFlashTurnBarrier = 4;  // + warpgroup: it may issue its products

template <class S>
class FlashConsumer {
 public:
  using T = typename S::T;
  static constexpr int kDim = S::kHeadDim;

  __device__ FlashConsumer(const FlashArguments& a, FlashShared<S>& shared)
      : a_(a), shared_(shared), warpgroup_(int(threadIdx.x) / 128 - 1), thread_(int(threadIdx.x) % 128) {
    // Warpgroup 0 has the first turn.
    if (warpgroup_ == S::kWarpgroups - 1) ptx::barrier_arrive(kFlashTurnBarrier, 256);
  }

  /// Computes all units as one stream of stages: the first scores of a unit overlap the last product of the
  /// previous unit.
  __device__ void run() {
    float o[kDim / 2];
    float s[S::kKeys / 2];
    std::uint32_t p[S::kKeys / 16][4];
    float factor[2];
    if (!begin_unit()) return;
    clear(o);
    ptx::mbarrier_wait(&shared_.keys_full[stage()], parity());
    wait_for_turn();
    start_scores(s, stage());
    pass_turn();
    ptx::wgmma_wait<0>();
    ptx::changed_asynchronously(s);
    release(shared_.keys_empty[stage()]);
    exponentials(s, factor);
    round_to_operand(p, s);
    for (;;) {
      // p belongs to this stage's values; s will belong to the next stage.
      const int values_stage = stage(), values_parity = parity();
      const float m[2] = {m_[0], m_[1]}, sum[2] = {sum_[0], sum_[1]};
      const bool last = ++j_ == end_;
      if (last && !begin_unit()) break;
      ++stages_done_;
      ptx::mbarrier_wait(&shared_.keys_full[stage()], parity());
      wait_for_turn();
      start_scores(s, stage());
      ptx::mbarrier_wait(&shared_.values_full[values_stage], values_parity);
      start_values(o, p, values_stage);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::changed_asynchronously(s);
      release(shared_.keys_empty[stage()]);
      const bool grown = exponentials(s, factor);
      // One wait per branch: a single wait before them would be moved up before the exponentials by the
      // assembler.
      if (last) {
        ptx::wgmma_wait<0, 1>();
        ptx::changed_asynchronously(o);
        release(shared_.values_empty[values_stage]);
        end_unit(unit_ - 2, o, m, sum);
        clear(o);
      } else if (grown) {
        ptx::wgmma_wait<0, 2>();
        ptx::changed_asynchronously(o);
        release(shared_.values_empty[values_stage]);
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= factor[i / 2 % 2];
      } else {
        ptx::wgmma_wait<0, 3>();
        ptx::changed_asynchronously(o);
        release(shared_.values_empty[values_stage]);
      }
      round_to_operand(p, s);
    }
    ptx::mbarrier_wait(&shared_.values_full[stage()], parity());
    start_values(o, p, stage());
    ptx::wgmma_wait<0>();
    ptx::changed_asynchronously(o);
    end_unit(unit_ - 2, o, m_, sum_);
  }

 private:
  /// Moves on to the next unit. False if there is none.
  __device__ bool begin_unit() {
    const int k = unit_++;
    ptx::mbarrier_wait(&shared_.queries_full[k % kFlashQuerySlots], k / kFlashQuerySlots & 1);
    ptx::mbarrier_wait(&shared_.unit_ready[k % kFlashUnitSlots],
                       k / kFlashUnitSlots & 1);  // always complete by now
    const FlashUnit& u = shared_.unit[k % kFlashUnitSlots];
    end_ = u.end;
    if (end_ == 0) return false;
    j_ = u.begin;
    unmasked_ = u.unmasked;
    queries_ = k % kFlashQuerySlots;
    const int row = u.first + warpgroup_ * 64 + thread_ / 32 * 16 + thread_ % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      limit_[i] = u.position + min(u.tokens - 1, token_of(a_, row + 8 * i));
      m_[i] = kInitialM;
      sum_[i] = 0;
    }
    return true;
  }

  /// Stores the results of unit k, or its partial results.
  __device__ void end_unit(int k, float (&o)[kDim / 2], const float (&m)[2], const float (&part_sum)[2]) {
    const FlashUnit u = shared_.unit[k % kFlashUnitSlots];
    float sum[2] = {part_sum[0], part_sum[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
    ptx::barrier_sync(kFlashOwnBarrier + warpgroup_,
                      128);  // the warpgroup's products have read Q, store() overwrites it
    if (u.pieces == 1 || merge_pieces(u, o, m, sum))
      store(u, shared_.rows[k % kFlashQuerySlots][warpgroup_], o, sum);
    __syncwarp();  // wgmma follows, which needs converged warps
    ptx::mbarrier_arrive(&shared_.queries_empty[k % kFlashQuerySlots]);
    ptx::mbarrier_arrive(&shared_.unit_free[k % kFlashUnitSlots]);
  }

  __device__ static void clear(float (&o)[kDim / 2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
  }

  __device__ int stage() const { return stages_done_ % S::kStages; }
  __device__ std::uint32_t parity() const { return stages_done_ / S::kStages & 1; }

  __device__ void wait_for_turn() const { ptx::barrier_sync(kFlashTurnBarrier + warpgroup_, 256); }
  __device__ void pass_turn() const {
    ptx::barrier_arrive(kFlashTurnBarrier + (warpgroup_ + 1) % S::kWarpgroups, 256);
  }
  __device__ void release(ptx::Barrier& empty) const {
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(&empty);
  }

  /// Starts S = Q · K^T as one wgmma group.
  __device__ void start_scores(float (&s)[S::kKeys / 2], int stage) {
    const std::uint64_t keys = uniform_operand(shared_.keys[0], std::uint32_t(stage) * S::kStageBytes, 16);
    const std::uint64_t queries = uniform_operand(
        shared_.rows[0][0], std::uint32_t(queries_ * S::kWarpgroups + warpgroup_) * S::kQueryBytes, 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const std::uint64_t b =
          ptx::advanced(keys, std::uint32_t(k / 4 * S::kPages * S::kHalfBytes + k % 4 * 32));
      const std::uint64_t a = ptx::advanced(queries, std::uint32_t(k / 4 * (64 * 128) + k % 4 * 32));
      ptx::wgmma<T, S::kKeys>(s, a, b, k > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts O += P · V as one wgmma group.
  __device__ void start_values(float (&o)[kDim / 2], const std::uint32_t (&p)[S::kKeys / 16][4], int stage) {
    const std::uint64_t values =
        uniform_operand(shared_.values[0], std::uint32_t(stage) * S::kStageBytes, S::kPages * S::kHalfBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
      ptx::wgmma<T, kDim, true>(o, p[k], ptx::advanced(values, std::uint32_t(k * 2048)), true);
    }
    ptx::wgmma_commit();
  }

  /// The wgmma operand `offset` bytes after `first`. Built from one lane's value, so that the compiler
  /// computes it in uniform registers, where wgmma takes it.
  __device__ static std::uint64_t uniform_operand(const void* first, std::uint32_t offset,
                                                  std::uint32_t leading) {
    const std::uint32_t at = __shfl_sync(~0u, (ptx::shared_address(first) + offset) >> 4, 0);
    return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (at | (leading >> 4) << 16);
  }

  /// s becomes exp2(scale * s - m), or 0 if the row does not see the key. True if m changed for a row of the
  /// warp: O must then be multiplied by `factor`. Works on two halves of the keys: finding the second half's
  /// maximum overlaps the exponentials of the first.
  __device__ bool exponentials(float (&s)[S::kKeys / 2], float (&factor)[2]) {
    constexpr int kHalf = S::kKeys / 4;
    if constexpr (S::kSkipsFirst) {
      if (j_ == 0 && thread_ % 4 == 0) s[0] = s[2] = -INFINITY;  // both rows' scores of key 0
    }
    if (j_ >= unmasked_) {
      const int key = j_ * S::kKeys + thread_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < S::kKeys / 2; ++i) {
        if (key + i / 4 * 8 + i % 2 > limit_[i / 2 % 2]) s[i] = -INFINITY;
      }
    }
    float sum[4] = {};
    float most[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kHalf; ++i) most[i % 4] = fmaxf(most[i % 4], s[i]);
    const bool first = exceeds_m(most);
    if (first) raise_m(most, factor);
    most[0] = s[kHalf], most[1] = s[kHalf + 1], most[2] = s[kHalf + 2], most[3] = s[kHalf + 3];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      s[i] = ptx::exp2_approx_in_order(s[i] * a_.scale_log2 - m_[i / 2 % 2]);
      sum[i % 4] += s[i];
      most[i % 4] = fmaxf(most[i % 4], s[kHalf + i]);
    }
    const bool second = exceeds_m(most);
    if (second) {
      float more[2];
      raise_m(most, more);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) s[i] *= more[i / 2 % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] *= more[i / 2];
#pragma unroll
      for (int r = 0; r < 2; ++r) factor[r] = first ? factor[r] * more[r] : more[r];
    }
#pragma unroll
    for (int i = kHalf; i < 2 * kHalf; ++i) {
      s[i] = ptx::exp2_approx_in_order(s[i] * a_.scale_log2 - m_[i / 2 % 2]);
      sum[i % 4] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] += sum[2 * r] + sum[2 * r + 1];
    return first || second;
  }

  /// True if a row of the warp has an s that is too large for its m.
  __device__ bool exceeds_m(float (&most)[4]) const {
    most[0] = fmaxf(most[0], most[1]), most[1] = fmaxf(most[2], most[3]);
    return __any_sync(~0u, most[0] * a_.scale_log2 > m_[0] + 8 || most[1] * a_.scale_log2 > m_[1] + 8);
  }

  /// Raises m of the rows that need it; `factor` is exp2(old m - new m).
  __device__ void raise_m(float (&most)[4], float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
      const float top = most[r] * a_.scale_log2, m = top > m_[r] + 8 ? top : m_[r];
      factor[r] = ptx::exp2_approx_in_order(m_[r] - m);
      m_[r] = m;
      sum_[r] *= factor[r];
    }
  }

  /// Rounds s to A operands: the accumulators of two adjacent groups of 8 keys form one of 16.
  __device__ static void round_to_operand(std::uint32_t (&p)[S::kKeys / 16][4],
                                          const float (&s)[S::kKeys / 2]) {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pack_two<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }

  /// Stores this piece's partial result. True if it is the tile's last piece to finish: `o` and `sum` are
  /// then those of the whole tile.
  __device__ bool merge_pieces(const FlashUnit& u, float (&o)[kDim / 2], const float (&m)[2],
                               float (&sum)[2]) {
    constexpr int kM = kDim / 2 * 128, kSum = kM + 256;
    const auto partial = [&](int piece) {
      return a_.partials +
             (std::size_t(u.partial + piece) * S::kWarpgroups + std::size_t(warpgroup_)) * S::kPartialFloats +
             thread_;
    };
    float* mine = partial(u.piece);
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) __stcg(mine + i * 128, o[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __stcg(mine + kM + r * 128, m[r]);
      __stcg(mine + kSum + r * 128, sum[r]);
    }
    __threadfence();
    ptx::barrier_sync(kFlashOwnBarrier + warpgroup_, 128);
    if (thread_ == 0) {
      std::uint32_t* finished = a_.counters + 1 + u.tile * S::kWarpgroups + warpgroup_;
      const bool last = atomicAdd(finished, 1u) == unsigned(u.pieces - 1);
      if (last) *finished = 0;
      shared_.last[warpgroup_] = last;
    }
    ptx::barrier_sync(kFlashOwnBarrier + warpgroup_, 128);
    if (!shared_.last[warpgroup_]) return false;
    __threadfence();
    float most[2] = {kInitialM, kInitialM};
    for (int k = 0; k < u.pieces; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], __ldcg(partial(k) + kM + r * 128));
    }
    sum[0] = sum[1] = 0;
    clear(o);
    for (int k = 0; k < u.pieces; ++k) {
      const float* from = partial(k);
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        factor[r] = ptx::exp2_approx_in_order(__ldcg(from + kM + r * 128) - most[r]);
        sum[r] += factor[r] * __ldcg(from + kSum + r * 128);
      }
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) o[i] += factor[i / 2 % 2] * __ldcg(from + i * 128);
    }
    return true;
  }

  /// Writes the rows of the result. Goes through the shared memory of Q, so that whole lines are written.
  __device__ void store(const FlashUnit& u, std::byte* rows, const float (&o)[kDim / 2],
                        const float (&sum)[2]) {
    const float inverse[2] = {1 / sum[0], 1 / sum[1]};
    const int row = thread_ / 32 * 16 + thread_ % 32 / 4;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<std::uint32_t*>(rows + swizzled_chunk(row + 8 * r, i) + thread_ % 4 * 4) =
            pack_two<T>(o[4 * i + 2 * r] * inverse[r], o[4 * i + 2 * r + 1] * inverse[r]);
      }
    }
    ptx::barrier_sync(kFlashOwnBarrier + warpgroup_, 128);
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 128 / kChunks;
    const int chunk = thread_ % kChunks;
#pragma unroll
    for (int i = 0; i < 64 / kRowsAtOnce; ++i) {
      const int line = i * kRowsAtOnce + thread_ / kChunks;
      const std::ptrdiff_t to = global_chunk<S>(a_, u, warpgroup_ * 64 + line, chunk);
      if (to < 0) break;
      *reinterpret_cast<uint4*>(static_cast<T*>(a_.out) + to) =
          *reinterpret_cast<const uint4*>(rows + swizzled_chunk(line, chunk));
    }
  }

  static constexpr float kInitialM = -1e30f;  // m before the first visible key

  const FlashArguments& a_;
  FlashShared<S>& shared_;
  const int warpgroup_, thread_;
  int stages_done_ = 0;
  int unit_ = 0;         // units begun; the end marker counts as one
  int j_ = 0, end_ = 0;  // current stage of the unit, and its end
  int unmasked_ = 0;     // FlashUnit::unmasked
  int queries_ = 0;      // slot of the unit's queries
  int limit_[2];         // last key that each of the thread's two rows sees
  float m_[2], sum_[2];  // of the thread's two rows; sum_ covers this thread's keys only
};

}  // namespace troupe::kernels::cuda
