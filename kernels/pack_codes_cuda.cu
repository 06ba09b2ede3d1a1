// Codes and scales of a file that is quantised already: they are read as they are, and placed by kernels.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/pack_codes.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;  // of codes at a time

struct PlaceCodesArgs {
  std::byte* codes;  // of output 0 of the matrix
  void* scales;
  WeightFormat format;
  int inputs;
  int matrix_outputs;  // with padding
  int row_bytes;       // of a row of codes
  Place place;
  int first, output, outputs;  // of the piece
  const std::uint8_t* source;  // the piece
  int source_bytes;            // of an output there
  const void* source_scales;   // integers: of the piece; fp8: of all outputs
  int source_groups;           // scales of an output there
  int first_in_block;          // StoredScales
};

__device__ __forceinline__ float finite_or_nan(float scale) {
  return isfinite(scale) ? scale : __uint_as_float(0x7fc00000u);
}

/// A block of threads places an output's codes in shared memory: two codes of a byte may come from two
/// threads.
template <class Scale>
__global__ void __launch_bounds__(kThreads) place_integers_kernel(const PlaceCodesArgs a) {
  extern __shared__ unsigned words[];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int o = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), bits = a.format.bits();
  const int placed = placed_row(a.place, a.first, a.output + o), count = a.row_bytes / 4;
  for (int w = thread; w < count; w += kThreads) words[w] = 0;
  __syncthreads();
  const std::uint8_t* source =
      a.source + static_cast<std::size_t>(o) * static_cast<std::size_t>(a.source_bytes);
  for (int i = thread; i < a.inputs; i += kThreads) {
    const int stored = bits == 8 ? source[i] : source[i / 2] >> (i % 2 * 4) & 15;
    const unsigned code = static_cast<unsigned>(stored - (1 << (bits - 1))) & ((1u << bits) - 1);
    const CodePlace at = code_place(a.format, i);
    atomicOr(&words[at.byte / 4], code << (at.byte % 4 * 8 + at.shift));
  }
  __syncthreads();
  auto* row = reinterpret_cast<unsigned*>(a.codes + static_cast<std::size_t>(placed) *
                                                        static_cast<std::size_t>(a.row_bytes));
  for (int w = thread; w < count; w += kThreads) row[w] = words[w];
  const Scale* scales =
      static_cast<const Scale*>(a.source_scales) + static_cast<std::size_t>(o) * a.source_groups;
  for (int g = thread; g < a.source_groups; g += kThreads) {
    const float scale = finite_or_nan(to_float(scales[g]));
    if (a.format.group == 0) {
      static_cast<float*>(a.scales)[placed] = scale;
    } else {
      static_cast<Bf16*>(a.scales)[static_cast<std::size_t>(g) * a.matrix_outputs + placed] =
          from_float<Bf16>(scale);
    }
  }
}

/// A block of threads copies kFp8ScaleOutputs outputs × kFp8Block inputs, which get one scale: a warp an
/// output.
template <class Scale>
__global__ void __launch_bounds__(kFp8ScaleOutputs * 32) place_fp8_kernel(const PlaceCodesArgs a) {
  constexpr int kOfLane = kFp8Block / 32;
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const int o = static_cast<int>(blockIdx.y) * kFp8ScaleOutputs + static_cast<int>(threadIdx.x) / 32;
  const int input = block * kFp8Block + lane * kOfLane;
  unsigned codes = 0;
  bool nan = false;
  if (o < a.outputs) {
    const std::uint8_t* source =
        a.source + static_cast<std::size_t>(o) * static_cast<std::size_t>(a.source_bytes) + input;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const unsigned code = input + i < a.inputs ? source[i] : 0;
      nan |= (code & 0x7fu) == 0x7fu;
      codes |= code << (8 * i);
    }
    const int placed = placed_row(a.place, a.first, a.output + o);
    *reinterpret_cast<unsigned*>(
        a.codes + static_cast<std::size_t>(placed) * static_cast<std::size_t>(a.row_bytes) + input) = codes;
  }
  nan = __syncthreads_or(nan);
  if (threadIdx.x != 0) return;
  const int from = a.first_in_block + a.output + o;
  const float scale = to_float(static_cast<const Scale*>(
      a.source_scales)[static_cast<std::size_t>(from / kFp8Block) * a.source_groups + block]);
  const int placed = placed_row(a.place, a.first, a.output + o);
  static_cast<float*>(a.scales)[static_cast<std::size_t>(block) *
                                    static_cast<std::size_t>(a.matrix_outputs / kFp8ScaleOutputs) +
                                static_cast<std::size_t>(placed / kFp8ScaleOutputs)] =
      nan ? __uint_as_float(0x7fc00000u) : finite_or_nan(scale);
}

