#pragma once
// The kernel of a grouped product on Hopper whose weights are codes, unpacked in registers.
//
// wgmma takes its operand A, 64 rows, from registers: here 64 outputs. Its operand B, in shared memory, is
// rows of x. So codes become bf16 once for each tile of up to 128 rows, and no expanded weight goes through
// any memory. Sums are outputs × rows of x; the ending transposes them.
//
// It is persistent: one block of three warpgroups per multiprocessor. The first fills two rings: slots of 64
// inputs of the tile's rows of x, and pieces, 64 bytes of codes of each of its outputs. The other two
// multiply 128 outputs each, as two operands A. While the products with one operand run, the next is
// unpacked.
//
// A lane's 16 bytes of a piece are inputs 8 t … 8 t + 7 of each 32 (layout.h), and a lane of A has inputs 2
// t, 2 t + 1, 2 t + 8 and 2 t + 9 of each 16. So x is interleaved: see unpacked.h.
//
// Codes beside x in int8 (Int4BesideInt8): a slot is 128 inputs, and sums are whole numbers.
//
// wint2: the 64 inputs of a slot share a scale. The bytes with two slots' scales are loaded while the two
// slots before are multiplied.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/unpacked.h"
#include "kernels/cuda/product/wgmma_product.cuh"

namespace troupe::kernels::cuda {

struct UnpackedProduct {
  const std::int32_t* offsets = nullptr;
  const std::int32_t* gather = nullptr;
  int groups = 1;
  const void* x = nullptr;  // interleaved
  int row_chunks = 0;       // 16-byte pieces of a row of x
  const char* codes = nullptr;
  std::size_t group_bytes = 0;  // from a group's codes to the next
  std::size_t scales_at = 0;    // bytes from a group's codes to its scales
  std::size_t groups_at = 0;    // wint2: to its scales of groups
  int row_bytes = 0;            // of codes
  int outputs = 0;              // padded
  Ending ending = Ending::swiglu;
  Bf16* out = nullptr;
  std::size_t stride = 0;        // elements of a row of out
  const float* scale = nullptr;  // (rows), store_scaled; swiglu of int8
  bool interleaves_out = false;  // swiglu
};

struct UnpackedShape {
  static constexpr int kRows = kUnpackedRows;
  static constexpr int kColumns = kUnpackedOutputs;
  static constexpr int kSlotBytes = kRows * kRowBytes;
  static constexpr int kPieceBytes = kColumns * kUnpackedPieceBytes;
  static constexpr int kSlots = 8, kPieces = 5;
  static constexpr int kSharedBytes = kSlots * kSlotBytes + kPieces * kPieceBytes + 1024;
  static constexpr int kFlying = 6;  ///< slots whose rows are in flight, at most
  using Walk = TileWalk<kRows, kColumns>;

