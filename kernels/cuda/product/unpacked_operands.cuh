#pragma once
// A thread's codes of a piece as operands A of wgmma: see unpacked_product.cuh.
//
// A slot of x has four quarters: two products each, with one of the two operands A, d[quarter % 2]. A thread
// has four rows of a piece: (m, lower) is row 16 m + 8 lower of its warp's 32, plus lane / 4. Of a product
// lane t of four has inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of the 16 at which x_at() points.
#include <cstdint>

#include "kernels/cuda/product/unpacked_shape.cuh"

namespace troupe::kernels::cuda {

/// Calls function(m, lower) for the thread's four rows.
template <class Function>
__device__ __forceinline__ void for_each_row(Function&& function) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) function(m, lower);
  }
}
template <class T>
__device__ __forceinline__ T load_shared(std::uint32_t from) {
  return *static_cast<const T*>(__cvta_shared_to_generic(from));
}
/// Bytes of a piece from the thread's first row to the row (m, lower).
constexpr int piece_row(int m, int lower) { return (m * 16 + lower * 8) * kUnpackedPieceBytes; }

/// Interleaved x: the 16 bytes of a lane are its operands.
template <class Codes>
class InterleavedOperands {
 public:
  static constexpr int kLaneBytes = 16;  ///< of a piece, from a lane's codes to those of the next lane

  /// `output` is the thread's first.
  __device__ __forceinline__ InterleavedOperands(const UnpackedProduct&, const ProductTile&, int) {}
  /// `piece`: the address of the thread's first row in it.
  __device__ __forceinline__ void enter_piece(std::uint32_t piece) {
    const std::uint32_t from = piece + threadIdx.x % 4 * kLaneBytes;
    for_each_row([&](int m, int lower) { of_[m][lower] = ptx::load_shared_16(from + piece_row(m, lower)); });
  }
  /// Moves on to the codes of the piece's next slot.
  __device__ __forceinline__ void next_slot() {
    for_each_row([&](int m, int lower) {
      of_[m][lower].x = of_[m][lower].z;
      of_[m][lower].y = of_[m][lower].w;
    });
  }
  /// Before the operands of a slot; `step` counts the slots of the row.
  __device__ __forceinline__ void enter_slot(int) {}
  /// The operands of the two products of a quarter.
  __device__ __forceinline__ void operands(int quarter, std::uint32_t (&a)[2][4]) {
    const int m = quarter % 2, half = quarter / 2;
    fill(a, Codes::operand(of_[m][0], half), Codes::operand(of_[m][1], half));
  }
  /// Bytes of a row of the slot from which product i of the quarter multiplies.
  __device__ static constexpr int x_at(int quarter, int i) { return 64 * (quarter / 2) + 32 * i; }

  __device__ __forceinline__ static void fill(std::uint32_t (&a)[2][4], uint4 upper, uint4 lower) {
    a[0][0] = upper.x, a[0][1] = lower.x, a[0][2] = upper.y, a[0][3] = lower.y;
    a[1][0] = upper.z, a[1][1] = lower.z, a[1][2] = upper.w, a[1][3] = lower.w;
  }

 private:
  uint4 of_[2][2];
};

/// The same of wint2, with the lines of the rows and the scales of a slot. The 64 inputs of a slot share a
/// scale; the bytes with two slots' scales are loaded while the two slots before are multiplied.
template <>
class InterleavedOperands<Wint2Codes> {
 public:
  __device__ __forceinline__ InterleavedOperands(const UnpackedProduct& product, const ProductTile& tile,
                                                 int output)
      : product_(product), output_(output) {
    const char* group = product.codes + static_cast<std::size_t>(tile.group) * product.group_bytes;
    const auto* floats = reinterpret_cast<const float*>(group + product.scales_at);
    groups_ = reinterpret_cast<const std::uint8_t*>(group + product.groups_at);
    for_each_row([&](int m, int lower) {
      lines_[m][lower] = Wint2Codes::Line(floats, product.outputs, row(m, lower));
    });
    load_scales();
  }
  __device__ __forceinline__ void enter_piece(std::uint32_t piece) {
    const std::uint32_t from = piece + threadIdx.x % 4 * (kWint2PieceBytes / 4);
    for_each_row([&](int m, int lower) {
      const std::uint32_t at = from + piece_row(m, lower);
      const uint2 low = load_shared<uint2>(at), high = load_shared<uint2>(at + kWint2PieceBytes);
      of_[m][lower] = make_uint4(low.x, low.y, high.x, high.y);
    });
  }
  __device__ __forceinline__ void next_slot() {
    for_each_row([&](int m, int lower) {
      of_[m][lower] = make_uint4(of_[m][lower].y, of_[m][lower].z, of_[m][lower].w, 0);
    });
  }
  __device__ __forceinline__ void enter_slot(int step) {
    if (step % 2 == 0) {
      both_ = ahead_[0][0] | ahead_[0][1] << 8 | ahead_[1][0] << 16 | ahead_[1][1] << 24;
      if ((step + 2) * kBytesOfSlot < product_.row_bytes) load_scales();
    }
    for_each_row([&](int m, int lower) {
      scales_[m][lower] = Wint2Codes::Scale(both_ >> (16 * m + 8 * lower + (step % 2 == 0 ? 4 : 0)));
    });
  }
  __device__ __forceinline__ void operands(int quarter, std::uint32_t (&a)[2][4]) {
    const int m = quarter % 2, half = quarter / 2;
    InterleavedOperands<Int4Codes>::fill(a, Wint2Codes::operand(of_[m][0], half, lines_[m][0], scales_[m][0]),
                                         Wint2Codes::operand(of_[m][1], half, lines_[m][1], scales_[m][1]));
  }
  __device__ static constexpr int x_at(int quarter, int i) { return 64 * (quarter / 2) + 32 * i; }

