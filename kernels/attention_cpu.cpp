#include "kernels/attention.h"

#include <algorithm>

#include "base/check.h"
#include "gpu/buffer.h"
#include "gpu/cpu.h"
#include "kernels/cpu/routines.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

static_assert(kMostGroup <= kAttendRows);

/// A unit of work for one thread: some tokens of a sequence, one KV head, some spans of the past.
struct AttentionPiece {
  std::int32_t sequence = 0;
  std::int32_t kv_head = 0;
  std::int32_t token = 0;  // the first one, counted within the sequence's tokens of this batch
  std::int32_t tokens = 0;
  std::int32_t span = 0;
  std::int32_t spans = 0;
  std::int64_t partial = -1;  // index of its first float in the partials; -1: writes the output directly
};

int spans_of(int positions) { return (positions + kSpanTokens - 1) / kSpanTokens; }

class AttentionPlan {
 public:
  AttentionPlan(Cpu& device, const Attention& op)
      : op_(op), group_(op.heads / op.kv.kv_heads), tokens_per_piece_(std::max(1, kAttendRows / group_)) {
    TROUPE_CHECK(op.heads % op.kv.kv_heads == 0 && group_ <= kMostGroup);
    TROUPE_CHECK(op.kv.head_dim % 2 == 0 && op.kv.head_dim <= kMostHeadDim);
    // With few pieces some threads would idle, so a long past is split by spans.
    int whole = 0;
    for (int s = 0; s < op.batch.count; ++s) whole += row_pieces(op.batch.sequences[s]) * op.kv.kv_heads;
    split_ = whole < 4 * device.pool().threads() && device.pool().threads() > 1;
    std::int64_t floats = 0;
    int pieces = 0;
    for_each_piece([&](const AttentionPiece& piece) {
      ++pieces;
      if (piece.partial >= 0) floats = piece.partial + piece.spans * floats_per_span();
    });
    const std::size_t list_bytes = aligned_bytes(static_cast<std::size_t>(pieces) * sizeof(AttentionPiece));
    auto* memory = static_cast<std::byte*>(
        device.scratch(list_bytes + static_cast<std::size_t>(floats) * sizeof(float)));
    pieces_ = reinterpret_cast<AttentionPiece*>(memory);
    partials_ = reinterpret_cast<float*>(memory + list_bytes);
    for_each_piece([&](const AttentionPiece& piece) { pieces_[count_++] = piece; });
  }

  int count() const { return count_; }
  int group() const { return group_; }
  const AttentionPiece& operator[](int i) const { return pieces_[i]; }
  float* partials() const { return partials_; }
  bool split(const SequenceRows& s) const {
    return split_ && row_pieces(s) == 1 && spans_of(s.position + s.tokens) > 1;
  }
  std::int64_t floats_per_row() const { return partial_floats(op_.kv.head_dim); }
  std::int64_t floats_per_span() const { return kAttendRows * floats_per_row(); }

 private:
  int row_pieces(const SequenceRows& s) const {
    return (s.tokens + tokens_per_piece_ - 1) / tokens_per_piece_;
  }

  /// Visits a sequence's last tokens first: they have the longest past, so the longest pieces start first.
  template <class Take>
  void for_each_piece(Take&& take) const {
    std::int64_t next_partial = 0;
    for (int i = 0; i < op_.batch.count; ++i) {
      const SequenceRows& s = op_.batch.sequences[i];
      if (split(s)) {
        for (int head = 0; head < op_.kv.kv_heads; ++head) {
          for (int span = 0; span < spans_of(s.position + s.tokens); ++span) {
            take(AttentionPiece{i, head, 0, s.tokens, span, 1, next_partial});
            next_partial += floats_per_span();
          }
        }
        continue;
      }
      for (int piece = row_pieces(s) - 1; piece >= 0; --piece) {
        const int token = piece * tokens_per_piece_;
        const int tokens = std::min(tokens_per_piece_, s.tokens - token);
        for (int head = 0; head < op_.kv.kv_heads; ++head) {
          take(AttentionPiece{i, head, token, tokens, 0, spans_of(s.position + token + tokens), -1});
        }
      }
    }
  }

