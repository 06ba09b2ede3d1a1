#pragma once
// Where a Pack's tensor has its elements, and the parts of it that are in memory.
#include <cstddef>
#include <cstdint>

#include "kernels/pack.h"

namespace troupe::kernels {

/// Elements from one row of the stored source to the next.
inline std::size_t stride_of(const Pack& op) {
  const int dense = op.transposed ? op.outputs : op.part.inputs(op.into);
  return static_cast<std::size_t>(op.source_stride != 0 ? op.source_stride : dense);
}

/// Bytes from the tensor's beginning to an element.
inline std::size_t distance(const Pack& op, int output, int input) {
  const auto o = static_cast<std::size_t>(output), i = static_cast<std::size_t>(input);
  const std::size_t stride = stride_of(op);
  return (op.transposed ? i * stride + o : o * stride + i) * size_of(op.source_dtype);
}

/// Bytes of `lines` lines of the source, from the first element of the first to the last of the last.
inline std::size_t span_of(const Pack& op, int lines) {
  const auto line = static_cast<std::size_t>(op.transposed ? op.outputs : op.part.inputs(op.into));
  return ((static_cast<std::size_t>(lines) - 1) * stride_of(op) + line) * size_of(op.source_dtype);
}

/// What lies between two lines is read with them if it is less: a read of its own would cost more. What a
/// rank does not hold is left to the others.
inline constexpr std::size_t kLeastGap = 512;

inline bool lines_lie_apart(const Pack& op) {
  const auto line = static_cast<std::size_t>(op.transposed ? op.outputs : op.part.inputs(op.into));
  return (stride_of(op) - line) * size_of(op.source_dtype) >= kLeastGap;
}

/// Reads `lines` lines of the file, the first of which begins `from` bytes behind the tensor's beginning.
/// They lie in `to` as in the file; what is between them may not be read.
inline void read_lines(const Pack& op, std::size_t from, int lines, std::byte* to) {
  if (!lines_lie_apart(op)) return op.file->read(op.offset + from, to, span_of(op, lines));
  const std::size_t step = stride_of(op) * size_of(op.source_dtype), line = span_of(op, 1);
  for (std::size_t i = 0; i < static_cast<std::size_t>(lines); ++i)
    op.file->read(op.offset + from + i * step, to + i * step, line);
}

/// A part of the tensor in memory: `data` is where `output` and `input` lie, and inputs [input, input +
/// inputs) are there.
struct Part {
  const std::byte* data = nullptr;
  int output = 0;
  int input = 0;
  int inputs = 0;
};

inline const std::byte* element(const Pack& op, const Part& part, int output, int input) {
  return part.data + distance(op, output, input) - distance(op, part.output, part.input);
}

}  // namespace troupe::kernels
