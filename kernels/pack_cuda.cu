#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/pack.h"

namespace troupe::kernels {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = 8;
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

struct PackArgs {
  void* into;
  const void* source;  // lines × length, dense
  int first_line, lines, length;
  bool transposed;  // true: a line holds one input of all outputs
  Place place;
  int first, stride;
};

// Copies a tile of 32 × 32 through shared memory: reads along the source's lines, writes along the matrix's
// rows.
template <class From, class To>
__global__ void __launch_bounds__(kTile* kTileRows) pack_kernel(PackArgs a) {
  __shared__ float tile[kTile][kTile + 1];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int at = blockIdx.x * kTile, line = blockIdx.y * kTile;
  for (int y = threadIdx.y; y < kTile; y += kTileRows) {
    if (line + y < a.lines && at + threadIdx.x < a.length) {
      tile[y][threadIdx.x] = cuda::to_float(static_cast<const From*>(
          a.source)[static_cast<std::size_t>(line + y) * a.length + at + threadIdx.x]);
    }
  }
  __syncthreads();
  for (int y = threadIdx.y; y < kTile; y += kTileRows) {
    const int l = a.transposed ? threadIdx.x : y, i = a.transposed ? y : threadIdx.x;
    if (line + l >= a.lines || at + i >= a.length) continue;
    const int output = a.transposed ? at + i : a.first_line + line + l;
    const int input = a.transposed ? a.first_line + line + l : at + i;
    static_cast<To*>(
        a.into)[static_cast<std::size_t>(cuda::placed_row(a.place, a.first, output)) * a.stride + input] =
        cuda::from_float<To>(tile[l][i]);
  }
}

}  // namespace

void run(Cuda& device, const Pack& op) {
  TROUPE_CHECK(op.outputs > 0 && op.first >= 0 &&
               cuda::placed_row(op.place, op.first, op.outputs - 1) < padded(op.into.outputs));
  const int lines = op.transposed ? op.into.inputs : op.outputs;
  const int length = op.transposed ? op.outputs : op.into.inputs;
  const auto stride = static_cast<std::size_t>(op.source_stride != 0 ? op.source_stride : length);
  const std::size_t element = size_of(op.source_dtype),
                    row = static_cast<std::size_t>(padded(op.into.inputs));
  const MemoryBytes memory(op.source);
  const ByteSource& source = op.file != nullptr ? *op.file : memory;
  if (!op.transposed && op.place == Place::rows && op.source_dtype == op.into.activations() &&
      row == std::size_t(length)) {
    device.upload_lines(
        static_cast<std::byte*>(op.into.data) + static_cast<std::size_t>(op.first) * row * element, source,
        op.offset, std::size_t(lines), std::size_t(length) * element, stride * element);
    return;
  }
  const auto lines_at_once =
      static_cast<int>(std::max<std::size_t>(1, kPieceBytes / (std::size_t(length) * element)));
  void* piece = device.scratch(std::size_t(std::min(lines, lines_at_once)) * std::size_t(length) * element);
  for (int line = 0; line < lines; line += lines_at_once) {
    const int count = std::min(lines_at_once, lines - line);
    device.upload_lines(piece, source, op.offset + std::size_t(line) * stride * element, std::size_t(count),
                        std::size_t(length) * element, stride * element);
    const PackArgs arguments{op.into.data,  piece,    line,     count,   length,
                             op.transposed, op.place, op.first, int(row)};
    const dim3 grid(unsigned((length + kTile - 1) / kTile), unsigned((count + kTile - 1) / kTile));
    cuda::with_element(op.source_dtype, [&](auto from) {
      cuda::with_element(op.into.activations(), [&](auto to) {
        troupe::cuda::launch(device, pack_kernel<decltype(from), decltype(to)>,
                             {.grid = grid, .block = dim3(kTile, kTileRows)}, arguments);
      });
    });
  }
}

}  // namespace troupe::kernels