  const Attention& op_;
  const int group_;
  const int tokens_per_piece_;
  bool split_ = false;
  AttentionPiece* pieces_ = nullptr;
  int count_ = 0;
  float* partials_ = nullptr;
};

/// Multiplies the outputs by the static scales of their channels of V.
void scale_outputs(Cpu& device, const Attention& op) {
  constexpr int kRowsPerClaim = 8;
  const int width = op.heads * op.kv.head_dim, group = op.heads / op.kv.kv_heads;
  device.pool().for_each(op.batch.rows, kRowsPerClaim, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(padded(width));
      for (int i = 0; i < width; ++i) {
        const int channel = i / op.kv.head_dim / group * op.kv.head_dim + i % op.kv.head_dim;
        const std::size_t at = first + static_cast<std::size_t>(i);
        store_element(
            op.out, op.kv.dtype, at,
            load_element(op.out, op.kv.dtype, at) * (op.static_kv.values[channel] * (1 / kLargestInt8)));
      }
    }
  });
}

}  // namespace

void run(Cpu& device, const Attention& op) {
  const Routines& r = routines(device.isa());
  const auto attend = r.attend[static_cast<int>(op.kv.dtype)];
  const auto merge = r.merge[static_cast<int>(op.kv.dtype)];
  const AttentionPlan plan(device, op);
  const int head_dim = op.kv.head_dim;
  const auto ld = static_cast<std::size_t>(padded(op.heads * head_dim));
  const auto element = [&](int row, int head) {
    return (static_cast<std::size_t>(row) * ld + static_cast<std::size_t>(head * head_dim)) *
           size_of(op.kv.dtype);
  };
  device.reserve_lanes(attend_bytes(head_dim));
  device.pool().for_each(plan.count(), 1, [&](int begin, int end, int lane) {
    const TileUse tiles(r);
    for (int i = begin; i < end; ++i) {
      const AttentionPiece& piece = plan[i];
      const SequenceRows& s = op.batch.sequences[piece.sequence];
      const std::size_t at = element(s.row + piece.token, piece.kv_head * plan.group());
      attend({.q = static_cast<const std::byte*>(op.q) + at,
              .ldq = ld,
              .out = static_cast<std::byte*>(op.out) + at,
              .kv = static_cast<const std::byte*>(op.kv.data),
              .blocks = s.blocks,
              .block_bytes = op.kv.block_bytes(),
              .key_offset = op.kv.key_offset(0, op.layer, piece.kv_head),
              .value_offset = op.kv.value_offset(0, op.layer, piece.kv_head),
              .format = op.kv.format,
              .scales_offset = op.kv.code_bytes(),
              .position = s.position + piece.token,
              .first = op.first,
              .tokens = piece.tokens,
              .group = plan.group(),
              .head_dim = head_dim,
              .scale = op.scale,
              .first_span = piece.span,
              .spans = piece.spans,
              .partial = piece.partial < 0 ? nullptr : plan.partials() + piece.partial,
              .working = device.lane(lane)});
    }
  });
  for (int i = 0; i < plan.count(); ++i) {
    const AttentionPiece& piece = plan[i];
    if (piece.partial < 0 || piece.span != 0) continue;
    const SequenceRows& s = op.batch.sequences[piece.sequence];
    for (int row = 0; row < piece.tokens * plan.group(); ++row) {
      const int token = row / plan.group();
      merge(static_cast<std::byte*>(op.out) +
                element(s.row + token, piece.kv_head * plan.group() + row % plan.group()),
            plan.partials() + piece.partial + row * plan.floats_per_row(),
            static_cast<std::size_t>(plan.floats_per_span()), spans_of(s.position + token + 1), head_dim);
    }
  }
  if (op.static_kv.given()) scale_outputs(device, op);
}

}  // namespace troupe::kernels
