#pragma once
// What a streaming product's kernel is given, its tile, and the walk around its ring. See stream_block.cuh.
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/stream.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::streaming {

struct StreamArgs {
  const char* weight = nullptr;
  const char* x = nullptr;
  const float* x_scales = nullptr;  ///< fp8: a float for each row of x and each box of it
  std::size_t row_bytes = 0;        ///< of weight
  std::size_t x_row_bytes = 0;
  std::size_t scales_at = 0;  ///< bytes from a group's weight to its scales
  std::size_t groups_at = 0;  ///< to its first line of group scales
  int chunks = 0;             ///< of a row of weight
  int rows = 0;
  int boxes = 0;        ///< of weights, of a stage
  int scale_group = 0;  ///< scale_line_inputs()
  int block_boxes = 0;  ///< of a block's inputs, at most
  int stages = 0;
  int cluster = 1;
  int shared_bytes = 0;
  int first_blocks = 0;  ///< that may start before the previous kernel has ended
  int known_tiles = 0;   ///< tiles of rows of the groups whose rows are known
  Groups groups{};
  EndingArgs ending{};
};

template <class Element, class Codes_, int kM_, int kN_, int kWarpsM_, int kWarpsN_>
struct StreamTile {
  using T = Element;
  using Codes = Codes_;
  using Operand = std::conditional_t<Codes::kBlockScales, __nv_fp8_e4m3, T>;  ///< of an instruction
  using Finish = Four<T>;  ///< what finishes four outputs of a row
  static constexpr int kM = kM_, kN = kN_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;  ///< warps that multiply
  static constexpr int kWarps = kWarpsM * kWarpsN;
  static constexpr bool kWholeX = kN == 8;
  static constexpr int kRingN = kWholeX ? 0 : kN;
  static constexpr int kThreads = (kWarps + 1) * 32;
  /// Blocks that a multiprocessor's registers have to hold; 0: what the compiler finds best. Of 64 rows and
  /// scales of groups it would find one.
  static constexpr int kBlocks = kN == 64 && !Codes::kBlockScales ? 2 : 0;
  static constexpr int kTilesM = kM / kWarpsM / 16, kTilesN = kN / kWarpsN / 8;
  /// Independent sums of a tile, because an instruction takes 30 cycles.
  static constexpr int kChains = kTilesM * kTilesN == 1 ? 4 : 1;
};

/// A lane's sums, in independent chains.
template <class Tile>
struct StreamSums {
  float of[Tile::kChains][Tile::kTilesM][Tile::kTilesN][4] = {};

  __device__ __forceinline__ float total(int i, int j, int c) const {
    if constexpr (Tile::kChains == 1) {
      return of[0][i][j][c];
    } else {
      return (of[0][i][j][c] + of[1][i][j][c]) + (of[2][i][j][c] + of[3][i][j][c]);
    }
  }
};

/// Where a lane stores its sums, for each tile of outputs: in a cluster the inbox of the block that finishes
/// them, indexed by sender, row of x and output; otherwise over the ring.
template <class Tile>
struct SumsPlace {
  ptx::SharedAddress sums[Tile::kTilesM];
  ptx::SharedAddress barrier[Tile::kTilesM];
};

/// wint2: the lines of a lane's outputs.
template <class Tile, bool = Tile::Codes::kLines>
struct StreamLines {};
template <class Tile>
struct StreamLines<Tile, true> {
  typename Tile::Codes::Line of[Tile::kTilesM][2];
};

/// Addresses of a lane's operand in a box: chunk t of its row, and chunk t + 4. wint2: the first 8 of its 16
/// bytes of each half of the row; the others lie 32 bytes further, or before where the swizzle turns them.
struct Halves {
  ptx::SharedAddress at[2];
  __device__ __forceinline__ Halves operator+(ptx::SharedAddress bytes) const {
    return {at[0] + bytes, at[1] + bytes};
  }
};
struct StreamOperands {
  Halves w, x;
};

/// Position in the ring, for a warp that fills or empties it.
struct Turn {
  int stages;
  std::uint32_t parity;
  int stage = 0;
  __device__ __forceinline__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace troupe::kernels::cuda::streaming
