#pragma once
// The inner product with quantised weights through tiles: the sums of tile_quantised.h, to the bit.
//
// 32 codes of a row share a scale, so an instruction takes 32 of the 64 that it could, and its sums are
// scaled and added on vectors: 16 rows × 16 outputs of integers go by way of memory. They do while the tiles
// of the next 32 inputs are multiplied. int4 and wint2 become bytes in a buffer first, 256 inputs at a time.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd_amx.h"
#include "kernels/cpu/wint2_words.h"

namespace troupe::kernels {

template <class Tiles, WeightKind K, bool Groups, bool Windows = false>
class TiledCodes {
 public:
  static void multiply(const TileArgs& a) { TiledCodes(a).run(); }

 private:
  using V = Amx<Tiles>;
  using F = typename V::F;
  static constexpr bool kWint2 = K == WeightKind::wint2;
  static constexpr bool kUnpacks = K == WeightKind::int4 || (kWint2 && !Windows);
  static constexpr int kGroupsAtOnce = 8;
  static constexpr std::size_t kUnpackedBytes = kDotInputs / 4 * kPanelLine;  // of a group
  static constexpr std::size_t kGroupBytes = !kUnpacks               ? kUnpackedBytes
                                             : K == WeightKind::int4 ? kUnpackedBytes / 2
                                                                     : kUnpackedBytes / 4;
  using Integers = std::int32_t[kHalfRows][kSideOutputs];

  explicit TiledCodes(const TileArgs& a) : a_(a) {}

  void run() {
    ShapesInUse<Tiles>::need(a_.rows, kDotInputs);
    const auto* panel = static_cast<const std::uint8_t*>(a_.panel);
    const int groups = a_.inputs / kDotInputs;
    alignas(64) std::uint8_t unpacked[kUnpacks ? kGroupsAtOnce * kUnpackedBytes : 1];
    for (int first = 0; first < groups; first += kGroupsAtOnce) {
      const int count = std::min(kGroupsAtOnce, groups - first);
      const std::uint8_t* codes = panel + static_cast<std::size_t>(first) * kGroupBytes;
      if constexpr (kUnpacks) {
        unpack(unpacked, codes, count);
        codes = unpacked;
      }
      for (int side = 0; side < 2; ++side) {
        multiply_half<0, kHalfRows>(codes, first, count, side, std::min(a_.rows, kHalfRows));
        if (a_.rows > kHalfRows) multiply_half<1, kHalfRows>(codes, first, count, side, a_.rows - kHalfRows);
      }
    }
  }

  void unpack(std::uint8_t* to, const std::uint8_t* from, int groups) const {
    if constexpr (kWint2) {
      wint2_windows<V>(to, from, a_.lines, groups * kDotInputs);
    } else {
      for (int line = 0; line < groups * kDotInputs / 8; ++line, from += kPanelLine, to += 2 * kPanelLine) {
        for (std::size_t at = 0; at < kPanelLine; at += 64) {
          const auto both = V::load_bytes(from + at);
          V::store_bytes(to + at, V::low_halves(both));
          V::store_bytes(to + kPanelLine + at, V::high_halves(both));
        }
      }
    }
  }

  template <int Half, int R>
  void multiply_half(const std::uint8_t* codes, int first, int groups, int side, int rows) const {
    if constexpr (R > 1) {
      if (rows < R) return multiply_half<Half, R - 1>(codes, first, groups, side, rows);
    }
    multiply_rows<Half>(codes, first, groups, side, std::make_integer_sequence<int, R>());
  }

