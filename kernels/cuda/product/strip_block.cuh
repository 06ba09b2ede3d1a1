#pragma once
// Products of up to eight rows with weights of some megabytes.
//
// Such a product takes little more time than its start, its end and the way of its inputs through the chip.
// So everything that can be done before the kernel's turn is: a block owns a strip of outputs with all their
// inputs, which is one piece of memory, and its weights, constants, come into its shared memory while earlier
// kernels run; a multiprocessor has room for the strips of two kernels. After the wait a lane loads its part
// of x into registers, multiplies, and the sums of the warps, each of which has a share of the inputs, meet
// in shared memory: one trip to the cache, one barrier, one store. What runs after the wait is short and
// straight, since its instructions come from memory too: where things lie was worked out before.
//
// The weights of the next kernel and the x of this one take the same way through the chip, and whoever asks
// for the weights at once finds his x behind them. So one warp asks for a few rows at a time, a little faster
// than the memory can bring them: a third more slowly takes 13 MB 5 % longer, and as fast as the warp can,
// with eight rows of x, 25 %.
//
// Of many inputs, blocks read much of x: 128 blocks that each want 40 KiB take 1.5 us for it. There two
// blocks of a cluster have the same outputs, each with half of the inputs; each finishes half of the outputs,
// and sends the other its sums of the rest.
//
// A norm between two products is made in halves (HalvedNorm): who adds to the residual stream leaves what he
// has times the norm's weights, and squares; who takes it multiplies its sums, which saves a kernel and a
// trip. Every warp sums a share of the squares, on its way to the sums.
//
// Weights are there long before the wait. Behind a norm the first of them go on to registers: up to 1,024
// inputs leave enough of those for two blocks on a multiprocessor, more do not.
//
// Weights are the tensor core's A, 16 rows × 16 inputs, which here are 8 outputs × 32 inputs: row g + 8 is
// the same output as row g with other inputs. So the 16 bytes that a lane loads are its operand as they lie,
// where 16 outputs would have to be put together from two loads. B's columns are four rows of x with the
// inputs of A's rows g, and the same four with those of A's rows g + 8; of the sums a half is meant, (g, n)
// and (g + 8, n + 4). More than four rows of x are a second B.
//
// Lane 4 g + t takes the 8 inputs from 8 t of each 32. A row of weights begins 64 bytes further on, modulo
// 128, than the one before it, so that the eight lanes that load at a time, of two rows, meet no other's
// bank.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/strip.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::strips {

inline constexpr int kWarps = kStripWarps;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kAskedFor = 4;    ///< rows at a time; a block has a multiple of it
inline constexpr int kGotAt = 56;      ///< in the header: the barrier of what the cluster's other block sends
inline constexpr int kSquaresAt = 64;  ///< in the header: squares of each row, a sum of each warp
inline constexpr int kSquaresOfWarp = 16;  ///< of a row
inline constexpr int kHeldBehindNorm = 4;  ///< eights whose weights are in registers before the wait

struct StripArgs {
  const char* weight = nullptr;
  const char* x = nullptr;
  const float* squares = nullptr;  ///< of a halved norm whose other half x is
  float eps = 0;
  float of_mean = 0;  ///< 1 / the inputs that there are
  int stride = 0;     ///< inputs with their padding
  int part = 0;       ///< of them, that are a block's
  int rows = 0;
  int height = 0;
  unsigned pace = 0;  ///< cycles from kAskedFor rows of weights to the next
  int sums_at = 0;    ///< in shared memory
  bool sums_over_weights = false;
  EndingArgs ending{};
  HalvedNorm leaves{};
};

__device__ __forceinline__ float4 scaled(float4 y, float by) {
  return make_float4(y.x * by, y.y * by, y.z * by, y.w * by);
}

/// One block at work on kEights eights of outputs, kPieces pieces of inputs and kSets sets of four rows; one
/// of kSplit blocks that have these outputs.
template <int kSplit, int kEights, int kPieces, int kSets, bool kTakes>
struct Strip {
  const StripArgs& a;
  char* const shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const ptx::SharedAddress full = ptx::shared_address(shared);  ///< a barrier for each two eights
  const int rank = static_cast<int>(blockIdx.x) % kSplit;       ///< in the cluster
  const int first_output = static_cast<int>(blockIdx.x) / kSplit * a.height;
  const int outputs = min(a.height, a.ending.outputs - first_output);
  const int row_bytes = a.stride * 2, part_bytes = a.part * 2, pitch = part_bytes + kStripPadding;
  char* const weights = shared + strip_weights_at(kSplit);
  const int g = lane / 4, t = lane % 4;
  const int other = g / 4;  ///< 1: a column of B for A's rows g + 8
  /// Of x, that this lane loads: of what is not there, the last. Nobody takes its sums.
  const int row = min(kSets == 1 ? g % 4 : g, a.rows - 1);

