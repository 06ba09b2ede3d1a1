// A tensor's outputs are taken 32 at a time. Their numbers, as floats, are a thread's working memory, so that
// a scale has seen all of its inputs before the first code is made.
#include "kernels/cpu/pack_quantised.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/quantiser.h"
#include "kernels/cpu/tensor_part.h"

namespace troupe::kernels {
namespace {

constexpr int kQuantisedPiecesPerClaim = 2;
constexpr int kLinesPerClaim = 64;
constexpr std::size_t kColumnsBytes = std::size_t{16} << 20;  // of a transposed tensor, read at a time

/// A thread's working memory: kPanel lines, the codes of one, and what a file is read into.
struct LineBuffers {
  float* lines = nullptr;
  std::int8_t* codes = nullptr;
  std::byte* source = nullptr;
};

/// Quantises pieces of 32 source rows.
class Pieces {
 public:
  Pieces(Cpu& device, const Matrix& into, const RowPart& part, Place place, int first, int outputs)
      : device_(device), quantiser_(device, into, part), place_(place), first_(first), outputs_(outputs) {
    TROUPE_CHECK(into.format.kind == WeightKind::int8 || into.format.kind == WeightKind::int4);
  }

  int pieces() const { return (outputs_ + kPanel - 1) / kPanel; }
  int rows(int piece) const { return std::min(kPanel, outputs_ - piece * kPanel); }
  int width() const { return quantiser_.line_width(); }

  /// For each piece of [first, first + count) calls load(piece, lane), which writes rows(piece) lines of
  /// width() floats to lane.lines, and puts them in place.
  template <class Load>
  void run(int first, int count, std::size_t source_bytes, Load&& load) {
    const std::size_t line_bytes = kPanel * static_cast<std::size_t>(width()) * sizeof(float);
    device_.reserve_lanes(line_bytes + quantiser_.code_bytes() + source_bytes);
    device_.pool().for_each(count, kQuantisedPiecesPerClaim, [&](int begin, int end, int index) {
      auto* memory = static_cast<std::byte*>(device_.lane(index));
      const LineBuffers lane{reinterpret_cast<float*>(memory),
                             reinterpret_cast<std::int8_t*>(memory + line_bytes),
                             memory + line_bytes + quantiser_.code_bytes()};
      for (int piece = first + begin; piece < first + end; ++piece) {
        load(piece, lane);
        for (int row = 0; row < rows(piece); ++row) {
          quantiser_.put(placed_output(place_, first_, piece * kPanel + row), lane.lines + row * width(),
                         lane.codes);
        }
      }
    });
  }

 private:
  Cpu& device_;
  const Quantiser quantiser_;
  const Place place_;
  const int first_, outputs_;
};

int inputs_of(const Pack& op) { return op.part.inputs(op.into); }

template <DType T>
void load_transposed(const Pack& op, const Part& part, int output, int rows, int width, float* lines) {
  constexpr int kBlock = 16;  // inputs whose numbers stay in the cache until all outputs have taken theirs
  const int inputs = inputs_of(op);
  for (int begin = 0; begin < inputs; begin += kBlock) {
    const int end = std::min(begin + kBlock, inputs);
    for (int row = 0; row < rows; ++row) {
      for (int i = begin; i < end; ++i) {
        lines[row * width + i] = load_element(element(op, part, output, i), T, static_cast<std::size_t>(row));
      }
    }
  }
}

/// Writes rows of the source as lines of floats.
class Loader {
 public:
  Loader(Cpu& device, const Pack& op, int width)
      : op_(op), width_(width), expand_(routines(device.isa()).expand[static_cast<int>(op.source_dtype)]) {}

  void load(const Part& part, int output, int rows, float* lines) const {
    const int inputs = inputs_of(op_);
    for (int row = 0; row < rows; ++row)
      std::fill(lines + row * width_ + inputs, lines + (row + 1) * width_, 0.0f);
    if (op_.transposed) return transposed(part, output, rows, lines);
    for (int row = 0; row < rows; ++row) {
      const std::byte* from = element(op_, part, output + row, 0);
      float* line = lines + row * width_;
      const int whole = inputs / 16 * 16;  // expand's step; nothing is read behind the last number
      expand_(line, from, static_cast<std::size_t>(whole));
      for (int i = whole; i < inputs; ++i)
        line[i] = load_element(from, op_.source_dtype, static_cast<std::size_t>(i));
    }
  }

 private:
  void transposed(const Part& part, int output, int rows, float* lines) const {
    switch (op_.source_dtype) {
      case DType::bf16: return load_transposed<DType::bf16>(op_, part, output, rows, width_, lines);
      case DType::f16: return load_transposed<DType::f16>(op_, part, output, rows, width_, lines);
      case DType::f32: return load_transposed<DType::f32>(op_, part, output, rows, width_, lines);
    }
  }