  static constexpr bool kReadsFewer = true;
  /// Rows of x that the products of a tile with so many rows read: 32, 64 or 128.
  __device__ static constexpr int rows_read(int rows) { return rows <= 32 ? 32 : rows <= 64 ? 64 : kRows; }
};

struct UnpackedShared {
  std::byte* slots;
  ptx::Barrier* full;  ///< of slots of x
  ptx::Barrier* empty;
  ptx::Barrier* codes_full;  ///< of pieces of codes
  ptx::Barrier* codes_empty;
  __device__ std::byte* x(int slot) const { return slots + slot * UnpackedShape::kSlotBytes; }
  __device__ std::byte* codes(int piece) const {
    return x(UnpackedShape::kSlots) + piece * UnpackedShape::kPieceBytes;
  }
};

/// Slots that a piece covers, and a row.
template <class Codes>
inline constexpr bool kInt8 = std::is_same_v<Codes, Int4BesideInt8>;
template <class Codes>
inline constexpr int kSlotsOfPiece = Codes::kOperands / (kInt8<Codes> ? 4 : 2);
template <class Codes>
__device__ __forceinline__ int slots_of_row(const UnpackedProduct& product) {
  return product.row_bytes / (kUnpackedPieceBytes / kSlotsOfPiece<Codes>);
}

/// A thread's sums: of both operands A, as wgmma leaves them.
template <class Codes>
using UnpackedSums = std::conditional_t<kInt8<Codes>, int, float>[2][kUnpackedRows / 2];

__device__ __forceinline__ float number(float sum) { return sum; }
__device__ __forceinline__ float number(int sum) { return static_cast<float>(sum) * Int4BesideInt8::kFactor; }

/// Scales, ends and stores the sums of a tile. `output` is the thread's first. All loads are requested before
/// the first is used.
template <class Sum>
__device__ __forceinline__ void finish_unpacked(const UnpackedProduct& product, const ProductTile& tile,
                                                int output, const Sum (&d)[2][kUnpackedRows / 2]) {
  constexpr bool kWhole = std::is_same_v<Sum, int>;  // of products of int8
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const auto* scales = reinterpret_cast<const float*>(
      product.codes + static_cast<std::size_t>(tile.group) * product.group_bytes + product.scales_at);
  const int first[2] = {output - g, output - g + 64};  // of the warp's 16; outputs are a multiple of 32
  float upper[2], lower[2];                            // scales of the thread's outputs
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int o = min(first[m], product.outputs - 16) + g;
    upper[m] = __ldg(scales + o);
    lower[m] = __ldg(scales + o + 8);
  }
  // Of eight outputs × eight rows of x, given two rows of x of output g: two outputs of row g.
  const auto transposed = [](float left, float right) {
    return ptx::movmatrix_transposed(pack_two<Bf16>(left, right));
  };
  float left[kUnpackedRows / 8], right[kUnpackedRows / 8];  // scales of rows 2 t and 2 t + 1 of each eight
  if (kWhole || product.ending == Ending::store_scaled) {
#pragma unroll
    for (int j = 0; j < kUnpackedRows / 8; ++j) {
      const int p = tile.row + 8 * j + 2 * t;
      left[j] = p < tile.end ? __ldcg(product.scale + p) : 0.0f;
      right[j] = p + 1 < tile.end ? __ldcg(product.scale + p + 1) : 0.0f;
    }
  }
  if (product.ending == Ending::swiglu) {
    const auto activated = [&](float gate, float up, float scale) {
      if constexpr (!kWhole) return silu_times(gate, up);
      const auto rounded = [&](float sum) { return to_float(from_float<Bf16>(scale * sum)); };
      return silu_times(rounded(gate), rounded(up));
    };
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (first[m] >= product.outputs) break;
      const int column = first[m] / 2;
      const int of_lane =
          product.interleaves_out ? column / 32 * 32 + 8 * t + column / 8 % 4 * 2 : column + 2 * t;
#pragma unroll
      for (int j = 0; j < kUnpackedRows / 8; ++j) {
        if (tile.row + 8 * j >= tile.end) break;
        const Sum* s = d[m] + 4 * j;  // gate and gate, up and up
        const std::uint32_t two =
            transposed(activated(number(s[0]) * upper[m], number(s[2]) * lower[m], left[j]),
                       activated(number(s[1]) * upper[m], number(s[3]) * lower[m], right[j]));
        const int p = tile.row + 8 * j + g;
        if (p >= tile.end) continue;
        Bf16* row = product.out + static_cast<std::size_t>(p) * product.stride;
        *reinterpret_cast<std::uint32_t*>(row + of_lane) = two;
      }
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    if (first[m] >= product.outputs) break;
#pragma unroll
    for (int j = 0; j < kUnpackedRows / 8; ++j) {
      if (tile.row + 8 * j >= tile.end) break;
      const Sum* s = d[m] + 4 * j;
      const std::uint32_t low =
          transposed(left[j] * (number(s[0]) * upper[m]), right[j] * (number(s[1]) * upper[m]));
      const std::uint32_t high =
          transposed(left[j] * (number(s[2]) * lower[m]), right[j] * (number(s[3]) * lower[m]));
      const int p = tile.row + 8 * j + g;
      if (p >= tile.end) continue;
      Bf16* row = product.out + static_cast<std::size_t>(p) * product.stride + first[m] + 2 * t;
      *reinterpret_cast<std::uint32_t*>(row) = low;
      *reinterpret_cast<std::uint32_t*>(row + 8) = high;
    }
  }
}

