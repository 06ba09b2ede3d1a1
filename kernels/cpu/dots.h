#pragma once
// Dot products of unsigned codes of weights with signed codes of x, over 32 inputs, in the two ways that
// x86-64 offers. A `Sum` is what a lane's sum is kept in meanwhile: from start() over some add()s to
// finish().
#include <cstdint>
#include <type_traits>

#include "kernels/weight_format.h"

namespace troupe::kernels {

/// With V::dot_bytes, which adds four products of bytes to each 32-bit lane.
template <class V, WeightKind K>
struct ByteDots {
  using Bytes = typename V::Bytes;
  static constexpr int kParts = K == WeightKind::int4 ? 2 : 1;  // of 4 inputs
  using Sum = Bytes;
  struct Codes {
    Bytes part[kParts];
  };
  struct Operand {
    Bytes part[kParts];
  };

  static Sum start(std::int32_t correction) { return V::set1_int(correction); }
  static Codes load(const std::uint8_t* p) {
    if constexpr (K == WeightKind::int4) {
      const Bytes both = V::load_bytes(p);
      return {V::low_halves(both), V::high_halves(both)};
    } else {
      return {V::load_bytes(p)};
    }
  }
  static Codes of(Bytes windows) { return {windows}; }
  static Operand broadcast(const std::int8_t* x) {
    Operand operand;
    for (int i = 0; i < kParts; ++i) operand.part[i] = V::broadcast_bytes(x + 4 * i);
    return operand;
  }
  static void add(Sum& sum, const Codes& codes, const Operand& operand) {
    for (int i = 0; i < kParts; ++i) sum = V::dot_bytes(sum, codes.part[i], operand.part[i]);
  }
  static typename V::F finish(Sum sum, std::int32_t) { return V::to_float(sum); }
};

/// With V::multiply_pairs, which adds two products of bytes to 16 bits. Products with a whole byte would
/// overflow them, and with half a byte 16 do not: 16 * 15 * 127 < 32768. So an int8 code is multiplied as two
/// halves.
template <class V, WeightKind K>
struct HalfByteDots {
  using Bytes = typename V::Bytes;
  static constexpr int kParts = K == WeightKind::int4 ? 2 : 1;
  static constexpr int kSums = K == WeightKind::int4 ? 1 : 2;
  struct Sum {
    Bytes half[kSums];  // of 16-bit lanes
  };
  struct Codes {
    Bytes low, high;
  };
  struct Operand {
    Bytes part[kParts];
  };

  static Sum start(std::int32_t) {
    Sum sum;
    for (Bytes& half : sum.half) half = V::set1_int(0);
    return sum;
  }
  static Codes load(const std::uint8_t* p) {
    const Bytes both = V::load_bytes(p);
    return {V::low_halves(both), V::high_halves(both)};
  }
  static Operand broadcast(const std::int8_t* x) {
    Operand operand;
    for (int i = 0; i < kParts; ++i) operand.part[i] = V::broadcast_bytes(x + 4 * i);
    return operand;
  }
  static void add(Sum& sum, const Codes& codes, const Operand& operand) {
    sum.half[0] = V::add_16(sum.half[0], V::multiply_pairs(codes.low, operand.part[0]));
    Bytes& high = sum.half[kSums - 1];
    high = V::add_16(high, V::multiply_pairs(codes.high, operand.part[kParts - 1]));
  }
  static typename V::F finish(const Sum& sum, std::int32_t correction) {
    Bytes total = V::add_32(V::sum_pairs(sum.half[0]), V::set1_int(correction));
    if constexpr (K == WeightKind::int8) total = V::add_32(total, V::times_16(V::sum_pairs(sum.half[1])));
    return V::to_float(total);
  }
};

/// The same of wint2's windows. Two products fit in 16 bits, 2 * 63 * 127 < 32768; sums need 32.
template <class V>
struct WindowDots {
  using Bytes = typename V::Bytes;
  using Sum = Bytes;
  using Codes = Bytes;
  using Operand = Bytes;

  static Sum start(std::int32_t correction) { return V::set1_int(correction); }
  static Codes load(const std::uint8_t* p) { return V::load_bytes(p); }
  static Codes of(Bytes windows) { return windows; }
  static Operand broadcast(const std::int8_t* x) { return V::broadcast_bytes(x); }
  static void add(Sum& sum, Codes codes, Operand operand) {
    sum = V::add_32(sum, V::sum_pairs(V::multiply_pairs(codes, operand)));
  }
  static typename V::F finish(Sum sum, std::int32_t) { return V::to_float(sum); }
};

/// For V without dot_bytes.
template <class V, WeightKind K>
using PairDots = std::conditional_t<K == WeightKind::wint2, WindowDots<V>, HalfByteDots<V, K>>;

}  // namespace troupe::kernels
