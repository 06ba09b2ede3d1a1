#include <algorithm>
#include <cstring>

#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"
#include "kernels/draft_rows.h"

namespace troupe::kernels {
namespace {

constexpr int kDraftRowsPerClaim = 8;

}  // namespace

void run(Cpu& device, const DraftInput& op) {
  const Routines& routine = routines(device.isa());
  const auto norm = routine.norm[static_cast<int>(op.dtype)];
  const auto expand = routine.expand[static_cast<int>(op.dtype)];
  const std::size_t size = size_of(op.dtype);
  const auto ld = static_cast<std::size_t>(padded(op.cols)),
             out_ld = static_cast<std::size_t>(padded(2 * op.cols));
  const std::size_t half = static_cast<std::size_t>(op.cols) * size;
  // A lane's memory: a hidden row as fp32, then a norm with its padding, for which a half has no room.
  device.reserve_lanes(2 * ld * sizeof(float));
  device.pool().for_each(op.rows, kDraftRowsPerClaim, [&](int begin, int end, int lane) {
    auto* const hidden = static_cast<float*>(device.lane(lane));
    auto* const normed = reinterpret_cast<std::byte*>(hidden + ld);
    for (int r = begin; r < end; ++r) {
      float* const embedding = op.residual + static_cast<std::size_t>(r) * ld;
      auto* const out = static_cast<std::byte*>(op.out) + static_cast<std::size_t>(r) * out_ld * size;
      const int from = op.from[r];
      const auto* const rows = static_cast<const std::byte*>(from < 0 ? op.kept : op.hidden);
      expand(hidden, rows + static_cast<std::size_t>(from < 0 ? -1 - from : from) * ld * size, ld);
      norm({.out = normed, .h = embedding, .weight = op.embedding_norm, .cols = op.cols, .eps = op.eps});
      std::memcpy(out, normed, half);
      norm({.out = normed, .h = hidden, .weight = op.hidden_norm, .cols = op.cols, .eps = op.eps});
      std::memcpy(out + half, normed, half);
      std::memset(out + 2 * half, 0, out_ld * size - 2 * half);
      std::fill_n(embedding, ld, 0.0f);
    }
  });
}

void run(Cpu& device, const RoundRows& op) {
  const auto narrow = routines(device.isa()).narrow[static_cast<int>(op.dtype)];
  const auto ld = static_cast<std::size_t>(padded(op.cols));
  device.pool().for_each(op.count, kDraftRowsPerClaim, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      const auto from = static_cast<std::size_t>(op.pick != nullptr ? op.pick[r] : r);
      narrow(static_cast<std::byte*>(op.out) + static_cast<std::size_t>(r) * ld * size_of(op.dtype),
             op.rows + from * ld, ld);
    }
  });
}

void run(Cpu&, const CopyRows& op) {
  for (int i = 0; i < op.count; ++i) {
    const int to = op.to != nullptr ? op.to[i] : i;
    if (to < 0) continue;
    const int from = op.from != nullptr ? op.from[i] : i;
    std::memcpy(static_cast<std::byte*>(op.out) + static_cast<std::size_t>(to) * op.out_stride,
                static_cast<const std::byte*>(op.rows) + static_cast<std::size_t>(from) * op.row_stride,
                op.row_bytes);
  }
}

}  // namespace troupe::kernels
