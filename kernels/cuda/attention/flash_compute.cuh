#pragma once
// A computing warpgroup: 64 rows of a tile against the stages of keys and values that the ring brings.
#include "kernels/cuda/attention/flash_shape.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda {

/// Named barriers: 0 is __syncthreads().
inline constexpr int kFlashOwnBarrier = 1;   // + warpgroup: its 128 threads
inline constexpr int kFlashTurnBarrier = 4;  // + warpgroup: its turn to issue

__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void announce(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Tells the compiler that an asynchronous product has just changed these.
template <int kCount>
__device__ __forceinline__ void changed(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

/// wgmma_wait<0>(), of which two with different kPlace are not merged into one that stands elsewhere.
template <int kPlace>
__device__ __forceinline__ void finish_products() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned 0; // %0" ::"n"(kPlace) : "memory");
#endif
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  // Volatile: it stays on its side of the waits for asynchronous products.
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class S>
class FlashConsumer {
 public:
  using T = typename S::T;
  static constexpr int kDim = S::kHeadDim;

  __device__ FlashConsumer(const FlashArguments& a, FlashShared<S>& shared)
      : a_(a), shared_(shared), me_(int(threadIdx.x) / 128 - 1), thread_(int(threadIdx.x) % 128) {
    // Warpgroup 0 has the first turn.
    if (me_ == S::kWarpgroups - 1) announce(kFlashTurnBarrier, 256);
  }

  /// The stages of all units are one stream: the first scores of a unit run beside the last product of the
  /// unit before.
  __device__ void run() {
    float o[kDim / 2];
    float s[S::kKeys / 2];
    std::uint32_t p[S::kKeys / 16][4];
    float factor[2];
    if (!begin_unit()) return;
    clear(o);
    troupe::cuda::wait(&shared_.keys_full[stage()], parity());
    wait_for_turn();
    scores(s, stage());
    pass_turn();
    troupe::cuda::wgmma_wait<0>();
    changed(s);
    release(shared_.keys_empty[stage()]);
    exponentials(s, factor);
    round_to(p, s);
    for (;;) {
      // p belongs to the values of this stage, s will to the next.
      const int values_stage = stage(), values_parity = parity();
      const float m[2] = {m_[0], m_[1]}, sum[2] = {sum_[0], sum_[1]};
      const bool last = ++j_ == end_;
      if (last && !begin_unit()) break;
      ++done_;
      troupe::cuda::wait(&shared_.keys_full[stage()], parity());
      wait_for_turn();
      scores(s, stage());
      troupe::cuda::wait(&shared_.values_full[values_stage], values_parity);
      weigh(o, p, values_stage);
      pass_turn();
      troupe::cuda::wgmma_wait<1>();
      changed(s);
      release(shared_.keys_empty[stage()]);
      const bool grown = exponentials(s, factor);
      // One wait in each branch: in the block of the exponentials the assembler would move it up before them.
      if (last) {
        finish_products<0>();
        changed(o);
        release(shared_.values_empty[values_stage]);
        end_unit(unit_ - 2, o, m, sum);
        clear(o);
      } else if (grown) {
        finish_products<1>();
        changed(o);
        release(shared_.values_empty[values_stage]);
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= factor[i / 2 % 2];
      } else {
        finish_products<2>();
        changed(o);
        release(shared_.values_empty[values_stage]);
      }
      round_to(p, s);
    }
    troupe::cuda::wait(&shared_.values_full[stage()], parity());
    weigh(o, p, stage());
    troupe::cuda::wgmma_wait<0>();
    changed(o);
    end_unit(unit_ - 2, o, m_, sum_);
  }

 private:
  /// Makes the next unit the one whose scores are computed; false when there is none.
  __device__ bool begin_unit() {
    const int k = unit_++;
    troupe::cuda::wait(&shared_.queries_full[k % kFlashQueries], k / kFlashQueries & 1);
    troupe::cuda::wait(&shared_.unit_known[k % kFlashUnits], k / kFlashUnits & 1);  // has passed: no cost
    const FlashUnit& u = shared_.unit[k % kFlashUnits];
    end_ = u.end;
    if (end_ == 0) return false;
    j_ = u.begin;
    unmasked_ = u.unmasked;
    queries_ = k % kFlashQueries;
    const int row = u.first + me_ * 64 + thread_ / 32 * 16 + thread_ % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      limit_[i] = u.position + min(u.tokens - 1, token_of(a_, row + 8 * i));
      m_[i] = kNothing;
      sum_[i] = 0;
    }
    return true;
  }

  /// Sends the results of unit k on their way.
  __device__ void end_unit(int k, float (&o)[kDim / 2], const float (&m)[2], const float (&part_sum)[2]) {
    const FlashUnit u = shared_.unit[k % kFlashUnits];
    float sum[2] = {part_sum[0], part_sum[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
    meet(kFlashOwnBarrier + me_, 128);  // all of the warpgroup's products have read Q
    if (u.pieces == 1 || add_pieces(u, o, m, sum)) store(u, shared_.rows[k % kFlashQueries][me_], o, sum);
    __syncwarp();  // products follow, which want the whole warp
    troupe::cuda::arrive(&shared_.queries_empty[k % kFlashQueries]);
    troupe::cuda::arrive(&shared_.unit_done[k % kFlashUnits]);
  }

  __device__ static void clear(float (&o)[kDim / 2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
  }

  __device__ int stage() const { return done_ % S::kStages; }
  __device__ std::uint32_t parity() const { return done_ / S::kStages & 1; }

  __device__ void wait_for_turn() const { meet(kFlashTurnBarrier + me_, 256); }
  __device__ void pass_turn() const { announce(kFlashTurnBarrier + (me_ + 1) % S::kWarpgroups, 256); }
  __device__ void release(troupe::cuda::Barrier& empty) const {
    if (thread_ % 32 == 0) troupe::cuda::arrive(&empty);
  }

  /// S = Q · K^T, one group.
  __device__ void scores(float (&s)[S::kKeys / 2], int stage) {
    const std::uint64_t keys = described(shared_.keys[0], std::uint32_t(stage) * S::kStageBytes, 16);
    const std::uint64_t queries =
        described(shared_.rows[0][0], std::uint32_t(queries_ * S::kWarpgroups + me_) * S::kQueryBytes, 16);
    troupe::cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const std::uint64_t b =
          troupe::cuda::advanced(keys, std::uint32_t(k / 4 * S::kPages * S::kHalfBytes + k % 4 * 32));
      const std::uint64_t a = troupe::cuda::advanced(queries, std::uint32_t(k / 4 * (64 * 128) + k % 4 * 32));
      troupe::cuda::wgmma<T, S::kKeys>(s, a, b, k > 0);
    }
    troupe::cuda::wgmma_commit();
  }

  /// O += P · V, one group.
  __device__ void weigh(float (&o)[kDim / 2], const std::uint32_t (&p)[S::kKeys / 16][4], int stage) {
    const std::uint64_t values =
        described(shared_.values[0], std::uint32_t(stage) * S::kStageBytes, S::kPages * S::kHalfBytes);
    troupe::cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
      troupe::cuda::wgmma<T, kDim, true>(o, p[k], troupe::cuda::advanced(values, std::uint32_t(k * 2048)),
                                         true);
    }
    troupe::cuda::wgmma_commit();
  }

  /// The operand so many bytes behind `first`. Made of one value of the warp, so that it is computed in
  /// uniform registers, where the instruction wants it.
  __device__ static std::uint64_t described(const void* first, std::uint32_t offset, std::uint32_t leading) {
    const std::uint32_t at = __shfl_sync(~0u, (troupe::cuda::shared_address(first) + offset) >> 4, 0);
    return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (at | (leading >> 4) << 16);
  }

  /// s becomes exp2(scale * s - m), 0 where the row does not see the key. m seldom moves; when a row's does,
  /// true is returned, and what was summed before has to be multiplied by `factor`. In two halves of the
  /// keys: the largest s of the second is found beside the exponentials of the first.
  __device__ bool exponentials(float (&s)[S::kKeys / 2], float (&factor)[2]) {
    constexpr int kHalf = S::kKeys / 4;
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
    const bool first = grown(most);
    if (first) raise(most, factor);
    most[0] = s[kHalf], most[1] = s[kHalf + 1], most[2] = s[kHalf + 2], most[3] = s[kHalf + 3];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      s[i] = exp2_fast(s[i] * a_.scale_log2 - m_[i / 2 % 2]);
      sum[i % 4] += s[i];
      most[i % 4] = fmaxf(most[i % 4], s[kHalf + i]);
    }
    const bool second = grown(most);
    if (second) {
      float more[2];
      raise(most, more);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) s[i] *= more[i / 2 % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] *= more[i / 2];
#pragma unroll
      for (int r = 0; r < 2; ++r) factor[r] = first ? factor[r] * more[r] : more[r];
    }
#pragma unroll
    for (int i = kHalf; i < 2 * kHalf; ++i) {
      s[i] = exp2_fast(s[i] * a_.scale_log2 - m_[i / 2 % 2]);
      sum[i % 4] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] += sum[2 * r] + sum[2 * r + 1];
    return first || second;
  }

  /// Whether one of the warp's rows has an s that is too large for its m.
  __device__ bool grown(float (&most)[4]) const {
    most[0] = fmaxf(most[0], most[1]), most[1] = fmaxf(most[2], most[3]);
    return __any_sync(~0u, most[0] * a_.scale_log2 > m_[0] + 8 || most[1] * a_.scale_log2 > m_[1] + 8);
  }

  /// Moves m of the rows that need it.
  __device__ void raise(float (&most)[4], float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
      const float top = most[r] * a_.scale_log2, m = top > m_[r] + 8 ? top : m_[r];
      factor[r] = exp2_fast(m_[r] - m);
      m_[r] = m;
      sum_[r] *= factor[r];
    }
  }

  /// Accumulators of two neighbouring groups of 8 keys are an A operand of 16.
  __device__ static void round_to(std::uint32_t (&p)[S::kKeys / 16][4], const float (&s)[S::kKeys / 2]) {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pack_two<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }

  /// Leaves this piece's results; if it is the tile's last to be finished, `o` and `sum` become those of all.
  __device__ bool add_pieces(const FlashUnit& u, float (&o)[kDim / 2], const float (&m)[2], float (&sum)[2]) {
    constexpr int kM = kDim / 2 * 128, kSum = kM + 256;
    const auto partial = [&](int piece) {
      return a_.partials +
             (std::size_t(u.partial + piece) * S::kWarpgroups + std::size_t(me_)) * S::kPartialFloats +
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
    meet(kFlashOwnBarrier + me_, 128);
    if (thread_ == 0) {
      std::uint32_t* finished = a_.counters + 1 + u.tile * S::kWarpgroups + me_;
      const bool last = atomicAdd(finished, 1u) == unsigned(u.pieces - 1);
      if (last) *finished = 0;
      shared_.last[me_] = last;
    }
    meet(kFlashOwnBarrier + me_, 128);
    if (!shared_.last[me_]) return false;
    __threadfence();
    float most[2] = {kNothing, kNothing};
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
        factor[r] = exp2_fast(__ldcg(from + kM + r * 128) - most[r]);
        sum[r] += factor[r] * __ldcg(from + kSum + r * 128);
      }
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) o[i] += factor[i / 2 % 2] * __ldcg(from + i * 128);
    }
    return true;
  }

  /// Through the memory of Q, for whole lines.
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
    meet(kFlashOwnBarrier + me_, 128);
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 128 / kChunks;
    const int chunk = thread_ % kChunks;
#pragma unroll
    for (int i = 0; i < 64 / kRowsAtOnce; ++i) {
      const int line = i * kRowsAtOnce + thread_ / kChunks;
      const std::ptrdiff_t to = global_chunk<S>(a_, u, me_ * 64 + line, chunk);
      if (to < 0) break;
      *reinterpret_cast<uint4*>(static_cast<T*>(a_.out) + to) =
          *reinterpret_cast<const uint4*>(rows + swizzled_chunk(line, chunk));
    }
  }

  static constexpr float kNothing = -1e30f;  // m before the first visible key

  const FlashArguments& a_;
  FlashShared<S>& shared_;
  const int me_, thread_;
  int done_ = 0;         // stages
  int unit_ = 0;         // units begun, the end of all counts as one
  int j_ = 0, end_ = 0;  // stage of the unit, and where it ends
  int unmasked_ = 0;     // stages before this one are seen whole by all rows
  int queries_ = 0;      // where the unit's are
  int limit_[2];         // last key that the thread's rows see
  float m_[2], sum_[2];  // of the thread's rows; the sum of this thread's keys alone
};

}  // namespace troupe::kernels::cuda
