#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/pack_codes.h"
#include "kernels/cuda/product/quantise.h"
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

/// A tensor as upload_lines() reads it.
struct Source {
  explicit Source(const Pack& op)
      : memory(op.source),
        bytes(op.file != nullptr ? *op.file : memory),
        element(size_of(op.source_dtype)),
        lines(op.transposed ? op.part.inputs(op.into) : op.outputs),
        length(op.transposed ? op.outputs : op.part.inputs(op.into)),
        stride(static_cast<std::size_t>(op.source_stride != 0 ? op.source_stride : length) * element) {}

  const MemoryBytes memory;
  const ByteSource& bytes;
  const std::size_t element;
  const int lines, length;
  const std::size_t stride;  ///< bytes from one line to the next
};

/// Stores the `lines` lines of `length` elements at `piece`, the first of which is line first_line of the
/// tensor.
void place_lines(Cuda& device, const Pack& op, const void* piece, int first_line, int lines, int length) {
  const PackArgs arguments{op.into.data, piece,    first_line,
                           lines,        length,   op.transposed,
                           op.place,     op.first, padded(op.into.inputs)};
  const dim3 grid(unsigned((length + kTile - 1) / kTile), unsigned((lines + kTile - 1) / kTile));
  cuda::with_element(op.source_dtype, [&](auto from) {
    cuda::with_element(op.into.activations(), [&](auto to) {
      troupe::cuda::launch(device, pack_kernel<decltype(from), decltype(to)>,
                           {.grid = grid, .block = dim3(kTile, kTileRows)}, arguments);
    });
  });
}

void pack_floats(Cuda& device, const Pack& op) {
  const Source source(op);
  const std::size_t row = static_cast<std::size_t>(padded(op.into.inputs)) * source.element;
  const std::size_t line_bytes = static_cast<std::size_t>(source.length) * source.element;
  if (!op.transposed && op.place == Place::rows && op.source_dtype == op.into.activations() &&
      row == line_bytes) {
    device.upload_lines(static_cast<std::byte*>(op.into.data) + static_cast<std::size_t>(op.first) * row,
                        source.bytes, op.offset, std::size_t(source.lines), line_bytes, source.stride);
    return;
  }
  const auto lines_at_once = static_cast<int>(std::max<std::size_t>(1, kPieceBytes / line_bytes));
  void* piece = device.scratch(std::size_t(std::min(source.lines, lines_at_once)) * line_bytes);
  for (int line = 0; line < source.lines; line += lines_at_once) {
    const int count = std::min(lines_at_once, source.lines - line);
    device.upload_lines(piece, source.bytes, op.offset + std::size_t(line) * source.stride,
                        std::size_t(count), line_bytes, source.stride);
    place_lines(device, op, piece, line, count, source.length);
  }
}

/// A scale needs all inputs of its outputs, so a piece is some outputs whatever the order of the tensor: they
/// are placed as rows of the source's dtype in scratch memory, and quantised from there.
void pack_quantised(Cuda& device, const Pack& op) {
  const Source source(op);
  const int row_inputs = op.part.inputs(op.into);
  const std::size_t inputs = std::size_t(row_inputs), stride = std::size_t(padded(row_inputs));
  const int unit = cuda::quantised_together(op.into.format);
  const auto outputs_at_once =
      static_cast<int>(std::max<std::size_t>(1, kPieceBytes / (stride * source.element) / std::size_t(unit)) *
                       std::size_t(unit));
  const std::size_t most = std::size_t(std::min(op.outputs, outputs_at_once)) * stride * source.element;
  auto* piece = static_cast<std::byte*>(device.scratch(2 * most));
  const Matrix rows{piece + most, op.source_dtype, outputs_at_once, row_inputs};
  for (int output = 0; output < op.outputs; output += outputs_at_once) {
    const int count = std::min(outputs_at_once, op.outputs - output);
    Pack some = op;
    some.into = rows;
    some.place = Place::rows;
    some.first = 0;
    if (op.transposed) {
      device.upload_lines(piece, source.bytes, op.offset + std::size_t(output) * source.element, inputs,
                          std::size_t(count) * source.element, source.stride);
      place_lines(device, some, piece, 0, row_inputs, count);
    } else {
      device.upload_lines(piece, source.bytes, op.offset + std::size_t(output) * source.stride,
                          std::size_t(count), inputs * source.element, source.stride);
      place_lines(device, some, piece, 0, count, row_inputs);
    }
    cuda::quantise(device, {.into = op.into,
                            .place = op.place,
                            .first = op.first,
                            .output = output,
                            .outputs = count,
                            .rows = rows.data,
                            .dtype = op.source_dtype,
                            .part = op.part});
  }
}

}  // namespace

void run(Cuda& device, const Pack& op) {
  TROUPE_CHECK(op.outputs > 0 && op.first >= 0 &&
               cuda::placed_row(op.place, op.first, op.outputs - 1) < padded(op.into.outputs));
  if (op.wint2 != nullptr) return cuda::pack_wint2(device, op);
  if (op.scales.file != nullptr) return cuda::pack_codes(device, op);
  op.into.format.quantised() ? pack_quantised(device, op) : pack_floats(device, op);
}

}  // namespace troupe::kernels
