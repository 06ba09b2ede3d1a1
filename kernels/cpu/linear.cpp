#include "kernels/cpu/linear.h"

#include <cstring>

namespace troupe::kernels {
namespace {

constexpr std::size_t kRowBlockBytes = std::size_t{384} << 10;  // a good part of an L2 cache
constexpr std::size_t kClaimBytes = std::size_t{64} << 10;      // a few microseconds of memory traffic
constexpr int kClaimPieces = 4;
constexpr int kClaimsPerThread = 8;
// Rows a power of two apart fall on the same few sets of the L1 cache and evict each other: many rows are
// copied to a stride that is an odd number of cache lines.
constexpr int kRowsInPlace = 4;
constexpr std::size_t kSkewBytes = 64;
constexpr int kRowsPerClaim = 16;

}  // namespace

Operands operands(Cpu& device, const void* x, DType dtype, int rows, int inputs) {
  const Routines& r = routines(device.isa());
  const bool native = r.native[static_cast<int>(dtype)];
  const auto width = static_cast<std::size_t>(padded(inputs));
  if (native && rows <= kRowsInPlace) return {x, width, size_of(dtype)};
  const std::size_t element = native ? size_of(dtype) : sizeof(float);
  const std::size_t ld = width + kSkewBytes / element;
  auto* to = static_cast<std::byte*>(device.scratch(static_cast<std::size_t>(rows) * ld * element));
  device.pool().for_each(rows, kRowsPerClaim, [&](int begin, int end, int) {
    for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
      const std::byte* from = static_cast<const std::byte*>(x) + row * width * size_of(dtype);
      std::byte* at = to + row * ld * element;
      if (native) {
        std::memcpy(at, from, width * element);
      } else {
        r.expand[static_cast<int>(dtype)](reinterpret_cast<float*>(at), from, width);
      }
    }
  });
  return {to, ld, element};
}

int rows_of_a_block(std::size_t row_bytes, int tile_rows) {
  return std::max(4, static_cast<int>(kRowBlockBytes / row_bytes) / tile_rows) * tile_rows;
}

Cut cut(const Matrix& weight, int rows, int panels_per_piece, int tile_rows, int threads) {
  Cut c;
  c.pieces = padded(weight.outputs) / kPanel / panels_per_piece;
  const std::size_t row_bytes = static_cast<std::size_t>(padded(weight.inputs)) * size_of(weight.activations());
  const int fitting = rows_of_a_block(row_bytes, tile_rows);
  const int wanted = (rows + fitting - 1) / fitting;
  c.row_block = ((rows + wanted - 1) / wanted + tile_rows - 1) / tile_rows * tile_rows;
  c.blocks = (rows + c.row_block - 1) / c.row_block;
  // Neighbouring pieces stay on one thread, which then fetches ahead; but not so many that one thread ends
  // late.
  const std::size_t piece_bytes =
      static_cast<std::size_t>(panels_per_piece) * panel_bytes(weight.activations(), weight.inputs);
  const int by_bytes =
      std::max(static_cast<int>(kClaimBytes / piece_bytes), rows > tile_rows ? kClaimPieces : 1);
  const int by_balance = c.blocks * c.pieces / (threads * kClaimsPerThread);
  c.chunk = std::max(1, std::min(by_bytes, by_balance));
  return c;
}

}  // namespace troupe::kernels
