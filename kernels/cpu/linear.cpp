#include "kernels/cpu/linear.h"

#include <cstring>

#include "base/check.h"

namespace troupe::kernels {
namespace {

constexpr std::size_t kRowBlockBytes = std::size_t{384} << 10;  // a good part of an L2 cache
constexpr std::size_t kClaimBytes = std::size_t{64} << 10;      // a few microseconds of memory traffic
constexpr int kClaimPieces = 4;
constexpr int kClaimsPerThread = 8;
// Rows a power of two apart fall on the same few sets of the L1 cache and evict each other: many rows are
// copied to a pitch that is an odd number of cache lines.
constexpr int kRowsInPlace = 4;
constexpr std::size_t kCacheLine = 64;
constexpr int kRowsPerClaim = 16;

constexpr int kLeastTilesOfABlock = 4, kRowsOfLeastTiles = 64;

TileRows far(TileRows rows) {
  rows.near = 0;
  return rows;
}

}  // namespace

OperandFormat::OperandFormat(const Routines& r, const Matrix& weight)
    : r_(r),
      format_(weight.format),
      native_(!format_.quantised() && r.native[static_cast<int>(format_.activations)]),
      element_(format_.quantised() ? 1
               : native_           ? size_of(format_.activations)
                                   : sizeof(float)),
      width_(static_cast<std::size_t>(padded(weight.inputs))) {}

std::size_t OperandFormat::pitch() const {
  std::size_t bytes = row_bytes();
  if (format_.quantised()) bytes += width_ / kDotInputs * sizeof(OperandGroup);
  return ((bytes + kCacheLine - 1) / kCacheLine | 1) * kCacheLine;
}

void OperandFormat::convert(void* row, const void* from, std::size_t column, std::size_t count) const {
  auto* to = static_cast<std::byte*>(row) + column * element_;
  const auto dtype = static_cast<int>(format_.activations);
  if (format_.quantised()) {
    auto* groups = reinterpret_cast<OperandGroup*>(static_cast<std::byte*>(row) + width_);
    r_.quantise[dtype]({.codes = reinterpret_cast<std::int8_t*>(to),
                        .groups = groups + column / kDotInputs,
                        .x = from,
                        .count = static_cast<int>(count),
                        .offset = code_offset(format_.kind)});
  } else if (native_) {
    std::memcpy(to, from, count * element_);
  } else {
    r_.expand[dtype](reinterpret_cast<float*>(to), from, count);
  }
}

SharedOperands::SharedOperands(Cpu& device, const Matrix& weight, const void* x, int rows)
    : device_(device),
      format_(routines(device.isa()), weight),
      x_(x),
      rows_(rows),
      x_bytes_(format_.width() * size_of(weight.activations())),
      pitch_(format_.pitch()) {
  if (format_.in_place() && rows <= kRowsInPlace) {
    pitch_ = x_bytes_;
    shared_ = x;
    return;
  }
  const std::size_t bytes = static_cast<std::size_t>(rows) * pitch_;
  if (rows <= kRowsPerClaim && device.pool().threads() <= kMostLanes) {
    device.reserve_lanes(bytes);
    return;
  }
  auto* together = static_cast<std::byte*>(device.scratch(bytes));
  device.pool().for_each(rows, kRowsPerClaim,
                         [&](int begin, int end, int) { convert(together, begin, end); });
  shared_ = together;
}

void SharedOperands::convert(std::byte* to, int begin, int end) const {
  for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
    format_.convert(to + row * pitch_, static_cast<const std::byte*>(x_) + row * x_bytes_, 0,
                    format_.width());
  }
}

Operands SharedOperands::of(int lane) {
  const void* data = shared_;
  if (data == nullptr) {
    auto* own = static_cast<std::byte*>(device_.lane(lane));
    if (!copied_[lane]) convert(own, 0, rows_);
    copied_[lane] = true;
    data = own;
  }
  return {data, pitch_ / format_.element(), format_.element()};
}

Tile tile_of(const Routines& r, const WeightFormat& format) {
  switch (format.kind) {
    case WeightKind::int8: return {r.tile_int8, r.dot_rows};
    case WeightKind::int4: return {format.group == 0 ? r.tile_int4 : r.tile_int4_groups, far(r.dot_rows)};
    case WeightKind::wint2: return {r.tile_wint2, far(r.dot_rows)};
    default: break;
  }
  TROUPE_CHECK(!format.quantised());
  const auto dtype = static_cast<int>(format.activations);
  return {r.tile[dtype], r.tile_rows[dtype]};
}

int rows_of_a_block(std::size_t row_bytes, int tile_rows) {
  const int least = std::min(kLeastTilesOfABlock, kRowsOfLeastTiles / tile_rows);
  return std::max(least, static_cast<int>(kRowBlockBytes / row_bytes) / tile_rows) * tile_rows;
}

Cut cut(const Routines& r, const Matrix& weight, int rows, int panels_per_piece, int threads) {
  Cut c;
  c.pieces = padded(weight.outputs) / kPanel / panels_per_piece;
  const int tile_rows = tile_of(r, weight.format).rows.most;
  const std::size_t row_bytes = static_cast<std::size_t>(padded(weight.inputs)) *
                                (weight.format.quantised() ? 1 : size_of(weight.activations()));
  const int fitting = rows_of_a_block(row_bytes, tile_rows);
  const int wanted = (rows + fitting - 1) / fitting;
  c.row_block = ((rows + wanted - 1) / wanted + tile_rows - 1) / tile_rows * tile_rows;
  c.blocks = (rows + c.row_block - 1) / c.row_block;
  // Neighbouring pieces stay on one thread, which then fetches ahead; but not so many that one thread ends
  // late.
  const std::size_t piece_bytes =
      static_cast<std::size_t>(panels_per_piece) * panel_bytes(weight.format, weight.inputs);
  const int by_bytes =
      std::max(static_cast<int>(kClaimBytes / piece_bytes), rows > tile_rows ? kClaimPieces : 1);
  const int by_balance = c.blocks * c.pieces / (threads * kClaimsPerThread);
  c.chunk = std::max(1, std::min(by_bytes, by_balance));
  return c;
}

}  // namespace troupe::kernels
