#include "kernels/pack.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"

namespace troupe::kernels {
namespace {

/// Elements from one row of the stored source to the next.
std::size_t stride_of(const Pack& op) {
  const int dense = op.transposed ? op.outputs : op.into.inputs;
  return static_cast<std::size_t>(op.source_stride != 0 ? op.source_stride : dense);
}

const std::byte* element(const Pack& op, int output, int input) {
  const auto o = static_cast<std::size_t>(output), i = static_cast<std::size_t>(input);
  const std::size_t stride = stride_of(op);
  const std::size_t at = op.transposed ? i * stride + o : o * stride + i;
  return static_cast<const std::byte*>(op.source) + at * size_of(op.source_dtype);
}

/// Packs a whole panel of bf16 rows of even length: transposes 32-bit pairs, reading one cache line of each
/// row at a time.
void transpose_pairs(const Pack& op, int output, std::uint16_t* panel) {
  constexpr int kPairs = 16;
  const int pairs = op.into.inputs / 2;
  for (int begin = 0; begin < pairs; begin += kPairs) {
    const int end = std::min(pairs, begin + kPairs);
    std::uint32_t block[kPanel][kPairs];
    for (int lane = 0; lane < kPanel; ++lane) {
      std::memcpy(block[lane], element(op, output + lane, 2 * begin),
                  static_cast<std::size_t>(end - begin) * sizeof(std::uint32_t));
    }
    for (int pair = begin; pair < end; ++pair) {
      std::uint32_t line[kPanel];
      for (int lane = 0; lane < kPanel; ++lane) line[lane] = block[lane][pair - begin];
      std::memcpy(panel + static_cast<std::size_t>(pair) * 2 * kPanel, line, sizeof line);
    }
  }
}

template <DType T>
float load_as(const std::byte* from) {
  return load_element(from, T, 0);
}

/// Packs up to 32 outputs of any dtype, in blocks of 32 × 32 weights.
template <DType From, DType To>
void convert(const Pack& op, int output, int rows) {
  constexpr int kBlock = 32;
  const std::size_t step_o = size_of(From) * (op.transposed ? 1 : stride_of(op));
  const std::size_t step_i = size_of(From) * (op.transposed ? stride_of(op) : 1);
  std::size_t starts[kPanel];  // index of weight (output o, input 0) in the packed matrix
  for (int o = 0; o < rows; ++o) {
    starts[o] = packed_index(To, op.into.inputs, placed_output(op.place, op.first, output + o), 0);
  }
  for (int begin = 0; begin < op.into.inputs; begin += kBlock) {
    const int count = std::min(kBlock, op.into.inputs - begin);
    const std::byte* from = element(op, output, begin);
    float block[kPanel][kBlock];
    for (int o = 0; o < rows; ++o) {
      for (int i = 0; i < count; ++i) {
        block[o][i] =
            load_as<From>(from + static_cast<std::size_t>(o) * step_o + static_cast<std::size_t>(i) * step_i);
      }
    }
    for (int i = 0; i < count; ++i) {
      const std::size_t at = packed_index(To, op.into.inputs, 0, begin + i);
      for (int o = 0; o < rows; ++o) store_element(op.into.data, To, starts[o] + at, block[o][i]);
    }
  }
}

using Convert = void (*)(const Pack& op, int output, int rows);

template <DType From>
Convert convert_from(DType to) {
  switch (to) {
    case DType::bf16: return convert<From, DType::bf16>;
    case DType::f16: return convert<From, DType::f16>;
    case DType::f32: return convert<From, DType::f32>;
  }
  return nullptr;
}

Convert converter(DType from, DType to) {
  switch (from) {
    case DType::bf16: return convert_from<DType::bf16>(to);
    case DType::f16: return convert_from<DType::f16>(to);
    case DType::f32: return convert_from<DType::f32>(to);
  }
  return nullptr;
}

}  // namespace

void run(Cpu& device, const Pack& op) {
  const int last = placed_output(op.place, op.first, op.outputs - 1);
  TROUPE_CHECK(op.outputs > 0 && op.first >= 0 && last < padded(op.into.outputs));
  const int pieces = (op.outputs + kPanel - 1) / kPanel;
  const bool pairs = op.into.dtype == DType::bf16 && op.source_dtype == DType::bf16 && !op.transposed &&
                     op.into.inputs % 2 == 0 && op.first % kPanel == 0;
  const Convert convert_panel = converter(op.source_dtype, op.into.dtype);
  device.pool().for_each(pieces, 4, [&](int begin, int end, int) {
    for (int piece = begin; piece < end; ++piece) {
      const int output = piece * kPanel;
      const int rows = std::min(kPanel, op.outputs - output);
      if (pairs && rows == kPanel) {
        const int placed = placed_output(op.place, op.first, output);
        transpose_pairs(
            op, output,
            static_cast<std::uint16_t*>(op.into.data) + packed_index(DType::bf16, op.into.inputs, placed, 0));
      } else {
        convert_panel(op, output, rows);
      }
    }
  });
}

}  // namespace troupe::kernels
