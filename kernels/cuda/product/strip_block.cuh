#pragma once
// One block of a strip product: up to eight rows of x, weights of some megabytes.
//
// Such a product takes little longer than its start, its end and the latency of its inputs. So everything
// possible is done before the kernel's turn: a block owns a strip of outputs with all their inputs, and
// fetches those weights, which are constants, while earlier kernels run. After the wait a lane loads its part
// of x into registers and multiplies; the warps, each with a share of the inputs, add up their sums in shared
// memory. The code after the wait is short and has few branches, because instructions come from memory too.
//
// Operands of mma.sync. Weights are A, 16 rows × 16 inputs, used as 8 outputs × 32 inputs: row g + 8 is the
// same output as row g with other inputs. So the 16 bytes that a lane loads are its operand as they lie. B's
// columns 0 … 3 are four rows of x with the inputs of A's rows g, columns 4 … 7 the same rows of x with the
// inputs of A's rows g + 8. Of the sums only (g, n) and (g + 8, n + 4) count. More than four rows of x are a
// second B. Lane 4 g + t takes the 8 inputs from 8 t of each 32.
//
// Bank conflicts: the pitch of a row of weights is 64 modulo 128 bytes, so that the eight lanes that load at
// a time, from two rows, use different banks.
//
// Reasons and measurements: kernels/README.md, "Strips".
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/norm_producer.cuh"
#include "kernels/cuda/product/strip.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::strips {

inline constexpr int kWarps = kStripWarps;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kPeerBarrierOffset =
    56;                                    ///< in the header: barrier of the sums that the peer block sends
inline constexpr int kSquaresOffset = 64;  ///< in the header: of each row, a sum of squares from each warp
inline constexpr int kSquareSumsPerWarp = 16;  ///< sums of squares of a row that a warp loads at a time
/// Tiles of outputs whose weights are in registers before the wait, in a product that consumes a halved norm.
inline constexpr int kTilesPreloadedBehindNorm = 4;
inline constexpr int kMostSlicesPreloadedBehindNorm = 2;  ///< more leave no registers for them
/// Registers for operands that a lane expands from codes before the wait.
inline constexpr int kWordsExpandedBeforeWait = 64;

struct StripArgs {
  const char* weight = nullptr;
  const char* x = nullptr;
  const float* squares = nullptr;  ///< of the halved norm that x is the other half of
  float eps = 0;
  float inverse_cols = 0;        ///< 1 / inputs without padding
  int stride = 0;                ///< inputs with padding
  int block_inputs = 0;          ///< of them, a block's share
  int row_bytes = 0;             ///< of weight
  int block_row_bytes = 0;       ///< of them, a block's share
  const char* scales = nullptr;  ///< of quantised weights
  int scale_group = 1;           ///< inputs that share a scale of a group
  int rows = 0;
  int outputs = 0;                    ///< of a block
  unsigned copy_interval_cycles = 0;  ///< from one request of kStripRowsPerCopy rows of weights to the next
  int sums_offset = 0;                ///< in shared memory
  bool sums_overwrite_weights = false;
  EndingArgs ending{};
  HalvedNorm produced_norm{};
};

/// One block: kTiles tiles of eight outputs, kSlices slices of kSliceInputs inputs, kRowSets sets of four
/// rows of x. The kCluster blocks of a cluster have the same outputs and share the inputs.
template <class Codes, int kCluster, int kTiles, int kSlices, int kRowSets, bool kConsumesNorm>
struct Strip {
  /// 16-byte loads of weights and operands of 32 inputs, of a lane in a slice.
  static constexpr int kVectors = Codes::kOperands == 1 ? 2 : 1, kOperands = kVectors * Codes::kOperands;
  static constexpr int kWarpInputs = 32 * kOperands, kSliceInputs = kWarpInputs * kWarps;
  static constexpr int kWarpBytes = kVectors * 64;  ///< of a row of weights, that a warp takes of a slice
  /// Loads of four sums of squares, of a lane: the blocks of a cluster each add up all of a row's.
  static constexpr int kSquareSumsAtOnce = kSquareSumsPerWarp * kWarps;
  static constexpr int kSquareLoads =
      kConsumesNorm
          ? (kSlices * kSliceInputs * kCluster / kSquaresPerSum + kSquareSumsAtOnce - 1) / kSquareSumsAtOnce
          : 1;
  static constexpr int kScalesPerLane = Codes::kGroupScales ? kWarpInputs / kStripScaleInputs : 0;