  /// `groups` groups of 32 inputs from `first` on. Rows are a pack, since what a loop counts stays in memory:
  /// GCC keeps sums in registers if their places are constants from the start.
  template <int Half, int... Row>
  void multiply_rows(const std::uint8_t* codes, int first, int groups, int side,
                     std::integer_sequence<int, Row...>) const {
    const std::size_t half_at = Half * kHalfRows * a_.ldx;
    const auto* x = static_cast<const std::int8_t*>(a_.x) + half_at;
    const auto* shared = reinterpret_cast<const std::byte*>(a_.x_groups) + half_at;
    const std::uint8_t* const w = codes + static_cast<std::size_t>(side) * kPanelLine / 2;
    float* const c = a_.c + Half * kHalfRows * a_.ldc + side * kSideOutputs;
    const bool goes_on = a_.accumulate || first > 0;
    F sum[] = {goes_on ? V::load(c + Row * a_.ldc) : V::set1(0)...};
    alignas(64) Integers products[2];
    const auto start = [&](int g, auto buffer) {
      constexpr int kBuffer = decltype(buffer)::value;
      if constexpr (Half == 0) prefetch(first + g, side);
      Tiles::template zero_sums<Half, kBuffer>();
      Tiles::template load_operands<Half>(x + (first + g) * kDotInputs, a_.ldx);
      Tiles::template load_weights<kBuffer>(w + static_cast<std::size_t>(g) * kUnpackedBytes, kPanelLine);
      Tiles::template add_byte_products<Half, kBuffer>();
      Tiles::template store_sums<Half, kBuffer>(products[kBuffer], sizeof products[0][0]);
    };
    using Even = std::integral_constant<int, 0>;
    using Odd = std::integral_constant<int, 1>;
    start(0, Even());
    for (int g = 0; g < groups; ++g) {
      if (g + 1 < groups) g % 2 == 0 ? start(g + 1, Odd()) : start(g + 1, Even());
      const F scale_w = weights_scale(first + g, side);
      const auto* group = shared + static_cast<std::size_t>(first + g) * sizeof(OperandGroup);
      const Integers& integers = products[g % 2];
      ((sum[Row] = added(sum[Row], integers[Row], group, scale_w), group += a_.ldx), ...);
    }
    if ((!Groups || kWint2) && a_.scales != nullptr && (first + groups) * kDotInputs == a_.inputs) {
      const F scale = V::load(static_cast<const float*>(a_.scales) + side * kSideOutputs);
      ((sum[Row] = V::mul(sum[Row], scale)), ...);
    }
    (V::store(c + Row * a_.ldc, sum[Row]), ...);
  }

  /// sum + (integers + correction) * scale of x (* scale of the weights' group).
  static F added(F sum, const std::int32_t* integers, const std::byte* group, F scale_w) {
    const auto& of_row = *reinterpret_cast<const OperandGroup*>(group);
    const auto total = V::add_32(V::load_bytes(reinterpret_cast<const std::uint8_t*>(integers)),
                                 V::set1_int(of_row.correction));
    F scale = V::set1(of_row.scale);
    if constexpr (Groups) scale = V::mul(scale, scale_w);
    return V::fma(V::to_float(total), scale, sum);
  }

  /// Of the group's weights, where their groups have scales.
  F weights_scale(int g, int side) const {
    if constexpr (kWint2) {
      constexpr int kBlocks = kWint2Unit / kDotInputs;
      return V::load_halves(a_.group_scales + g / kBlocks * kPanel + side * kSideOutputs,
                            g % kBlocks < kBlocks / 2);
    } else if constexpr (Groups) {
      return V::load_bf16(static_cast<const std::uint16_t*>(a_.scales) + g * kDotInputs / a_.group * kPanel +
                          side * kSideOutputs);
    } else {
      return V::set1(0);
    }
  }

  /// Asks for every second cache line ahead that belongs to a group; the call of the other side asks for the
  /// others.
  void prefetch(int g, int side) const {
    const auto* ahead = static_cast<const char*>(a_.ahead != nullptr ? a_.ahead : a_.panel);
    const auto calls = static_cast<std::size_t>(a_.ahead_calls);
    const std::size_t lines = (kGroupBytes / 64 + calls - 1) / calls;
    for (std::size_t i = static_cast<std::size_t>(side); i < lines; i += 2)
      __builtin_prefetch(ahead + (static_cast<std::size_t>(g) * lines + i) * 64, 0, 2);
  }

  const TileArgs& a_;
};

}  // namespace troupe::kernels