  const Pack& op_;
  const int width_;
  void (*const expand_)(float* to, const void* from, std::size_t count);
};

/// Outputs of a transposed tensor that are read at a time, with all of their inputs: whole pieces. All of
/// them, if the tensor's lines with what lies between them fit.
int columns_at_once(const Pack& op) {
  if (span_of(op, inputs_of(op)) <= kColumnsBytes) return op.outputs;
  const std::size_t column = static_cast<std::size_t>(inputs_of(op)) * size_of(op.source_dtype);
  return std::max(1, static_cast<int>(kColumnsBytes / column / kPanel)) * kPanel;
}

/// Reads `count` columns from `output` on. The result is a dense tensor of its own.
void read_columns(Cpu& device, const Pack& op, int output, int count, std::byte* to) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(op.source_dtype);
  device.pool().for_each(inputs_of(op), kLinesPerClaim, [&](int begin, int end, int) {
    if (static_cast<std::size_t>(count) == stride_of(op)) {
      op.file->read(op.offset + distance(op, output, begin), to + static_cast<std::size_t>(begin) * bytes,
                    static_cast<std::size_t>(end - begin) * bytes);
      return;
    }
    for (int i = begin; i < end; ++i) {
      op.file->read(op.offset + distance(op, output, i), to + static_cast<std::size_t>(i) * bytes, bytes);
    }
  });
}

void pack_columns(Cpu& device, const Pack& op, Pieces& pieces) {
  const int columns = columns_at_once(op);
  const std::size_t bytes = static_cast<std::size_t>(std::min(columns, op.outputs)) *
                            static_cast<std::size_t>(inputs_of(op)) * size_of(op.source_dtype);
  auto* data = static_cast<std::byte*>(device.scratch(bytes));
  for (int output = 0; output < op.outputs; output += columns) {
    const int count = std::min(columns, op.outputs - output);
    read_columns(device, op, output, count, data);
    Pack dense = op;
    dense.source_stride = count;
    const Loader loader(device, dense, pieces.width());
    pieces.run(output / kPanel, (count + kPanel - 1) / kPanel, 0, [&](int piece, const LineBuffers& lane) {
      loader.load({data, output, 0, inputs_of(op)}, piece * kPanel, pieces.rows(piece), lane.lines);
    });
  }
}

}  // namespace

void pack_quantised(Cpu& device, const Pack& op) {
  Pieces pieces(device, op.into, op.part, op.place, op.first, op.outputs);
  if (op.file != nullptr && op.transposed) return pack_columns(device, op, pieces);
  const Loader loader(device, op, pieces.width());
  if (op.file == nullptr) {
    const Part whole{static_cast<const std::byte*>(op.source), 0, 0, inputs_of(op)};
    pieces.run(0, pieces.pieces(), 0, [&](int piece, const LineBuffers& lane) {
      loader.load(whole, piece * kPanel, pieces.rows(piece), lane.lines);
    });
    return;
  }
  pieces.run(0, pieces.pieces(), span_of(op, std::min(kPanel, op.outputs)),
             [&](int piece, const LineBuffers& lane) {
               const int output = piece * kPanel, rows = pieces.rows(piece);
               read_lines(op, distance(op, output, 0), rows, lane.source);
               loader.load({lane.source, output, 0, inputs_of(op)}, output, rows, lane.lines);
             });
}

void fill_quantised(Cpu& device, const FillRandom& op, const float* table) {
  Pieces pieces(device, op.into, op.part, op.place, op.first, op.outputs);
  const int inputs = op.part.inputs(op.into), first = op.part.counts(op.into) ? 0 : op.part.first;
  TROUPE_CHECK(first % kDrawsPerHash == 0);
  pieces.run(0, pieces.pieces(), 0, [&](int piece, const LineBuffers& lane) {
    for (int row = 0; row < pieces.rows(piece); ++row) {
      float* line = lane.lines + row * pieces.width();
      for (int i = 0; i < inputs; i += kDrawsPerHash) {
        std::uint64_t bits =
            draw_bits(op.seed, static_cast<std::uint32_t>(op.first_output + piece * kPanel + row),
                      static_cast<std::uint32_t>((first + i) / kDrawsPerHash));
        for (int d = 0; d < kDrawsPerHash; ++d, bits >>= 16) line[i + d] = table[bits % kQuantiles];
      }
      std::fill(line + inputs, line + pieces.width(), 0.0f);
    }
  });
}

}  // namespace troupe::kernels
