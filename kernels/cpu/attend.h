#pragma once
// Attention of a few query rows over one KV head, built from the tile products of cpu/tile.h.
//
// Rows are the heads of a group times a few tokens. For each tile of 64 past tokens: scores = rows × two K
// panels; an online softmax per row keeps a maximum m, a sum l and weighted values o, and multiplies l and o
// by exp(m_old - m_new) when the maximum grows; then o += P × V panels. Tiles start at multiples of 64
// tokens and are visited in rising order. Every 512 tokens (a span) the softmax starts again at m = -inf,
// and spans are merged in rising order by the same formula. So a long past can be split over threads by
// spans, and the order of a row's operations is the same with and without a split, alone and in a chunk.
//
// A masked position has probability exactly 0, so V must only be finite there. That concerns one element:
// the second of a bf16 pair, beyond the last token. The KV write stores a 0 in it. 8-bit codes are always
// finite.
//
// 8-bit K and V are expanded, panel by panel, to a copy in working memory that the tile product takes; every
// code is exact in bf16. A token's K scale multiplies its scores, its V scale multiplies its probabilities.
#include <limits>

#include "kernels/batch.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/rows.h"

namespace troupe::kernels {

/// Index of the weighted values in a partial, which begins with maximum, sum and padding.
inline constexpr int kValuesOffset = 16;

/// Merges one span's (m, l, o) into (M, L, O) of the spans before it.
template <class V>
void merge_span(float& M, float& L, float* O, float m, float l, const float* o, int width) {
  using F = typename V::F;
  if (m == -std::numeric_limits<float>::infinity()) return;
  const float top = M > m ? M : m;
  const float old_scale = exp_of_scalar<V>(M - top);
  const float new_scale = exp_of_scalar<V>(m - top);
  for (int i = 0; i < width; i += V::kLanes) {
    const F sum = V::mul(V::load(o + i), V::set1(new_scale));
    V::store(O + i, V::fma(V::load(O + i), V::set1(old_scale), sum));
  }
  L = L * old_scale + l * new_scale;
  M = top;
}

/// out[0 … head_dim) = cast(O / L).
template <class V, DType T>
void finish_row(void* out, float L, const float* O, int head_dim) {
  const typename V::F inverse = V::set1(1.0f / L);
  auto* to = static_cast<Stored<V, T>*>(out);
  int i = 0;
  for (; i + V::kLanes <= head_dim; i += V::kLanes) {
    store_rounded<V, T>(to + i, V::mul(V::load(O + i), inverse));
  }
  if (i < head_dim) {
    Stored<V, T> rest[V::kLanes];
    store_rounded<V, T>(rest, V::mul(V::load(O + i), inverse));
    __builtin_memcpy(to + i, rest, static_cast<std::size_t>(head_dim - i) * sizeof rest[0]);
  }
}

/// Expands 8-bit codes of `inputs` inputs × 32 outputs to a panel as tile<V, T> takes it: bf16 in pairs of
/// inputs, or floats. `inputs` is even for bf16.
template <class V, DType T, KvFormat Format>
void expand_codes(void* to, const std::byte* codes, int inputs) {
  const auto number = [](std::byte code) -> float {
    const std::int32_t c = static_cast<std::int8_t>(code);
    if constexpr (Format == KvFormat::int8) {
      return static_cast<float>(c);
    } else {  // e4m3 in place of a float's sign, exponent and mantissa: its exponent is 127 - 7 too low
      return __builtin_bit_cast(float, static_cast<std::uint32_t>(c) << 20 & 0x87f00000u) * 0x1p120f;
    }
  };
  if constexpr (T == DType::bf16) {
    auto* pairs = static_cast<std::uint32_t*>(to);
    for (int k = 0; k < inputs; k += 2, codes += 2 * kPanel, pairs += kPanel) {
      for (int lane = 0; lane < kPanel; ++lane) {
        pairs[lane] = __builtin_bit_cast(std::uint32_t, number(codes[lane])) >> 16 |
                      (__builtin_bit_cast(std::uint32_t, number(codes[kPanel + lane])) & 0xffff0000u);
      }
    }
  } else if constexpr (Format == KvFormat::fp8 && V::kLanes >= 8) {
    // By way of f16, whose subnormal numbers cost no more than others.
    auto* floats = static_cast<float*>(to);
    for (int i = 0; i < inputs; ++i, codes += kPanel, floats += kPanel) {
      std::uint16_t halves[kPanel];
      for (int lane = 0; lane < kPanel; ++lane) {
        const std::int32_t c = static_cast<std::int8_t>(codes[lane]);
        halves[lane] = static_cast<std::uint16_t>(static_cast<std::uint32_t>(c) << 7 & 0xbf80u);
      }
      for (int lane = 0; lane < kPanel; lane += V::kLanes)
        V::store(floats + lane, V::mul(V::load_f16(halves + lane), V::set1(0x1p8f)));
    }
  } else {
    auto* floats = static_cast<float*>(to);
    for (int i = 0; i < inputs * kPanel; ++i) floats[i] = number(codes[i]);
  }
}

/// Online softmax of one row over the first `visible` tokens of a tile but for the first `hidden`: writes the
/// probabilities to P and updates m, l and o. Overwrites the scores. Scales of 8-bit K and V, else null: with
/// them a probability times its V scale is rounded to bf16 (fp32: not rounded).
template <class V, DType T>
void softmax_tile(float* scores, Operand<V, T>* P, int hidden, int visible, float scale,
                  const float* key_scales, const float* value_scales, float& m, float& l, float* o,
                  int width) {
  using F = typename V::F;
  const F nothing = V::set1(-std::numeric_limits<float>::infinity());
  F largest = nothing;
  if (key_scales != nullptr) {
    for (int i = 0; i < kBlockTokens; i += V::kLanes)
      V::store(scores + i, V::mul(V::load(scores + i), V::load(key_scales + i)));
  }
  for (int i = 0; i < hidden; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  for (int i = visible; i < kBlockTokens; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < kBlockTokens; i += V::kLanes) {
    const F s = V::mul(V::load(scores + i), V::set1(scale));
    V::store(scores + i, s);
    largest = V::max(largest, s);
  }
  const float tile_top = V::max_lanes(largest);
  const float top = m > tile_top ? m : tile_top;
  F sum = V::set1(0);
  for (int i = 0; i < kBlockTokens; i += V::kLanes) {
    const F p = exp_of<V>(V::sub(V::load(scores + i), V::set1(top)));
    sum = V::add(sum, p);
    const F weight = value_scales != nullptr ? V::mul(p, V::load(value_scales + i)) : p;
    if constexpr (V::kBf16Dot && T == DType::bf16) {
      V::store_bf16(P + i, weight);
    } else if constexpr (T == DType::f16) {
      V::store(P + i, value_scales != nullptr ? rounded<V, DType::bf16>(weight) : rounded<V, T>(weight));
    } else {
      V::store(P + i, rounded<V, T>(weight));
    }
  }
  // The scale of a token that the row does not see may be a NaN.
  if (value_scales != nullptr) {
    for (int i = 0; i < hidden; ++i) P[i] = 0;
    for (int i = visible; i < kBlockTokens; ++i) P[i] = 0;
  }
  if (top != m) {
    const float old_scale = exp_of_scalar<V>(m - top);
    for (int i = 0; i < width; i += V::kLanes) V::store(o + i, V::mul(V::load(o + i), V::set1(old_scale)));
    l *= old_scale;
    m = top;
  }
  l += V::sum_lanes(sum);
}

template <class V, DType T>
class Attend {
 public:
  explicit Attend(const AttendArgs& a)
      : a_(a),
        rows_(a.tokens * a.group),
        computed_rows_(whole_rows(rows_)),
        width_(padded(a.head_dim)),
        q_(static_cast<Op*>(a.working)) {
    scores_ = static_cast<float*>(a.working) + kAttendRows * width_;
    o_ = scores_ + kAttendRows * kBlockTokens;
    O_ = o_ + kAttendRows * width_;
    P_ = reinterpret_cast<Op*>(O_ + kAttendRows * width_);
    panel_ = reinterpret_cast<float*>(P_) + kAttendRows * kBlockTokens;
  }

  void run() {
    gather_queries();
    for (int row = 0; row < rows_; ++row) M_[row] = -std::numeric_limits<float>::infinity();
    for (int s = a_.first_span; s < a_.first_span + a_.spans; ++s) {
      span(s);
      for (int row = 0; row < rows_; ++row) end_span(row, s == a_.first_span);
    }
    if (a_.partial != nullptr) return;
    for (int row = 0; row < rows_; ++row) {
      auto* out = static_cast<St*>(a_.out) + head_offset(row);
      finish_row<V, T>(out, L_[row], O_ + row * width_, a_.head_dim);
    }
  }

 private:
  using Op = Operand<V, T>;
  using St = Stored<V, T>;
  /// What codes are expanded to: what a tile multiplies operands of T by.
  static constexpr DType kExpanded = sizeof(Op) == 2 ? DType::bf16 : DType::f32;

  /// Elements from the start of q (or out) to this row's head.
  std::size_t head_offset(int row) const {
    return static_cast<std::size_t>(row / a_.group) * a_.ldq +
           static_cast<std::size_t>(row % a_.group * a_.head_dim);
  }

  void gather_queries() {
    for (int row = 0; row < rows_; ++row) {
      const St* from = static_cast<const St*>(a_.q) + head_offset(row);
      Op* to = q_ + row * width_;
      if constexpr (sizeof(Op) == sizeof(St)) {
        __builtin_memcpy(to, from, static_cast<std::size_t>(a_.head_dim) * sizeof(St));
      } else {
        St whole[256];
        __builtin_memcpy(whole, from, static_cast<std::size_t>(a_.head_dim) * sizeof(St));
        for (int i = a_.head_dim; i < width_; ++i) whole[i] = 0;
        expand<V, T>(to, whole, static_cast<std::size_t>(width_));
      }
    }
  }

  /// Rows that the products compute where so many are needed. The rows beyond lie in working memory and are
  /// not read.
  static constexpr int whole_rows(int rows) {
    if constexpr (MultipliesMatrices<V>) {
      static_assert(V::whole_rows(kAttendRows) == kAttendRows);
      return V::whole_rows(rows);
    }
    return rows;
  }
  int rows_of_tile(int row) const {
    return computed_rows_ - row < V::kTileRows ? computed_rows_ - row : V::kTileRows;
  }

  /// Tokens of tile [start, start + 64) that the row may attend to.
  int visible(int row, int start) const {
    const int count = a_.position + row / a_.group + 1 - start;
    return count < 0 ? 0 : count > kBlockTokens ? kBlockTokens : count;
  }

  void span(int s) {
    for (int row = 0; row < rows_; ++row) {
      m_[row] = -std::numeric_limits<float>::infinity();
      l_[row] = 0;
    }
    __builtin_memset(o_, 0, sizeof(float) * static_cast<std::size_t>(rows_ * width_));
    const int end = a_.position + a_.tokens;
    const int span_end = (s + 1) * kSpanTokens;
    for (int start = s * kSpanTokens; start < span_end && start < end; start += kBlockTokens) tile_at(start);
  }

  /// Multiplies rows by the panel of `inputs` inputs at `panel`, which lies in KV memory. `ahead`: see
  /// TileArgs; the panel of the same size that is read next.
  template <class ForEachTile>
  void with_panel(const std::byte* panel, int inputs, const std::byte* ahead, ForEachTile&& for_each_tile) {
    if (a_.format == KvFormat::plain) {
      for_each_tile([&](TileArgs tile_args) {
        tile_args.panel = panel;
        tile_args.ahead = ahead;
        tile<V, T>(tile_args);
        ahead = nullptr;
      });
      return;
    }
    if (a_.format == KvFormat::int8) {
      expand_codes<V, kExpanded, KvFormat::int8>(panel_, panel, inputs + inputs % 2);
    } else {
      expand_codes<V, kExpanded, KvFormat::fp8>(panel_, panel, inputs + inputs % 2);
    }
    for_each_tile([&](TileArgs tile_args) {
      tile_args.panel = panel_;
      tile_args.ahead = ahead;
      tile_args.ahead_calls = sizeof(Stored<V, kExpanded>);
      tile<V, kExpanded>(tile_args);
      ahead = nullptr;
    });
  }

  /// A copy of a panel of V with zeros for the tokens before a_.first, which may be anything.
  const std::byte* without_first(const std::byte* panel, std::size_t bytes) {
    auto* const copy = reinterpret_cast<St*>(panel_);
    __builtin_memcpy(copy, panel, bytes);
    for (int token = 0; token < a_.first; ++token) {
      for (int lane = 0; lane < kPanel; ++lane) copy[packed_index(T, kBlockTokens, lane, token)] = 0;
    }
    return reinterpret_cast<const std::byte*>(copy);
  }

  void tile_at(int start) {
    const std::byte* block =
        a_.kv + static_cast<std::size_t>(a_.blocks[start / kBlockTokens]) * a_.block_bytes;
    const std::byte* keys = block + a_.key_offset;
    const std::byte* values = block + a_.value_offset;
    const bool plain = a_.format == KvFormat::plain;
    const std::size_t panel_input = kPanel * (plain ? sizeof(St) : 1);
    const std::size_t key_panel = static_cast<std::size_t>(a_.head_dim) * panel_input;
    const std::size_t value_panel = static_cast<std::size_t>(kBlockTokens) * panel_input;
    const auto scales = [&](const std::byte* piece) {
      return plain ? nullptr : reinterpret_cast<const float*>(piece + a_.scales_offset);
    };
    const int most_visible = visible(rows_ - 1, start);
    // Prefetch one stage ahead: values while scores are computed, the next tile's keys while values are used.
    const bool more = start + kBlockTokens < a_.position + a_.tokens;
    const std::byte* next =
        more ? a_.kv + static_cast<std::size_t>(a_.blocks[start / kBlockTokens + 1]) * a_.block_bytes +
                   a_.key_offset
             : keys;
    for (int half = 0; half * kPanel < most_visible; ++half) {
      const std::size_t at = static_cast<std::size_t>(half) * key_panel;
      with_panel(keys + at, a_.head_dim, values + at, [&](auto&& multiply) {
        for (int row = 0; row < rows_; row += V::kTileRows) {
          multiply(TileArgs{.x = q_ + row * width_,
                            .ldx = static_cast<std::size_t>(width_),
                            .inputs = a_.head_dim,
                            .rows = rows_of_tile(row),
                            .c = scores_ + row * kBlockTokens + half * kPanel,
                            .ldc = kBlockTokens,
                            .accumulate = false});
        }
      });
    }
    for (int row = 0; row < rows_; ++row) {
      const int count = visible(row, start);
      if (count == 0) {
        __builtin_memset(P_ + row * kBlockTokens, 0, kBlockTokens * sizeof(Op));
        continue;
      }
      softmax_tile<V, T>(scores_ + row * kBlockTokens, P_ + row * kBlockTokens, start == 0 ? a_.first : 0,
                         count, a_.scale, scales(keys), scales(values), m_[row], l_[row], o_ + row * width_,
                         width_);
    }
    for (int p = 0; p * kPanel < width_; ++p) {
      const std::size_t at = static_cast<std::size_t>(p) * value_panel;
      const bool hides = plain && start == 0 && a_.first > 0;
      with_panel(hides ? without_first(values + at, value_panel) : values + at, most_visible, next + at,
                 [&](auto&& multiply) {
                   for (int row = 0; row < rows_; row += V::kTileRows) {
                     const int rows = rows_of_tile(row), end = row + rows < rows_ ? row + rows : rows_;
                     const int count = visible(end - 1, start);
                     if (count == 0) continue;
                     multiply(TileArgs{.x = P_ + row * kBlockTokens,
                                       .ldx = kBlockTokens,
                                       .inputs = count,
                                       .rows = rows,
                                       .c = o_ + row * width_ + p * kPanel,
                                       .ldc = static_cast<std::size_t>(width_),
                                       .accumulate = true});
                   }
                 });
    }
  }

  /// Writes the span's result to the partial, or merges it into the row's; `first`: there is nothing yet.
  void end_span(int row, bool first) {
    const float* o = o_ + row * width_;
    if (a_.partial != nullptr) {
      float* to = a_.partial + row * partial_floats(a_.head_dim);
      to[0] = m_[row];
      to[1] = l_[row];
      __builtin_memcpy(to + kValuesOffset, o, sizeof(float) * static_cast<std::size_t>(width_));
    } else if (first) {
      M_[row] = m_[row];
      L_[row] = l_[row];
      __builtin_memcpy(O_ + row * width_, o, sizeof(float) * static_cast<std::size_t>(width_));
    } else {
      merge_span<V>(M_[row], L_[row], O_ + row * width_, m_[row], l_[row], o, width_);
    }
  }

  const AttendArgs& a_;
  const int rows_;
  const int computed_rows_;
  const int width_;
  Op* q_;
  float* scores_;
  float* o_;
  float* O_;
  Op* P_;
  float* panel_;  // expanded codes
  // Lower case: the current span; upper case: the spans merged so far.
  float m_[kAttendRows], l_[kAttendRows], M_[kAttendRows], L_[kAttendRows];
};

template <class V, DType T>
void attend(const AttendArgs& a) {
  Attend<V, T>(a).run();
}

template <class V, DType T>
void merge(void* out, const float* partials, std::size_t stride, int spans, int head_dim) {
  const int width = padded(head_dim);
  float O[256];
  float M = partials[0];
  float L = partials[1];
  __builtin_memcpy(O, partials + kValuesOffset, sizeof(float) * static_cast<std::size_t>(width));
  for (int s = 1; s < spans; ++s) {
    const float* next = partials + static_cast<std::size_t>(s) * stride;
    merge_span<V>(M, L, O, next[0], next[1], next + kValuesOffset, width);
  }
  finish_row<V, T>(out, L, O, head_dim);
}

}  // namespace troupe::kernels