/// Calls function(m, lower) for rows g (lower: 0) and g + 8 (1) of both operands A.
template <class Function>
__device__ __forceinline__ void for_each_row(Function&& function) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) function(m, lower);
  }
}

/// A thread's codes of a piece, of its four rows.
template <class Codes>
struct CodesOfLane {
  static constexpr int kLaneBytes = 16;  ///< of a piece, from a lane's codes to those of the next lane
  uint4 of[2][2];

  /// `output` is the thread's first.
  __device__ __forceinline__ CodesOfLane(const UnpackedProduct&, const ProductTile&, int) {}
  /// Before the codes of a slot are read; `step` counts the slots of the row.
  __device__ __forceinline__ void enter_slot(int) {}
  __device__ __forceinline__ void load(std::uint32_t from) {
    for_each_row([&](int m, int lower) {
      of[m][lower] = ptx::load_shared_16(from + (m * 64 + lower * 8) * kUnpackedPieceBytes);
    });
  }
  /// Moves on to the codes of the next slot.
  __device__ __forceinline__ void next_slot() {
    for_each_row([&](int m, int lower) {
      of[m][lower].x = of[m][lower].z;
      of[m][lower].y = of[m][lower].w;
    });
  }
  __device__ __forceinline__ uint4 operand(int m, int lower, int half) const {
    return Codes::operand(of[m][lower], half);
  }
};

/// The same of wint2, with the lines of the rows and the scales of a slot.
template <>
struct CodesOfLane<Wint2Codes> {
  static constexpr int kLaneBytes = kWint2PieceBytes / 4;
  const UnpackedProduct& product;
  const int output;  ///< the thread's first
  uint4 of[2][2];
  Wint2Codes::Line lines[2][2];
  Wint2Codes::Scale scales[2][2];
  std::uint32_t both = 0;      ///< a byte of each row: the scales of two slots, one of which is this one
  std::uint32_t ahead[2][2];   ///< of the next two
  const std::uint8_t* groups;  ///< the line of scales that is loaded next

  __device__ __forceinline__ CodesOfLane(const UnpackedProduct& product, const ProductTile& tile, int output)
      : product(product), output(output) {
    const char* group = product.codes + static_cast<std::size_t>(tile.group) * product.group_bytes;
    const auto* floats = reinterpret_cast<const float*>(group + product.scales_at);
    groups = reinterpret_cast<const std::uint8_t*>(group + product.groups_at);
    for_each_row([&](int m, int lower) {
      lines[m][lower] = Wint2Codes::Line(floats, product.outputs, row(m, lower));
    });
    load_scales();
  }
  __device__ __forceinline__ void enter_slot(int step) {
    if (step % 2 == 0) {
      both = ahead[0][0] | ahead[0][1] << 8 | ahead[1][0] << 16 | ahead[1][1] << 24;
      if ((step + 2) * kBytesOfSlot < product.row_bytes) load_scales();
    }
    for_each_row([&](int m, int lower) {
      scales[m][lower] = Wint2Codes::Scale(both >> (16 * m + 8 * lower + (step % 2 == 0 ? 4 : 0)));
    });
  }
  __device__ __forceinline__ void load(std::uint32_t from) {
    for_each_row([&](int m, int lower) {
      const std::uint32_t at = from + (m * 64 + lower * 8) * kUnpackedPieceBytes;
      const uint2 low = load_eight(at), high = load_eight(at + kWint2PieceBytes);
      of[m][lower] = make_uint4(low.x, low.y, high.x, high.y);
    });
  }
  __device__ __forceinline__ void next_slot() {
    for_each_row([&](int m, int lower) {
      of[m][lower] = make_uint4(of[m][lower].y, of[m][lower].z, of[m][lower].w, 0);
    });
  }
  __device__ __forceinline__ uint4 operand(int m, int lower, int half) const {
    return Wint2Codes::operand(of[m][lower], half, lines[m][lower], scales[m][lower]);
  }

 private:
  __device__ __forceinline__ static uint2 load_eight(std::uint32_t at) {
    return *static_cast<const uint2*>(__cvta_shared_to_generic(at));
  }
  static constexpr int kBytesOfSlot = kWint2Group / kWint2Inputs;

