#pragma once
// How a matrix product is cut into pieces for the threads.
//
// A piece is a block of rows times one panel (or two that belong together). A few rows are one block, so
// every panel is read once, from front to back; many rows are cut so that a block's operands stay in
// the L2 cache while panels pass. The cut does not change the bits of any sum: see tile.h.
#include <algorithm>
#include <cstddef>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// Rows of x as the tile takes them.
struct Operands {
  const void* data = nullptr;
  std::size_t ld = 0;  ///< elements between rows
  std::size_t element = 0;

  const void* row(int r) const {
    return static_cast<const std::byte*>(data) + static_cast<std::size_t>(r) * ld * element;
  }
};

/// x itself, or a copy in the device's scratch memory: expanded to floats, or at a better stride.
Operands operands(Cpu& device, const void* x, DType dtype, int rows, int inputs);

/// Rows of `row_bytes` that stay in a cache while panels pass; whole tiles.
int rows_of_a_block(std::size_t row_bytes, int tile_rows);

struct Cut {
  int row_block = 0;
  int blocks = 0;
  int pieces = 0;
  int chunk = 0;  ///< pieces a thread claims at once
};

Cut cut(const Matrix& weight, int rows, int panels_per_piece, int tile_rows, int threads);

inline constexpr int kMostTileRows = 12;
/// Tiles of rows that share a chunk of a panel while it is in the L1 cache.
inline constexpr int kMostTilesPerGroup = 4;
inline constexpr int kChunkInputs = 192;

/// Rows [first, last) of the operands times the Panels panels at `panel`. Calls epilogue(first_row, rows,
/// sums) for every few rows, with sums[p][r] being the 32 outputs of panel p for row first_row + r.
///
/// A single tile of rows reads each panel from front to back. Several tiles take a panel in chunks: all tiles
/// of a group multiply a chunk before the next one, and each prefetches its share of the next chunk. Chunks and
/// panels follow each other in memory, so the prefetch runs across panels and claims.
template <int Panels, class Epilogue>
void multiply(const Routines& r, const Matrix& weight, const Operands& in, int first, int last,
              const std::byte* panel, Epilogue&& epilogue) {
  alignas(64) float sums[kMostTilesPerGroup][Panels][kMostTileRows][kPanel];
  const auto tile = r.tile[static_cast<int>(weight.activations())];
  const std::size_t bytes_of_panel = panel_bytes(weight.activations(), weight.inputs);
  const std::size_t bytes_of_input = kPanel * size_of(weight.activations());
  const int tiles = (last - first + r.tile_rows - 1) / r.tile_rows;
  const auto first_row = [&](int t) { return first + (last - first) * t / tiles; };  // as even as they go
  const int groups = (tiles + kMostTilesPerGroup - 1) / kMostTilesPerGroup;
  for (int g = 0; g < groups; ++g) {
    const int first_tile = tiles * g / groups, group = tiles * (g + 1) / groups - first_tile;
    const int chunks = group == 1 ? 1 : (weight.inputs + kChunkInputs - 1) / kChunkInputs;
    for (int p = 0; p < Panels; ++p) {
      const std::byte* from = panel + std::size_t(p) * bytes_of_panel;
      for (int c = 0; c < chunks; ++c) {
        const int k = weight.inputs * c / chunks & ~1;  // bf16 inputs come in pairs
        const int inputs = (c + 1 == chunks ? weight.inputs : weight.inputs * (c + 1) / chunks & ~1) - k;
        const std::byte* at = from + std::size_t(k) * bytes_of_input;
        const std::size_t bytes = std::size_t(inputs) * bytes_of_input;
        for (int i = 0; i < group; ++i) {
          const int row = first_row(first_tile + i);
          tile({.x = static_cast<const std::byte*>(in.row(row)) + std::size_t(k) * in.element,
                .ldx = in.ld,
                .panel = at,
                .inputs = inputs,
                .rows = first_row(first_tile + i + 1) - row,
                .c = sums[i][p][0],
                .ldc = kPanel,
                .accumulate = c > 0,
                .ahead = at + (group == 1 ? kPrefetchBytes : bytes + bytes / std::size_t(group) * std::size_t(i)),
                .ahead_calls = group});
        }
      }
    }
    for (int i = 0; i < group; ++i) {
      const int row = first_row(first_tile + i);
      epilogue(row, first_row(first_tile + i + 1) - row, sums[i]);
    }
  }
}

/// Calls epilogue(first_row, rows, piece, sums) for every piece and every few rows of it, with sums[p][r]
/// being the 32 outputs of panel piece * Panels + p for row first_row + r.
template <int Panels, class Epilogue>
void linear(Cpu& device, const Matrix& weight, const void* x, int rows, Epilogue&& epilogue) {
  if (rows == 0) return;
  const Routines& r = routines(device.isa());
  const Operands in = operands(device, x, weight.activations(), rows, weight.inputs);
  const std::size_t bytes_of_piece = Panels * panel_bytes(weight.activations(), weight.inputs);
  const Cut c = cut(weight, rows, Panels, r.tile_rows, device.pool().threads());
  device.pool().for_each(c.blocks * c.pieces, c.chunk, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const int piece = item % c.pieces;
      const int first = item / c.pieces * c.row_block;
      const auto* panel = static_cast<const std::byte*>(weight.data) + std::size_t(piece) * bytes_of_piece;
      multiply<Panels>(r, weight, in, first, std::min(rows, first + c.row_block), panel,
                       [&](int from, int count, const float(*sums)[kMostTileRows][kPanel]) {
                         epilogue(from, count, piece, sums);
                       });
    }
  });
}

}  // namespace troupe::kernels