  const StripArgs& a;
  char* const shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const ptx::SharedAddress full = ptx::shared_address(shared);  ///< a barrier for each two tiles
  const int rank = static_cast<int>(blockIdx.x) % kCluster;     ///< in the cluster
  const int first_output = static_cast<int>(blockIdx.x) / kCluster * a.outputs;
  const int outputs = min(a.outputs, a.ending.outputs - first_output);
  const int row_bytes = a.row_bytes, block_row_bytes = a.block_row_bytes;
  const int pitch = block_row_bytes + kStripPaddingBytes;
  char* const weights = shared + strip_weights_offset(kCluster);
  const int g = lane / 4, t = lane % 4;
  const int high_half = g / 4;  ///< 1: this lane's column of B has the inputs of A's rows g + 8
  /// Row of x this lane loads. Rows past the batch re-read the last row; their sums are never stored.
  const int row = min(kRowSets == 1 ? g % 4 : g, a.rows - 1);

  /// Called by one whole warp, converged: the operands of a bulk copy are then in uniform registers, and need
  /// not be moved there from a lane's.
  __device__ __forceinline__ void fetch_weights() const {
    const char* from = a.weight +
                       static_cast<std::size_t>(first_output) * static_cast<std::size_t>(row_bytes) +
                       rank * block_row_bytes;
    ptx::SharedAddress to = ptx::shared_address(weights), barrier = full;
    const unsigned start = ptx::clock_cycles();
    unsigned next = 0;
    for (int first = 0; first < outputs; first += 16) {
      const int count = min(16, outputs - first);
      ptx::mbarrier_arrive_expect_if(barrier, count * block_row_bytes, lane == 0);
      for (int o = 0; o < count; o += kStripRowsPerCopy) {
        while (ptx::clock_cycles() - start < next) {
        }
        next += a.copy_interval_cycles;
#pragma unroll
        for (int i = 0; i < kStripRowsPerCopy; ++i) {
          ptx::bulk_copy_if(to, from, block_row_bytes, barrier, lane == 0);
          from += row_bytes;
          to += static_cast<ptx::SharedAddress>(pitch);
        }
      }
      barrier += 8;
    }
  }

