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
#include "kernels/cpu/quantiser.h"
#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// How the tile of a matrix takes a row of x: as it is stored, expanded to floats, or quantised. A quantised
/// row has its codes first and then an OperandGroup for each kDotInputs of them.
class OperandFormat {
 public:
  OperandFormat(const Routines& r, const Matrix& weight);

  std::size_t element() const { return element_; }
  std::size_t width() const { return width_; }
  /// Bytes of a row's elements.
  std::size_t row_bytes() const { return width_ * element_; }
  /// Bytes from a row to the next at which rows do not evict each other from the L1 cache.
  std::size_t pitch() const;
  /// True if rows may be used where they are.
  bool in_place() const { return native_; }
  /// Converts elements [column, column + count) of a row from the activations' dtype. Both are multiples of
  /// kPanel.
  void convert(void* row, const void* from, std::size_t column, std::size_t count) const;

 private:
  const Routines& r_;
  const WeightFormat format_;
  const bool native_;
  const std::size_t element_;
  const std::size_t width_;  // padded(inputs)
};

/// Rows of x as the tile takes them.
struct Operands {
  const void* data = nullptr;
  std::size_t ld = 0;  ///< elements between rows
  std::size_t element = 0;

  const void* row(int r) const {
    return static_cast<const std::byte*>(data) + static_cast<std::size_t>(r) * ld * element;
  }
};

/// The operands of one product for every thread: x itself, or copies of it, converted and at a better pitch.
///
/// Many rows are copied once, by all threads together, into the device's scratch memory. Of a few rows each
/// thread makes a copy of its own in its lane when it asks for them first. No thread then waits for the
/// copy of another, and what other threads wrote comes from their caches in one go, where a tile would wait
/// for each line in turn.
class SharedOperands {
 public:
  SharedOperands(Cpu& device, const Matrix& weight, const void* x, int rows);

  /// For thread `lane` of the pool, which calls it.
  Operands of(int lane);

 private:
  static constexpr int kMostLanes = 64;

  void convert(std::byte* to, int begin, int end) const;

  Cpu& device_;
  const OperandFormat format_;
  const void* const x_;
  const int rows_;
  const std::size_t x_bytes_;  // of a row
  std::size_t pitch_;
  const void* shared_ = nullptr;  // null: each thread has a copy of its own
  bool copied_[kMostLanes] = {};
};

/// The inner loop for a matrix.
struct Tile {
  void (*run)(const TileArgs&) = nullptr;
  TileRows rows{};
  NearBytes near = near_bytes(cpu_features().intel);

  /// How far ahead of its place in a panel it asks for memory when it is the first to read the panel.
  std::size_t bytes_ahead(int x_rows) const {
    if (x_rows > rows.near) return kFarBytes;
    return x_rows == 1 ? near.alone : near.few;
  }
};
Tile tile_of(const Routines& r, const WeightFormat& format);

/// Rows of `row_bytes` that stay in a cache while panels pass; whole tiles.
int rows_of_a_block(std::size_t row_bytes, int tile_rows);

struct Cut {
  int row_block = 0;
  int blocks = 0;
  int pieces = 0;
  int chunk = 0;  ///< pieces a thread claims at once
};

Cut cut(const Routines& r, const Matrix& weight, int rows, int panels_per_piece, int threads);

inline constexpr int kMostTileRows = 32;
/// Tiles of rows that share a chunk of a panel while it is in the L1 cache.
inline constexpr int kMostTilesPerGroup = 4;
inline constexpr std::size_t kChunkBytes = std::size_t{12} << 10;

/// What a few rows times a few panels give.
class TileSums {
 public:
  TileSums(const float* first, int panel_rows)
      : first_(first), panel_rows_(static_cast<std::size_t>(panel_rows)) {}
  /// The 32 outputs of a panel for a row.
  const float* operator()(int panel, int row) const {
    return first_ + (static_cast<std::size_t>(panel) * panel_rows_ + static_cast<std::size_t>(row)) * kPanel;
  }

 private:
  const float* first_;
  std::size_t panel_rows_;  // from a panel to the next
};

/// How rows [first, last) are cut into calls of a tile.
class TileCut {
 public:
  TileCut(int first, int last, const TileRows& rows)
      : first_(first),
        rows_(last - first),
        tiles_((rows_ + rows.most - 1) / rows.most),
        equal_(rows.equal && tiles_ > 0 ? (rows_ + tiles_ - 1) / tiles_ : 0) {}

  int tiles() const { return tiles_; }
  /// The first row that call t multiplies, and how many.
  int row(int t) const { return first_ + (equal_ > 0 ? std::min(t * equal_, rows_ - equal_) : even(t)); }
  int rows(int t) const { return equal_ > 0 ? equal_ : even(t + 1) - even(t); }
  /// How many of them the call before has multiplied as well.
  int repeated(int t) const { return equal_ > 0 ? first_ + t * equal_ - row(t) : 0; }

 private:
  int even(int t) const { return rows_ * t / tiles_; }  // as even as they go

  int first_, rows_, tiles_;
  int equal_;  // rows of every call; 0: as even as they go
};