  __device__ __forceinline__ int row(int m, int lower) const {
    return min(output + m * 64 + lower * 8, product.outputs - 1);
  }
  __device__ __forceinline__ void load_scales() {
    for_each_row([&](int m, int lower) { ahead[m][lower] = __ldg(groups + row(m, lower)); });
    groups += product.outputs;
  }
};

/// Adds the products of a slot with the first kN rows of x. All but the last two of them are complete then,
/// and so are those of the slot before, which is given back.
template <class Codes, int kN>
__device__ __forceinline__ void multiply_slot(const UnpackedShared& shared, const CodesOfLane<Codes>& codes,
                                              std::uint64_t x, bool first, int previous,
                                              UnpackedSums<Codes>& d) {
  using Sum = std::remove_reference_t<decltype(d[0][0])>;
  const auto multiply = [](Sum(&sums)[kN / 2], const std::uint32_t(&a)[4], std::uint64_t b, bool add) {
    if constexpr (kInt8<Codes>)
      ptx::wgmma<kN>(sums, a, b, add);
    else
      ptx::wgmma<Bf16, kN>(sums, a, b, add);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint4 upper = codes.operand(m, 0, half), lower = codes.operand(m, 1, half);
      std::uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
      // Operands that are computed after the fence make the assembler wait for each product.
#pragma unroll
      for (int i = 0; i < 8; ++i) ptx::materialize(a[i / 4][i % 4]);
      auto& sums = reinterpret_cast<Sum(&)[kN / 2]>(d[m]);
      ptx::wgmma_fence();
      multiply(sums, a[0], ptx::advanced(x, 64 * half), !first || half > 0);
      multiply(sums, a[1], ptx::advanced(x, 64 * half + 32), true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (half == 0 && m == 0 && !first && threadIdx.x % 32 == 0)
        ptx::mbarrier_arrive(&shared.empty[previous]);
    }
  }
}

/// Where a warpgroup is in the rings, and where they begin: the first slot, the thread's codes of the first
/// piece.
struct UnpackedTurns {
  std::uint32_t x, codes;
  Ring<UnpackedShape::kSlots> slots{};
  Ring<UnpackedShape::kPieces> pieces{};
};

/// Multiplies and ends a tile. `output` is the thread's first.
template <class Codes>
__device__ __forceinline__ void multiply_tile(const UnpackedProduct& product, const UnpackedShared& shared,
                                              const ProductTile& tile, int output, UnpackedTurns& turns) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const int rows = UnpackedShape::rows_read(tile.end - tile.row), steps = slots_of_row<Codes>(product);
  UnpackedSums<Codes> d;
  CodesOfLane<Codes> codes(product, tile, output);
  int previous = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    if (step % kSlotsOfPiece<Codes> == 0) {
      ptx::mbarrier_wait(&shared.codes_full[turns.pieces.slot], turns.pieces.parity);
      codes.load(turns.codes + turns.pieces.slot * UnpackedShape::kPieceBytes);
    } else {
      codes.next_slot();
    }
    codes.enter_slot(step);
    const int slot = turns.slots.slot;
    ptx::mbarrier_wait(&shared.full[slot], turns.slots.parity);
    const std::uint64_t x = ptx::swizzled_operand(turns.x + slot * UnpackedShape::kSlotBytes);
    if (rows == 32) {
      multiply_slot<Codes, 32>(shared, codes, x, step == 0, previous, d);
    } else if (rows == 64) {
      multiply_slot<Codes, 64>(shared, codes, x, step == 0, previous, d);
    } else {
      multiply_slot<Codes, UnpackedShape::kRows>(shared, codes, x, step == 0, previous, d);
    }
    if ((step + 1) % kSlotsOfPiece<Codes> == 0 || step + 1 == steps) {
      if (first_lane) ptx::mbarrier_arrive(&shared.codes_empty[turns.pieces.slot]);
      turns.pieces.next();
    }
    previous = slot;
    turns.slots.next();
  }
  ptx::wgmma_wait<0>();
  if (first_lane) ptx::mbarrier_arrive(&shared.empty[previous]);
  finish_unpacked(product, tile, output, d);
}