  /// First of the eight inputs of this lane in the first 32 inputs of the warp's share of a slice.
  __device__ __forceinline__ int input(int slice) const {
    return slice * kSliceInputs + warp * kWarpInputs + t * 8;
  }
  template <int kCount, class Function>
  __device__ __forceinline__ static void for_each_of_slices(Function&& function) {
#pragma unroll
    for (int p = 0; p < kSlices; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) function(p, i);
    }
  }
  /// Operand B: words 0 and 2 of the lane's four, or 1 and 3 in the columns with high_half.
  struct X {
    std::uint32_t of[kRowSets][kSlices][kOperands][2];
  };
  /// Fills x from the words of this lane's row. With eight rows lane ^ 16 has the same inputs of row ^ 4:
  /// each has two words that the other needs.
  __device__ __forceinline__ void distribute(X& x, int p, int half, uint4 words) const {
    const std::uint32_t kept[2] = {high_half ? words.y : words.x, high_half ? words.w : words.z};
    if constexpr (kRowSets == 1) {
      x.of[0][p][half][0] = kept[0];
      x.of[0][p][half][1] = kept[1];
    } else {
      const std::uint32_t sent[2] = {high_half ? words.x : words.y, high_half ? words.z : words.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t received = __shfl_xor_sync(~0u, sent[i], 16);
        x.of[0][p][half][i] = high_half ? received : kept[i];
        x.of[1][p][half][i] = high_half ? kept[i] : received;
      }
    }
  }
  /// Where a lane reads and writes. Computed before the wait.
  struct Addresses {
    const char* x;                    ///< the lane's first input
    const float* squares;             ///< four sums of squares, in the warp's share of row lane / 4
    ptx::SharedAddress warp_squares;  ///< where the sum of that share goes
    ptx::SharedAddress
        weights[kTiles];  ///< of the lane's output in each tile, in the first slice of the inputs
    ptx::SharedAddress slice[kSlices];     ///< offset of a slice from the first
    ptx::SharedAddress sums[kRowSets][2];  ///< of the lane's rows 2 t and 2 t + 1, in the first tile
    ptx::SharedAddress totals;             ///< the first warp's sums of the outputs that this thread finishes
    ptx::SharedAddress totals_pitch;       ///< from one warp's sums to the next warp's
  };
  /// For a thread that finishes outputs m … m + 3 of row n.
  __device__ __forceinline__ Addresses addresses(int n, int m) const {
    const auto early = [](auto v) {
      ptx::materialize(v);
      return v;
    };
    Addresses at;
    at.x = early(a.x + static_cast<std::size_t>(row) * static_cast<std::size_t>(a.stride * 2) +
                 rank * a.block_inputs * 2 + input(0) * 2);
    if constexpr (kConsumesNorm) {
      const int n = lane / 4;
      at.squares = early(a.squares + min(n, a.rows - 1) * (a.stride / kSquaresPerSum) + square());
      at.warp_squares = early(ptx::shared_address(squares(n) + warp));
    }
    const auto offset_of = [&](int p) {  // without inputs x is zero, and any weights do
      return (has_inputs(p) ? (p * kWarps + warp) * kWarpBytes : 0) + t * 16;
    };
#pragma unroll
    for (int e = 0; e < kTiles; ++e) {  // outputs past the last re-read the last
      at.weights[e] =
          early(ptx::shared_address(weights) +
                static_cast<ptx::SharedAddress>(min(e * 8 + g, outputs - 1) * pitch + offset_of(0)));
    }
#pragma unroll
    for (int p = 1; p < kSlices; ++p)
      at.slice[p] = early(static_cast<ptx::SharedAddress>(offset_of(p) - offset_of(0)));
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
#pragma unroll
      for (int c = 0; c < 2; ++c) at.sums[set][c] = early(address_of_sum(warp, set * 4 + 2 * t + c, g));
    }
    at.totals = early(address_of_sum(0, n, m));
    at.totals_pitch = early(address_of_sum(1, 0, 0) - address_of_sum(0, 0, 0));
    return at;
  }
  /// True if this slice has inputs for this warp.
  __device__ __forceinline__ bool has_inputs(int slice) const {
    return slice * kSliceInputs + warp * kWarpInputs < a.block_inputs;
  }

  struct Loaded {
    uint4 words[kSlices][kOperands];
    float4 squares[kSquareLoads]{};
  };
  __device__ __forceinline__ void load(Loaded& loaded, const Addresses& at) const {
#pragma unroll
    for (int p = 0; p < kSlices; ++p) {
#pragma unroll
      for (int o = 0; o < kOperands; ++o) loaded.words[p][o] = uint4{};
      if (!has_inputs(p)) continue;
#pragma unroll
      for (int o = 0; o < kOperands; ++o)
        loaded.words[p][o] = *reinterpret_cast<const uint4*>(at.x + p * kSliceInputs * 2 + o * 64);
    }
    if constexpr (kConsumesNorm) {
#pragma unroll
      for (int i = 0; i < kSquareLoads; ++i) {
        if (square() + i * kSquareSumsAtOnce < a.stride / kSquaresPerSum)
          loaded.squares[i] = *reinterpret_cast<const float4*>(at.squares + i * kSquareSumsAtOnce);
      }
    }
  }

  /// Index of the first of the four sums of squares that this lane loads.
  __device__ __forceinline__ int square() const { return warp * kSquareSumsPerWarp + lane % 4 * 4; }
  /// Sums of squares of row n, one from each warp.
  __device__ __forceinline__ float* squares(int n) const {
    return reinterpret_cast<float*>(shared + kSquaresOffset) + n * kWarps;
  }
  /// Visible to the block after store_sums().
  __device__ __forceinline__ void store_squares(const Loaded& loaded, const Addresses& at) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSquareLoads; ++i)
      sum += loaded.squares[i].x + loaded.squares[i].y + loaded.squares[i].z + loaded.squares[i].w;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) ptx::store_shared(at.warp_squares, sum);
  }
  /// Factor of row n's sums: 1 / sqrt(mean(h^2) + eps).
  __device__ __forceinline__ float factor(int n) const {
    static_assert(kWarps == 8);
    const ptx::SharedAddress from = ptx::shared_address(squares(n));
    const float4 low = ptx::load_shared_float4(from), high = ptx::load_shared_float4(from + 16);
    const float sum = low.x + low.y + low.z + low.w + (high.x + high.y + high.z + high.w);
    return rsqrtf(sum * a.inverse_cols + a.eps);
  }

  /// Tiles whose weights are in registers before x arrives.
  static constexpr bool kExpands = Codes::kOperands > 1;
  static constexpr int kMostPreloadedTiles = kExpands ? kWordsExpandedBeforeWait / (4 * kSlices * kOperands)
                                             : kConsumesNorm && kSlices <= kMostSlicesPreloadedBehindNorm
                                                 ? kTilesPreloadedBehindNorm
                                                 : 0;
  static constexpr int kPreloadedTiles = kTiles < kMostPreloadedTiles ? kTiles : kMostPreloadedTiles;
  struct Preloaded {
    uint4 of[kPreloadedTiles > 0 ? kPreloadedTiles : 1][kSlices][kOperands];
    Bf16 scales[kTiles][kSlices]
               [Codes::kGroupScales ? kScalesPerLane : 1];  ///< of the lane's inputs of its outputs
  };
  __device__ __forceinline__ void preload(Preloaded& preloaded, const Addresses& at) const {
#pragma unroll
    for (int e = 0; e < kPreloadedTiles; ++e) {
      if (e % 2 == 0) wait_for_weights(e);
      uint4 codes[kSlices][kVectors];
      for_each_of_slices<kVectors>([&](int p, int v) { codes[p][v] = weights_of(e, p, v, at); });
      for_each_of_slices<kOperands>([&](int p, int o) {
        uint4& v = preloaded.of[e][p][o];
        v = operand(codes[p], o, preloaded, e, p);
        if constexpr (kExpands) {  // else the compiler expands where the operand is used
          ptx::materialize(v.x);
          ptx::materialize(v.y);
          ptx::materialize(v.z);
          ptx::materialize(v.w);
        }
      });
    }
  }
  /// Scales of groups are constants that are read straight to registers.
  __device__ __forceinline__ void preload_scales(Preloaded& preloaded) const {
    if constexpr (Codes::kGroupScales) {
#pragma unroll
      for (int e = 0; e < kTiles; ++e) {
        const int output = first_output + min(e * 8 + g, outputs - 1);
        for_each_of_slices<kScalesPerLane>([&](int p, int i) {
          const int input =
              rank * a.block_inputs + p * kSliceInputs + warp * kWarpInputs + i * kStripScaleInputs;
          const int group = (has_inputs(p) ? input : 0) / a.scale_group;
          preloaded.scales[e][p][i] = reinterpret_cast<const Bf16*>(
              a.scales)[static_cast<std::size_t>(group) * a.ending.outputs + output];
        });
      }
    }
  }
  /// Of outputs o … o + 3.
  __device__ __forceinline__ float4 output_scales(int o) const {
    return *reinterpret_cast<const float4*>(a.scales + static_cast<std::size_t>(o) * 4);
  }
  __device__ __forceinline__ static uint4 operand(const uint4 (&codes)[kVectors], int o,
                                                  const Preloaded& preloaded, int tile, int p) {
    const uint4 vector = codes[o / Codes::kOperands];
    if constexpr (Codes::kGroupScales) {
      return Codes::operand(vector, o % Codes::kOperands,
                            preloaded.scales[tile][p][o * 32 / kStripScaleInputs]);
    } else {
      return Codes::operand(vector, o % Codes::kOperands);
    }
  }
  /// Waits for the weights of this tile and the next, if the block has these outputs.
  __device__ __forceinline__ void wait_for_weights(int tile) const {
    if (tile * 8 < outputs) ptx::mbarrier_wait(full + static_cast<ptx::SharedAddress>(tile / 2 * 8), 0);
  }
  __device__ __forceinline__ uint4 weights_of(int tile, int p, int vector, const Addresses& at) const {
    const ptx::SharedAddress from = p == 0 ? at.weights[tile] : at.weights[tile] + at.slice[p];
    return ptx::load_shared_16(from + static_cast<ptx::SharedAddress>(vector * 64));
  }

  struct Sums {
    float of[kRowSets][kTiles][2];  ///< of rows 2 t and 2 t + 1 of the set, t < 2
  };
  /// Branches only at the barrier, so that all loads are issued before the first result is needed.
  template <int kCount>
  __device__ __forceinline__ void multiply_tiles(Sums& sums, int first, X& x, const Loaded& loaded,
                                                 const Addresses& at, const Preloaded& preloaded) const {
    if (first >= kPreloadedTiles) wait_for_weights(first);
    uint4 w[kCount][kSlices][kVectors];
    for_each_of_slices<kVectors>([&](int p, int v) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        if (first + e >= kPreloadedTiles) w[e][p][v] = weights_of(first + e, p, v, at);
      }
    });
    if (first == 0)
      for_each_of_slices<kOperands>([&](int p, int o) { distribute(x, p, o, loaded.words[p][o]); });
    float d[kRowSets][kCount][2][4] = {};
    for_each_of_slices<kOperands>([&](int p, int o) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const uint4 v = first + e < kPreloadedTiles ? preloaded.of[first + e][p][o]
                                                    : operand(w[e][p], o, preloaded, first + e, p);
#pragma unroll
        for (int set = 0; set < kRowSets; ++set) {
          ptx::mma<Bf16>(d[set][e][o % 2], v.x, v.y, v.z, v.w, x.of[set][p][o][0], x.of[set][p][o][1]);
        }
      }
    });
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
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
  __device__ __forceinline__ void multiply(Sums& sums, const Loaded& loaded, const Addresses& at,
                                           const Preloaded& preloaded) const {
    X x;
#pragma unroll
    for (int first = 0; first + 1 < kTiles; first += 2)
      multiply_tiles<2>(sums, first, x, loaded, at, preloaded);
    if constexpr (kTiles % 2 != 0) multiply_tiles<1>(sums, kTiles - 1, x, loaded, at, preloaded);
  }

  /// Of a warp's sum in the array (warp, row of x, output).
  __device__ __forceinline__ ptx::SharedAddress address_of_sum(int of_warp, int n, int m) const {
    return ptx::shared_address(shared + a.sums_offset) +
           static_cast<ptx::SharedAddress>(((of_warp * a.rows + n) * (a.outputs + 4) + m) * 4);
  }
  __device__ __forceinline__ void store_sums(const Sums& sums, const Addresses& at) const {
    if (a.sums_overwrite_weights) __syncthreads();
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool mine = t < 2 && set * 4 + 2 * t + c < a.rows;
#pragma unroll
        for (int e = 0; e < kTiles; ++e) {
          if (mine && e * 8 + g < outputs)
            ptx::store_shared(at.sums[set][c] + static_cast<ptx::SharedAddress>(e * 32), sums.of[set][e][c]);
        }
      }
    }
    __syncthreads();
  }
  /// Adds up the warps' sums of four outputs, `offset` after the first that this thread finishes.
  __device__ __forceinline__ float4 total(const Addresses& at, int offset) const {
    const ptx::SharedAddress from = at.totals + static_cast<ptx::SharedAddress>(offset * 4);
    float4 y = ptx::load_shared_float4(from);
#pragma unroll
    for (unsigned w = 1; w < kWarps; ++w) {
      const float4 more = ptx::load_shared_float4(from + w * at.totals_pitch);
      y = make_float4(y.x + more.x, y.y + more.y, y.z + more.z, y.w + more.w);
    }
    return y;
  }
};

}  // namespace troupe::kernels::cuda::strips