/// Rows [first, last) of the operands times the Panels panels from `panel` on. Calls epilogue(first_row,
/// rows, sums) for every few rows, with sums(p, r) being the 32 outputs of panel p for row first_row + r.
///
/// A single tile of rows reads each panel from front to back. Several tiles take a panel in chunks: all tiles
/// of a group multiply a chunk before the next one, and each prefetches its share of the next chunk. Chunks
/// and panels follow each other in memory, so the prefetch runs across panels and claims.
template <int Panels, class Epilogue>
void multiply(const Routines& r, const Matrix& weight, const Operands& in, int first, int last, int panel,
              Epilogue&& epilogue) {
  alignas(64) float sums[kMostTilesPerGroup * Panels * kMostTileRows * kPanel];
  alignas(64) std::uint8_t windows[kChunkBytes + kWint2Unit * kPanel];  // a chunk of wint2, decoded
  const bool quantised = weight.format.quantised(), wint2 = weight.format.kind == WeightKind::wint2;
  const Tile tile = tile_of(r, weight.format);
  const std::size_t bytes_of_panel = panel_bytes(weight.format, weight.inputs);
  const std::size_t bytes_of_input = input_bytes(weight.format);
  const int width = padded(weight.inputs);
  const int inputs = quantised ? width : weight.inputs;
  // Chunks begin at a scale's first input, and where tiles have their steps of 32 inputs without chunks too.
  const int unit = wint2 ? kWint2Unit : std::max(kDotInputs, weight.format.group);
  const int per_chunk = static_cast<int>(kChunkBytes / (wint2 ? kPanel : bytes_of_input));
  const TileCut cut(first, last, tile.rows);
  const int tiles = cut.tiles();
  const auto sums_of = [&](int i, int p) { return sums + (i * Panels + p) * tile.rows.most * kPanel; };
  const int groups = (tiles + kMostTilesPerGroup - 1) / kMostTilesPerGroup;
  for (int g = 0; g < groups; ++g) {
    const int first_tile = tiles * g / groups, group = tiles * (g + 1) / groups - first_tile;
    const int chunks = group == 1 ? 1 : (inputs + per_chunk - 1) / per_chunk;
    for (int p = 0; p < Panels; ++p) {
      const std::byte* from =
          static_cast<const std::byte*>(weight.data) + static_cast<std::size_t>(panel + p) * bytes_of_panel;
      for (int c = 0; c < chunks; ++c) {
        const int k = inputs * c / chunks / unit * unit;
        const int count = (c + 1 == chunks ? inputs : inputs * (c + 1) / chunks / unit * unit) - k;
        const std::byte* at = from + std::size_t(k) * bytes_of_input;
        const std::size_t bytes = std::size_t(count) * bytes_of_input;
        const PanelScales scales =
            quantised ? panel_scales(weight, panel + p, k, c + 1 == chunks) : PanelScales{};
        // Tiles that share a chunk share its windows too.
        const bool decoded = wint2 && group > 1;
        if (decoded) r.wint2_windows(windows, reinterpret_cast<const std::uint8_t*>(at), scales.lines, count);
        for (int i = 0; i < group; ++i) {
          const int row = cut.row(first_tile + i), tile_rows = cut.rows(first_tile + i);
          const auto* x = static_cast<const std::byte*>(in.row(row));
          (decoded ? r.tile_wint2_windows : tile.run)(
              {.x = x + std::size_t(k) * in.element,
               .ldx = in.ld,
               .x_groups =
                   quantised ? reinterpret_cast<const OperandGroup*>(x + width) + k / kDotInputs : nullptr,
               .panel = decoded ? static_cast<const void*>(windows) : at,
               .scales = scales.scales,
               .group = weight.format.group,
               .lines = scales.lines,
               .group_scales = scales.groups,
               .inputs = count,
               .rows = tile_rows,
               .c = sums_of(i, p),
               .ldc = kPanel,
               .accumulate = c > 0,
               .ahead = at + (group == 1 ? tile.bytes_ahead(tile_rows)
                                         : bytes + bytes / std::size_t(group) * std::size_t(i)),
               .ahead_calls = decoded ? 4 * group : group});  // windows are 4 times as large
        }
      }
    }
    for (int i = 0; i < group; ++i) {
      const int t = first_tile + i, repeated = cut.repeated(t);
      epilogue(cut.row(t) + repeated, cut.rows(t) - repeated,
               TileSums(sums_of(i, 0) + repeated * kPanel, tile.rows.most));
    }
  }
}

/// Calls epilogue(first_row, rows, piece, sums) for every piece and every few rows of it, with sums(p, r)
/// being the 32 outputs of panel piece * Panels + p for row first_row + r.
template <int Panels, class Epilogue>
void linear(Cpu& device, const Matrix& weight, const void* x, int rows, Epilogue&& epilogue) {
  if (rows == 0) return;
  const Routines& r = routines(device.isa());
  SharedOperands operands(device, weight, x, rows);
  const Cut c = cut(r, weight, rows, Panels, device.pool().threads());
  device.pool().for_each(c.blocks * c.pieces, c.chunk, [&](int begin, int end, int lane) {
    const TileUse tiles(r);
    const Operands in = operands.of(lane);
    for (int item = begin; item < end; ++item) {
      const int piece = item % c.pieces;
      const int first = item / c.pieces * c.row_block;
      multiply<Panels>(
          r, weight, in, first, std::min(rows, first + c.row_block), piece * Panels,
          [&](int from, int count, const TileSums& sums) { epilogue(from, count, piece, sums); });
    }
  });
}

}  // namespace troupe::kernels