__device__ __forceinline__ UnpackedShape::Walk walk_of(const UnpackedProduct& product,
                                                       const GroupOffsets& offsets) {
  return {
      offsets, product.groups, 0, product.outputs, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

template <class Codes>
__device__ __forceinline__ void multiply_tiles(const UnpackedProduct& product, const UnpackedShared& shared,
                                               std::int32_t* offset_copies) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int output = thread / 128 * 128 + thread % 128 / 32 * 16 + thread % 32 / 4;
  wait_for_previous();
  let_next_start();  // not earlier: it holds the next kernel (Groups::settled)
  auto walk = walk_of(product, copy_offsets(product, offset_copies));
  UnpackedTurns turns{ptx::shared_address(shared.x(0)),
                      ptx::shared_address(shared.codes(0)) +
                          static_cast<std::uint32_t>(output * kUnpackedPieceBytes +
                                                     thread % 4 * CodesOfLane<Codes>::kLaneBytes)};
  for (ProductTile tile; walk.next(tile);)
    multiply_tile<Codes>(product, shared, tile, tile.column + output, turns);
}

/// A warpgroup fills both rings: rows of x itself, codes through the copy engine.
template <class Codes>
__device__ __forceinline__ void fetch_tiles(const UnpackedProduct& product, const UnpackedShared& shared,
                                            const CUtensorMap* codes_map) {
  const int steps = slots_of_row<Codes>(product);
  wait_for_previous();
  auto walk = walk_of(product, {product.offsets});
  RowsOfTile<UnpackedShape, UnpackedProduct> rows{product};
  FlyingSteps<UnpackedShape::kSlots, UnpackedShape::kFlying> flying{shared.full};
  Ring<UnpackedShape::kSlots> slots;
  Ring<UnpackedShape::kPieces> pieces;
  for (ProductTile tile; walk.next(tile);) {
    rows.enter(tile);
    for (int step = 0; step < steps; ++step, slots.next()) {
      if (step % kSlotsOfPiece<Codes> == 0) {
        ptx::Barrier* full = &shared.codes_full[pieces.slot];
        flying.land_until(&shared.codes_empty[pieces.slot], pieces.parity ^ 1);
        if (threadIdx.x == 0) {
          ptx::mbarrier_arrive_expect(full, UnpackedShape::kPieceBytes);
          ptx::bulk_copy_box(shared.codes(pieces.slot), codes_map, full,
                             step / kSlotsOfPiece<Codes> * (kUnpackedPieceBytes / 2), tile.column,
                             tile.group);
        }
        pieces.next();
      }
      flying.land_until(&shared.empty[slots.slot], slots.parity ^ 1);
      rows.fetch(shared.x(slots.slot), step);
      flying.add();
    }
  }
  flying.land_all();
}

template <class Codes>
__global__ void __launch_bounds__(kThreads, 1)
    unpacked_kernel(const __grid_constant__ CUtensorMap codes_map,
                    const __grid_constant__ UnpackedProduct product) {
  extern __shared__ std::byte dynamic[];
  __shared__ ptx::Barrier full[UnpackedShape::kSlots], empty[UnpackedShape::kSlots];
  __shared__ ptx::Barrier codes_full[UnpackedShape::kPieces], codes_empty[UnpackedShape::kPieces];
  __shared__ std::int32_t offset_copies[kCopiedOffsets];
  const UnpackedShared shared{dynamic + (1024 - ptx::shared_address(dynamic) % 1024) % 1024, full, empty,
                              codes_full, codes_empty};
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&codes_map);
    for (int i = 0; i < UnpackedShape::kSlots; ++i) {
      ptx::mbarrier_init(&full[i], 4);   // a warp that fetches, of each
      ptx::mbarrier_init(&empty[i], 8);  // a warp that multiplies, of each
    }
    for (int i = 0; i < UnpackedShape::kPieces; ++i) {
      ptx::mbarrier_init(&codes_full[i], 1);
      ptx::mbarrier_init(&codes_empty[i], 8);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::lower_registers<40>();
    fetch_tiles<Codes>(product, shared, &codes_map);
  } else {
    ptx::raise_registers<232>();
    multiply_tiles<Codes>(product, shared, offset_copies);
  }
}

}  // namespace troupe::kernels::cuda
