#include "kernels/cpu/linear.h"

namespace troupe::kernels {
namespace {

constexpr std::size_t kRowBlockBytes = std::size_t{384} << 10;  // a good part of an L2 cache
constexpr std::size_t kClaimBytes = std::size_t{64} << 10;      // a few microseconds of memory traffic
constexpr int kClaimPieces = 4;
constexpr int kClaimsPerThread = 8;
constexpr int kRowsInParallel = 8;

}  // namespace

Operands operands(Cpu& device, const void* x, DType dtype, int rows, int inputs) {
  const Routines& r = routines(device.isa());
  const auto ld = static_cast<std::size_t>(padded(inputs));
  if (r.native[static_cast<int>(dtype)]) return {x, ld, size_of(dtype)};
  auto* floats = static_cast<float*>(device.scratch(static_cast<std::size_t>(rows) * ld * sizeof(float)));
  device.pool().for_each(rows, kRowsInParallel, [&](int begin, int end, int) {
    const std::size_t at = static_cast<std::size_t>(begin) * ld;
    r.expand[static_cast<int>(dtype)](floats + at, static_cast<const std::byte*>(x) + at * size_of(dtype),
                                      static_cast<std::size_t>(end - begin) * ld);
  });
  return {floats, ld, sizeof(float)};
}

Cut cut(const Matrix& weight, int rows, int panels_per_piece, int tile_rows, int threads) {
  Cut c;
  c.pieces = padded(weight.outputs) / kPanel / panels_per_piece;
  const std::size_t row_bytes = static_cast<std::size_t>(padded(weight.inputs)) * size_of(weight.dtype);
  const int fitting = std::max(4, static_cast<int>(kRowBlockBytes / row_bytes) / tile_rows) * tile_rows;
  const int wanted = (rows + fitting - 1) / fitting;
  c.row_block = ((rows + wanted - 1) / wanted + tile_rows - 1) / tile_rows * tile_rows;
  c.blocks = (rows + c.row_block - 1) / c.row_block;
  // Neighbouring pieces stay on one thread, which then fetches ahead; but not so many that one thread ends
  // late.
  const std::size_t piece_bytes = matrix_bytes(weight.dtype, kPanel * panels_per_piece, weight.inputs);
  const int by_bytes =
      std::max(static_cast<int>(kClaimBytes / piece_bytes), rows > tile_rows ? kClaimPieces : 1);
  const int by_balance = c.blocks * c.pieces / (threads * kClaimsPerThread);
  c.chunk = std::max(1, std::min(by_bytes, by_balance));
  return c;
}

}  // namespace troupe::kernels