 private:
  static constexpr int kBytesOfSlot = kWint2Group / kWint2Inputs;

  __device__ __forceinline__ int row(int m, int lower) const {
    return min(output_ + m * 16 + lower * 8, product_.outputs - 1);
  }
  __device__ __forceinline__ void load_scales() {
    for_each_row([&](int m, int lower) { ahead_[m][lower] = __ldg(groups_ + row(m, lower)); });
    groups_ += product_.outputs;
  }

  const UnpackedProduct& product_;
  const int output_;  // the thread's first
  uint4 of_[2][2];
  Wint2Codes::Line lines_[2][2];
  Wint2Codes::Scale scales_[2][2];
  std::uint32_t both_ = 0;      // a byte of each row: the scales of two slots, one of which is this one
  std::uint32_t ahead_[2][2];   // of the next two
  const std::uint8_t* groups_;  // the line of scales that is loaded next
};

/// Scales of groups of a thread's four rows, for the two blocks of 32 inputs of a slot. Those of the next
/// slot are requested while this one is multiplied.
class ScalesOfGroups {
 public:
  __device__ __forceinline__ ScalesOfGroups(const UnpackedProduct& product, const ProductTile& tile,
                                            int output)
      : product_(product),
        scales_(reinterpret_cast<const std::uint16_t*>(
                    product.codes + static_cast<std::size_t>(tile.group) * product.group_bytes +
                    product.scales_at) +
                min(output, product.outputs - 32 + static_cast<int>(threadIdx.x) % 32 / 4)),
        steps_(2 * product.row_bytes / kUnpackedPieceBytes) {
    load(0);
  }
  __device__ __forceinline__ void enter_slot(int step) {
    for_each_row(
        [&](int m, int lower) { both_[m][lower] = ahead_[0][m][lower] | ahead_[1][m][lower] << 16; });
    if (step + 1 < steps_) load(step + 1);
  }
  /// A pair of codes times the scale of its block.
  __device__ __forceinline__ std::uint32_t scaled(std::uint32_t pair, int m, int lower, int block) const {
    return multiply_pairs(pair, __byte_perm(both_[m][lower], 0, block == 0 ? 0x1010 : 0x3232));
  }

 private:
  __device__ __forceinline__ void load(int step) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int group = min((2 * step + block) >> product_.group_shift, product_.last_group);
      const std::uint16_t* from =
          scales_ + static_cast<std::size_t>(group) * static_cast<std::size_t>(product_.outputs);
      for_each_row([&](int m, int lower) { ahead_[block][m][lower] = __ldg(from + (m * 16 + lower * 8)); });
    }
  }

  const UnpackedProduct& product_;
  const std::uint16_t* scales_;  // of the thread's first row
  const int steps_;
  std::uint32_t both_[2][2], ahead_[2][2][2];
};
/// Groups, with natural x: a lane has one pair of each eight inputs, and so reads the codes of all eight, as
/// do the three lanes beside it. A piece is swizzled by 64 bytes: chunk c of 16 bytes of row r lies at c ^ (r
/// / 2 % 4), so that eight rows' reads hit different banks. A quarter is 16 of the 32 inputs of both blocks
/// of a slot.
class NaturalOperands {
 public:
  __device__ __forceinline__ NaturalOperands(const UnpackedProduct& product, const ProductTile& tile,
                                             int output)
      : scales_(product, tile, output) {}
  __device__ __forceinline__ void enter_piece(std::uint32_t piece) {
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (std::uint32_t c = 0; c < 4; ++c) chunks_[c] = piece + ((c ^ (lane / 8)) * 16);
  }
  __device__ __forceinline__ void next_slot() {
#pragma unroll
    for (int c = 0; c < 4; ++c) chunks_[c] += 8;
  }
  __device__ __forceinline__ void enter_slot(int step) {
    scales_.enter_slot(step);
    load(0);
  }
  __device__ __forceinline__ void operands(int quarter, std::uint32_t (&a)[2][4]) {
    const int m = quarter % 2;
    const std::uint32_t shift = threadIdx.x % 4 * 4;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int lower = i % 2;
        a[block][i] = scales_.scaled(Int4Codes::pair(words_[lower][i / 2][block] >> shift), m, lower, block);
      }
    }
    if (quarter < 3) load(quarter + 1);
  }
  __device__ static constexpr int x_at(int quarter, int i) { return 64 * i + 32 * (quarter / 2); }

 private:
  /// The words of a quarter, ahead of its operands.
  __device__ __forceinline__ void load(int quarter) {
    const int m = quarter % 2;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t from = chunks_[quarter / 2 * 2 + i] + piece_row(m, lower);
        const uint2 both = load_shared<uint2>(from);
        words_[lower][i][0] = both.x;
        words_[lower][i][1] = both.y;
      }
    }
  }

  std::uint32_t chunks_[4];       // addresses of the slot's codes in the four chunks of the first row
  std::uint32_t words_[2][2][2];  // [lower][chunk of two][block]
  ScalesOfGroups scales_;
};

template <class Kind>
using UnpackedOperands =
    std::conditional_t<Kind::Codes::kGroupScales, NaturalOperands, InterleavedOperands<typename Kind::Codes>>;

}  // namespace troupe::kernels::cuda
