#pragma once
// What the kernel of unpacked codes is given, and its two rings in shared memory: see unpacked_product.cuh.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/unpacked.h"
#include "kernels/cuda/product/wgmma_product.cuh"

namespace troupe::kernels::cuda {

struct UnpackedProduct {
  const std::int32_t* offsets = nullptr;
  const std::int32_t* gather = nullptr;
  int groups = 1;
  const void* x = nullptr;
  int row_chunks = 0;  // 16-byte pieces of a row of x
  const char* codes = nullptr;
  std::size_t group_bytes = 0;  // from a group's codes to the next
  std::size_t scales_at = 0;    // bytes from a group's codes to its scales
  std::size_t groups_at = 0;    // wint2: to its scales of groups
  int row_bytes = 0;            // of codes
  int outputs = 0;              // padded
  // Scales of groups of int4:
  int group_shift = 0;  // a group is 32 << group_shift inputs
  int last_group = 0;
  Ending ending = Ending::swiglu;
  Bf16* out = nullptr;
  std::size_t stride = 0;        // elements of a row of out
  const float* scale = nullptr;  // (rows), store_scaled; swiglu of int8
  bool interleaves_out = false;  // swiglu
};

/// How a kernel runs. KindCodes: a type of codes.cuh.
template <class KindCodes>
struct UnpackedKind {
  using Codes = KindCodes;
  static constexpr bool kInt8 = std::is_same_v<Codes, Int4BesideInt8>;
  using Sum = std::conditional_t<kInt8, int, float>;
  /// A thread's sums: of both operands A, as wgmma leaves them.
  using Sums = Sum[2][kUnpackedRows / 2];

  /// Slots of x that a piece of codes covers.
  static constexpr int kSlotsOfPiece = Codes::kOperands / (kInt8 ? 4 : 2);
  static constexpr int kRows = kUnpackedRows;
  static constexpr int kColumns = kUnpackedOutputs;
  static constexpr int kWarpgroupColumns = kColumns / 2;
  static constexpr int kSlotBytes = kRows * kRowBytes;
  /// Of one warpgroup's outputs.
  static constexpr int kPieceBytes = kWarpgroupColumns * kUnpackedPieceBytes;
  static constexpr int kSlots = kSlotsOfPiece == 1 ? 8 : 10, kPieces = kSlotsOfPiece == 1 ? 6 : 4;
  static constexpr int kSharedBytes = kSlots * kSlotBytes + 2 * kPieces * kPieceBytes + 1024;
  static constexpr int kFlying = 6;  ///< slots whose gathered rows are in flight, at most
  /// Slots by which the second warpgroup stays behind the first, so that the products of one run while the
  /// other ends its tile. With gathered rows one loop fills all rings, and must not wait for the second's.
  static constexpr int kLag = kSlots / 2;
  static constexpr int kGatheredLag = kLag < kPieces * kSlotsOfPiece - 3 ? kLag : kPieces * kSlotsOfPiece - 3;
  using Walk = TileWalk<kRows, kColumns>;

  static constexpr bool kReadsFewer = true;
  /// Rows of x that the products of a tile with so many rows read: 32, 64 or 128.
  __device__ static constexpr int rows_read(int rows) { return rows <= 32 ? 32 : rows <= 64 ? 64 : kRows; }
};

template <class Kind>
struct UnpackedShared {
  std::byte* slots;
  ptx::Barrier* full;  ///< of slots of x
  ptx::Barrier* empty;
  ptx::Barrier* codes_full;  ///< of pieces of codes: kPieces of the first warpgroup, then the second's
  ptx::Barrier* codes_empty;
  __device__ std::byte* x(int slot) const { return slots + slot * Kind::kSlotBytes; }
  __device__ std::byte* codes(int warpgroup, int piece) const {
    return x(Kind::kSlots) + (warpgroup * Kind::kPieces + piece) * Kind::kPieceBytes;
  }
};

/// Slots of a row.
template <class Kind>
__device__ __forceinline__ int slots_of_row(const UnpackedProduct& product) {
  return product.row_bytes / (kUnpackedPieceBytes / Kind::kSlotsOfPiece);
}

template <class Kind>
__device__ __forceinline__ typename Kind::Walk walk_of_tiles(const UnpackedProduct& product,
                                                             const GroupOffsets& offsets) {
  return {
      offsets, product.groups, 0, product.outputs, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

}  // namespace troupe::kernels::cuda