void place(Cuda& device, const PlaceCodesArgs& a, DType scales) {
  with_element(scales, [&](auto element) {
    using Scale = decltype(element);
    if (a.format.kind == WeightKind::fp8) {
      const dim3 grid(unsigned(a.row_bytes / kFp8Block),
                      unsigned((a.outputs + kFp8ScaleOutputs - 1) / kFp8ScaleOutputs));
      troupe::cuda::launch(device, place_fp8_kernel<Scale>, {.grid = grid, .block = kFp8ScaleOutputs * 32},
                           a);
    } else {
      const auto shared = static_cast<std::size_t>(a.row_bytes);
      troupe::cuda::allow_shared(place_integers_kernel<Scale>, shared);
      troupe::cuda::launch(device, place_integers_kernel<Scale>,
                           {.grid = unsigned(a.outputs), .block = kThreads, .shared_bytes = shared}, a);
    }
  });
}

}  // namespace

void pack_codes(Cuda& device, const Pack& op) {
  const WeightFormat& format = op.into.format;
  const bool fp8 = format.kind == WeightKind::fp8;
  TROUPE_CHECK(op.file != nullptr && !op.transposed && op.source_stride > 0 && format.quantised());
  TROUPE_CHECK(!fp8 ||
               (op.first % kFp8ScaleOutputs == 0 && op.scales.first_in_block % kFp8ScaleOutputs == 0));
  const int per_scale = fp8 ? kFp8Block : format.group == 0 ? op.into.inputs : format.group;
  const int groups = (op.into.inputs + per_scale - 1) / per_scale;
  const std::size_t line = (std::size_t(op.into.inputs) * std::size_t(format.bits()) + 7) / 8;
  const std::size_t stride = std::size_t(op.source_stride) * std::size_t(format.bits()) / 8;
  const std::size_t scale = size_of(op.scales.dtype), scale_stride = std::size_t(op.scales.stride) * scale;
  const int scale_lines =
      fp8 ? (op.scales.first_in_block + op.outputs + kFp8Block - 1) / kFp8Block : op.outputs;
  const auto at_once = static_cast<int>(std::min(
      std::size_t(op.outputs), std::max<std::size_t>(1, kPieceBytes / line / kFp8Block) * kFp8Block));
  const std::size_t piece_bytes = (std::size_t(at_once) * line + 255) / 256 * 256;
  auto* piece = static_cast<std::byte*>(
      device.scratch(piece_bytes + std::size_t(scale_lines) * std::size_t(groups) * scale));
  std::byte* scales = piece + piece_bytes;
  device.upload_lines(scales, *op.scales.file, op.scales.offset, std::size_t(scale_lines),
                      std::size_t(groups) * scale, scale_stride);
  for (int output = 0; output < op.outputs; output += at_once) {
    const int count = std::min(at_once, op.outputs - output);
    device.upload_lines(piece, *op.file, op.offset + std::size_t(output) * stride, std::size_t(count), line,
                        stride);
    const std::size_t scales_before = fp8 ? 0 : std::size_t(output) * std::size_t(groups) * scale;
    place(device,
          {.codes = static_cast<std::byte*>(op.into.data),
           .scales = scales_of(op.into),
           .format = format,
           .inputs = op.into.inputs,
           .matrix_outputs = padded(op.into.outputs),
           .row_bytes = row_bytes(format, op.into.inputs),
           .place = op.place,
           .first = op.first,
           .output = output,
           .outputs = count,
           .source = reinterpret_cast<const std::uint8_t*>(piece),
           .source_bytes = static_cast<int>(line),
           .source_scales = scales + scales_before,
           .source_groups = groups,
           .first_in_block = op.scales.first_in_block},
          op.scales.dtype);
  }
}

}  // namespace troupe::kernels::cuda