  /// By one warp, whose lanes keep together: what an instruction of the copy engine takes is the warp's, and
  /// need not be moved there from a lane.
  __device__ __forceinline__ void bring_weights() const {
    const char* from = a.weight +
                       static_cast<std::size_t>(first_output) * static_cast<std::size_t>(row_bytes) +
                       rank * part_bytes;
    ptx::SharedAddress to = ptx::shared_address(weights), barrier = full;
    const unsigned start = ptx::clock_cycles();
    unsigned next = 0;
    for (int first = 0; first < outputs; first += 16) {
      const int count = min(16, outputs - first);
      ptx::mbarrier_arrive_expect_if(barrier, count * part_bytes, lane == 0);
      for (int o = 0; o < count; o += kAskedFor) {
        while (ptx::clock_cycles() - start < next) {
        }
        next += a.pace;
#pragma unroll
        for (int i = 0; i < kAskedFor; ++i) {
          ptx::bulk_copy_if(to, from, part_bytes, barrier, lane == 0);
          from += row_bytes;
          to += static_cast<ptx::SharedAddress>(pitch);
        }
      }
      barrier += 8;
    }
  }

  /// The first of the eight inputs of this lane in the first half of the warp's box.
  __device__ __forceinline__ int input(int piece) const {
    return piece * kStripPiece + warp * kStripBox + t * 8;
  }
  template <class Function>
  __device__ __forceinline__ static void for_each_part(Function&& function) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int half = 0; half < 2; ++half) function(p, half);
    }
  }
  /// Words 0 and 2 of the lane's four; of the other columns 1 and 3.
  struct X {
    std::uint32_t of[kSets][kPieces][2][2];
  };
  /// Of one row's words. Of eight rows, lane ^ 16 has the same inputs of row ^ 4: each has what the other
  /// needs.
  __device__ __forceinline__ void place(X& x, int p, int half, uint4 words) const {
    const std::uint32_t mine[2] = {other ? words.y : words.x, other ? words.w : words.z};
    if constexpr (kSets == 1) {
      x.of[0][p][half][0] = mine[0];
      x.of[0][p][half][1] = mine[1];
    } else {
      const std::uint32_t yours[2] = {other ? words.x : words.y, other ? words.z : words.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t got = __shfl_xor_sync(~0u, yours[i], 16);
        x.of[0][p][half][i] = other ? got : mine[i];
        x.of[1][p][half][i] = other ? mine[i] : got;
      }
    }
  }
  /// Where a lane reads and writes, worked out before the wait.
  struct Places {
    const char* x;                        ///< its first input
    const float* squares;                 ///< four, of the warp's share of row lane / 4
    ptx::SharedAddress summed;            ///< where the share's sum goes
    ptx::SharedAddress weights[kEights];  ///< of its output of each eight, in the first piece of the inputs
    ptx::SharedAddress piece[kPieces];    ///< what lies further on
    ptx::SharedAddress sums[kSets][2];    ///< of its rows 2 t and 2 t + 1, and of the first eight
    ptx::SharedAddress totals;            ///< of what this thread finishes; the first warp's
    ptx::SharedAddress totals_pitch;      ///< from one warp's to the next
  };
  /// This thread finishes outputs m … m + 3 of row n.
  __device__ __forceinline__ Places places(int n, int m) const {
    const auto early = [](auto v) {
      ptx::materialize(v);
      return v;
    };
    Places at;
    at.x = early(a.x + static_cast<std::size_t>(row) * static_cast<std::size_t>(row_bytes) +
                 rank * part_bytes + input(0) * 2);
    if constexpr (kTakes) {
      const int n = lane / 4;
      at.squares = early(a.squares + min(n, a.rows - 1) * (a.stride / kSquaresOf) + square());
      at.summed = early(ptx::shared_address(squares(n) + warp));
    }
    const auto of_box = [&](int p) { return has_box(p) ? input(p) * 2 : t * 16; };  // else x is zero
#pragma unroll
    for (int e = 0; e < kEights; ++e) {  // of what is not there, another
      at.weights[e] = early(ptx::shared_address(weights) +
                            static_cast<ptx::SharedAddress>(min(e * 8 + g, outputs - 1) * pitch + of_box(0)));
    }
#pragma unroll
    for (int p = 1; p < kPieces; ++p)
      at.piece[p] = early(static_cast<ptx::SharedAddress>(of_box(p) - of_box(0)));
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int c = 0; c < 2; ++c) at.sums[set][c] = early(part(warp, set * 4 + 2 * t + c, g));
    }
    at.totals = early(part(0, n, m));
    at.totals_pitch = early(part(1, 0, 0) - part(0, 0, 0));
    return at;
  }
  /// Whether the inputs have the warp's box of this piece.
  __device__ __forceinline__ bool has_box(int piece) const {
    return piece * kStripPiece + warp * kStripBox < a.part;
  }

  struct Loaded {
    uint4 words[kPieces][2];
    float4 squares{};
  };
  __device__ __forceinline__ void load(Loaded& loaded, const Places& at) const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      loaded.words[p][0] = loaded.words[p][1] = uint4{};
      if (!has_box(p)) continue;
      loaded.words[p][0] = *reinterpret_cast<const uint4*>(at.x + p * kStripPiece * 2);
      loaded.words[p][1] = *reinterpret_cast<const uint4*>(at.x + p * kStripPiece * 2 + 64);
    }
    static_assert(!kTakes || kPieces * kStripPiece <= kSquaresOf * kSquaresOfWarp * kWarps, "all are loaded");
    if (kTakes && square() < a.stride / kSquaresOf)
      loaded.squares = *reinterpret_cast<const float4*>(at.squares);
  }

  /// The first of the four squares that this lane loads.
  __device__ __forceinline__ int square() const { return warp * kSquaresOfWarp + lane % 4 * 4; }
  /// Of row n, a sum of each warp.
  __device__ __forceinline__ float* squares(int n) const {
    return reinterpret_cast<float*>(shared + kSquaresAt) + n * kWarps;
  }
  /// Seen behind hand_over().
  __device__ __forceinline__ void leave_squares(const Loaded& loaded, const Places& at) const {
    float sum = loaded.squares.x + loaded.squares.y + loaded.squares.z + loaded.squares.w;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) ptx::store_shared(at.summed, sum);
  }
  /// What the sums of row n lack, 1 / sqrt(mean(h^2) + eps).
  __device__ __forceinline__ float factor(int n) const {
    static_assert(kWarps == 8);
    const ptx::SharedAddress from = ptx::shared_address(squares(n));
    const float4 low = ptx::load_shared_float4(from), high = ptx::load_shared_float4(from + 16);
    const float sum = low.x + low.y + low.z + low.w + (high.x + high.y + high.z + high.w);
    return rsqrtf(sum * a.of_mean + a.eps);
  }

  /// Weights of the first kHeld eights, which are in registers when x comes.
  static constexpr int kHeld = !kTakes ? 0 : kEights < kHeldBehindNorm ? kEights : kHeldBehindNorm;
  struct Held {
    uint4 of[kHeld > 0 ? kHeld : 1][kPieces][2];
  };
  __device__ __forceinline__ void hold(Held& held, const Places& at) const {
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      if (e % 2 == 0) wait_for_weights(e);
      for_each_part([&](int p, int half) { held.of[e][p][half] = weights_of(e, p, half, at); });
    }
  }
  /// Of this eight and the next, where there are any.
  __device__ __forceinline__ void wait_for_weights(int eight) const {
    if (eight * 8 < outputs) ptx::mbarrier_wait(full + static_cast<ptx::SharedAddress>(eight / 2 * 8), 0);
  }
  __device__ __forceinline__ uint4 weights_of(int eight, int p, int half, const Places& at) const {
    const ptx::SharedAddress from = p == 0 ? at.weights[eight] : at.weights[eight] + at.piece[p];
    return ptx::load_shared_16(from + static_cast<ptx::SharedAddress>(half * 64));
  }

  struct Sums {
    float of[kSets][kEights][2];  ///< of rows 2 t and 2 t + 1 of the set, t < 2
  };
  /// No branch but the barrier's: all loads are on their way before they are needed.
  template <int kCount>
  __device__ __forceinline__ void multiply_eights(Sums& sums, int first, X& x, const Loaded& loaded,
                                                  const Places& at, const Held& held) const {
    if (first >= kHeld) wait_for_weights(first);
    uint4 w[kCount][kPieces][2];
    for_each_part([&](int p, int half) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        w[e][p][half] = first + e < kHeld ? held.of[first + e][p][half] : weights_of(first + e, p, half, at);
      }
    });
    if (first == 0) for_each_part([&](int p, int half) { place(x, p, half, loaded.words[p][half]); });
    float d[kSets][kCount][2][4] = {};
    for_each_part([&](int p, int half) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const uint4 v = w[e][p][half];
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          ptx::mma<Bf16>(d[set][e][half], v.x, v.y, v.z, v.w, x.of[set][p][half][0], x.of[set][p][half][1]);
        }
      }
    });
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float low = d[set][e][0][c] + d[set][e][1][c],
                      high = d[set][e][0][c + 2] + d[set][e][1][c + 2];
          const float mine = t < 2 ? low : high;
          sums.of[set][first + e][c] = mine + __shfl_xor_sync(~0u, mine, 2);
        }
      }
    }
  }
  __device__ __forceinline__ void multiply(Sums& sums, const Loaded& loaded, const Places& at,
                                           const Held& held) const {
    X x;
#pragma unroll
    for (int first = 0; first + 1 < kEights; first += 2) multiply_eights<2>(sums, first, x, loaded, at, held);
    if constexpr (kEights % 2 != 0) multiply_eights<1>(sums, kEights - 1, x, loaded, at, held);
  }

  // The sums of all warps: (warp, row of x, output).
  __device__ __forceinline__ ptx::SharedAddress part(int of_warp, int n, int m) const {
    return ptx::shared_address(shared + a.sums_at) +
           static_cast<ptx::SharedAddress>(((of_warp * a.rows + n) * (a.height + 4) + m) * 4);
  }
  __device__ __forceinline__ void hand_over(const Sums& sums, const Places& at) const {
    if (a.sums_over_weights) __syncthreads();
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool mine = t < 2 && set * 4 + 2 * t + c < a.rows;
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          if (mine && e * 8 + g < outputs)
            ptx::store_shared(at.sums[set][c] + static_cast<ptx::SharedAddress>(e * 32), sums.of[set][e][c]);
        }
      }
    }
    __syncthreads();
  }
  /// Of four outputs `further` behind the first that this thread finishes.
  __device__ __forceinline__ float4 total(const Places& at, int further) const {
    const ptx::SharedAddress from = at.totals + static_cast<ptx::SharedAddress>(further * 4);
    float4 y = ptx::load_shared_float4(from);
#pragma unroll
    for (unsigned w = 1; w < kWarps; ++w) {
      const float4 more = ptx::load_shared_float4(from + w * at.totals_pitch);
      y = make_float4(y.x + more.x, y.y + more.y, y.z + more.z, y.w + more.w);
    }
    return y;
  }
};

/// Outputs o … o + 3 of row n of the stream on their way to half a norm. The thread beside this one has the
/// other four of the eight.
struct HalfOut {
  const bool there;
  float4 weight{};
  Bf16* weighted = nullptr;
  float* squares = nullptr;

  __device__ __forceinline__ HalfOut(const HalvedNorm& half, bool mine, int n, int o, int outputs)
      : there(half.weighted != nullptr) {
    if (!there || !mine) return;
    const int at = n * outputs + o;
    weight = *reinterpret_cast<const float4*>(half.weight + o);
    weighted = static_cast<Bf16*>(half.weighted) + at;
    squares = half.squares + at / kSquaresOf;
    ptx::materialize(weighted);
    ptx::materialize(squares);
  }
  __device__ __forceinline__ void leave(float4 h) const {
    if (!there) return;
    store_four(weighted, h.x * weight.x, h.y * weight.y, h.z * weight.z, h.w * weight.w);
    float sum = h.x * h.x + h.y * h.y + h.z * h.z + h.w * h.w;
    sum += __shfl_xor_sync(3u << (threadIdx.x % 32 & ~1u), sum, 1);
    if (threadIdx.x % 2 == 0) *squares = sum;
  }
};

}  // namespace troupe::kernels::cuda::strips
