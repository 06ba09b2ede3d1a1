#pragma once
// How a matrix product is cut into pieces for the threads.
//
// A piece is a block of rows times one panel (or two that belong together). A few rows are one block, so
// every panel is read once, from front to back; many rows are cut so that a block's operands stay in
// the L2 cache while panels pass. How it is cut changes no sum: see tile.h.
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

/// Rows [first, last) of the operands times the Panels panels at `panel`. Calls epilogue(first_row, rows,
/// sums) for every few rows, with sums[p][r] being the 32 outputs of panel p for row first_row + r. `more`:
/// the panels behind these are what the thread multiplies next.
template <int Panels, class Epilogue>
void multiply(const Routines& r, const Matrix& weight, const Operands& in, int first, int last,
              const std::byte* panel, bool more, Epilogue&& epilogue) {
  alignas(64) float sums[Panels][kMostTileRows][kPanel];
  const auto tile = r.tile[static_cast<int>(weight.dtype)];
  const std::size_t bytes_of_panel = panel_bytes(weight.dtype, weight.inputs);
  const int tiles = (last - first + r.tile_rows - 1) / r.tile_rows;
  for (int t = 0; t < tiles; ++t) {  // as even as they go
    const int from = first + (last - first) * t / tiles;
    const int count = first + (last - first) * (t + 1) / tiles - from;
    for (int p = 0; p < Panels; ++p) {
      const std::byte* at = panel + std::size_t(p) * bytes_of_panel;
      // The only pass over a panel runs ahead of itself; the last of several fetches the next piece's.
      const bool next = tiles > 1 && t + 1 == tiles && more;
      const std::byte* ahead = at + (next ? Panels * bytes_of_panel : t == 0 ? kPrefetchBytes : 0);
      tile({.x = in.row(from),
            .ldx = in.ld,
            .panel = at,
            .inputs = weight.inputs,
            .rows = count,
            .c = sums[p][0],
            .ldc = kPanel,
            .accumulate = false,
            .ahead = ahead});
    }
    epilogue(from, count, sums);
  }
}

/// Calls epilogue(first_row, rows, piece, sums) for every piece and every few rows of it, with sums[p][r]
/// being the 32 outputs of panel piece * Panels + p for row first_row + r.
template <int Panels, class Epilogue>
void linear(Cpu& device, const Matrix& weight, const void* x, int rows, Epilogue&& epilogue) {
  if (rows == 0) return;
  const Routines& r = routines(device.isa());
  const Operands in = operands(device, x, weight.dtype, rows, weight.inputs);
  const std::size_t bytes_of_piece = Panels * panel_bytes(weight.dtype, weight.inputs);
  const Cut c = cut(weight, rows, Panels, r.tile_rows, device.pool().threads());
  device.pool().for_each(c.blocks * c.pieces, c.chunk, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const int piece = item % c.pieces;
      const int first = item / c.pieces * c.row_block;
      const auto* panel = static_cast<const std::byte*>(weight.data) + std::size_t(piece) * bytes_of_piece;
      multiply<Panels>(r, weight, in, first, std::min(rows, first + c.row_block), panel, item + 1 < end,
                       [&](int from, int count, const float(*sums)[kMostTileRows][kPanel]) {
                         epilogue(from, count, piece, sums);
                       });
    }
  });
}

}  // namespace troupe::kernels
