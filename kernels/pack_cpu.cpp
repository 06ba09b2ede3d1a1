#include "kernels/pack.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/pack_quantised.h"
#include "kernels/cpu/tensor_part.h"

namespace troupe::kernels {
namespace {

constexpr int kPackPiecesPerClaim = 4, kPackLinesPerClaim = 32;
constexpr std::size_t kLinesBytes = std::size_t{8} << 20;    // of a transposed tensor, read at a time
constexpr std::size_t kSliceBytes = std::size_t{256} << 10;  // of them, read by a thread at a time

/// Packs a whole panel of bf16 rows of even length: transposes 32-bit pairs, reading one cache line of each
/// row at a time.
void transpose_pairs(const Pack& op, const Part& part, int output, std::uint16_t* panel) {
  constexpr int kPairs = 16;
  const int pairs = op.into.inputs / 2;
  for (int begin = 0; begin < pairs; begin += kPairs) {
    const int end = std::min(pairs, begin + kPairs);
    std::uint32_t block[kPanel][kPairs];
    for (int lane = 0; lane < kPanel; ++lane) {
      std::memcpy(block[lane], element(op, part, output + lane, 2 * begin),
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
void convert(const Pack& op, const Part& part, int output, int rows) {
  constexpr int kBlock = 32;
  const std::size_t step_o = size_of(From) * (op.transposed ? 1 : stride_of(op));
  const std::size_t step_i = size_of(From) * (op.transposed ? stride_of(op) : 1);
  std::size_t starts[kPanel];  // index of weight (output o, input 0) in the packed matrix
  for (int o = 0; o < rows; ++o) {
    starts[o] = packed_index(To, op.into.inputs, placed_output(op.place, op.first, output + o), 0);
  }
  const int end = part.input + part.inputs;
  for (int begin = part.input; begin < end; begin += kBlock) {
    const int count = std::min(kBlock, end - begin);
    const std::byte* from = element(op, part, output, begin);
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

using Convert = void (*)(const Pack& op, const Part& part, int output, int rows);

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

/// Packs pieces of 32 outputs.
class Packer {
 public:
  explicit Packer(const Pack& op)
      : op_(op),
        pairs_(op.into.activations() == DType::bf16 && op.source_dtype == DType::bf16 && !op.transposed &&
               op.into.inputs % 2 == 0 && op.first % kPanel == 0),
        convert_(converter(op.source_dtype, op.into.activations())) {}

  int pieces() const { return (op_.outputs + kPanel - 1) / kPanel; }
  int rows(int piece) const { return std::min(kPanel, op_.outputs - piece * kPanel); }

  void pack(const Part& part, int piece) const {
    const int output = piece * kPanel;
    if (!pairs_ || rows(piece) < kPanel) return convert_(op_, part, output, rows(piece));
    const int placed = placed_output(op_.place, op_.first, output);
    transpose_pairs(
        op_, part, output,
        static_cast<std::uint16_t*>(op_.into.data) + packed_index(DType::bf16, op_.into.inputs, placed, 0));
  }

 private:
  const Pack& op_;
  const bool pairs_;
  const Convert convert_;
};

void pack_memory(Cpu& device, const Pack& op, const Packer& packer) {
  const Part whole{static_cast<const std::byte*>(op.source), 0, 0, op.into.inputs};
  device.pool().for_each(packer.pieces(), kPackPiecesPerClaim, [&](int begin, int end, int) {
    for (int piece = begin; piece < end; ++piece) packer.pack(whole, piece);
  });
}

/// A piece is some lines of the file: each thread reads its own, which are then in its cache.
void pack_lines(Cpu& device, const Pack& op, const Packer& packer) {
  device.reserve_lanes(span_of(op, std::min(kPanel, op.outputs)));
  device.pool().for_each(packer.pieces(), kPackPiecesPerClaim, [&](int begin, int end, int lane) {
    auto* data = static_cast<std::byte*>(device.lane(lane));
    for (int piece = begin; piece < end; ++piece) {
      const int output = piece * kPanel;
      read_lines(op, distance(op, output, 0), packer.rows(piece), data);
      packer.pack({data, output, 0, op.into.inputs}, piece);
    }
  });
}

/// A line has an input of all outputs: some lines are read at a time, and all pieces take those inputs of
/// them.
void pack_transposed(Cpu& device, const Pack& op, const Packer& packer) {
  const std::size_t line_bytes = stride_of(op) * size_of(op.source_dtype);
  const int lines = std::clamp(static_cast<int>(kLinesBytes / line_bytes), 1, op.into.inputs);
  auto* data = static_cast<std::byte*>(device.scratch(span_of(op, lines)));
  for (int input = 0; input < op.into.inputs; input += lines) {
    const int count = std::min(lines, op.into.inputs - input);
    if (lines_lie_apart(op)) {
      device.pool().for_each(count, kPackLinesPerClaim, [&](int begin, int end, int) {
        read_lines(op, distance(op, 0, input + begin), end - begin,
                   data + static_cast<std::size_t>(begin) * line_bytes);
      });
    }
    const std::size_t bytes = lines_lie_apart(op) ? 0 : span_of(op, count);
    const auto slices = static_cast<int>((bytes + kSliceBytes - 1) / kSliceBytes);
    device.pool().for_each(slices, 1, [&](int begin, int end, int) {
      const std::size_t first = static_cast<std::size_t>(begin) * kSliceBytes;
      const std::size_t last = std::min(bytes, static_cast<std::size_t>(end) * kSliceBytes);
      op.file->read(op.offset + distance(op, 0, input) + first, data + first, last - first);
    });
    device.pool().for_each(packer.pieces(), kPackPiecesPerClaim, [&](int begin, int end, int) {
      for (int piece = begin; piece < end; ++piece) packer.pack({data, 0, input, count}, piece);
    });
  }
}

}  // namespace

void run(Cpu& device, const Pack& op) {
  const int last = placed_output(op.place, op.first, op.outputs - 1);
  TROUPE_CHECK(op.outputs > 0 && op.first >= 0 && last < padded(op.into.outputs));
  if (op.wint2 != nullptr) return pack_wint2(device, op);
  if (op.scales.file != nullptr) return pack_codes(device, op);
  if (op.into.format.quantised()) return pack_quantised(device, op);
  const Packer packer(op);
  if (op.file == nullptr) return pack_memory(device, op, packer);
  op.transposed ? pack_transposed(device, op, packer) : pack_lines(device, op, packer);
}

}  // namespace troupe::kernels
