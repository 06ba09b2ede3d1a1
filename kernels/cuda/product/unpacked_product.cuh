#pragma once
// The kernel of a product of experts on Hopper whose weights are codes, unpacked in registers.
//
// wgmma takes its operand A, 64 rows, from registers: here 64 outputs. Its operand B, in shared memory, is
// rows of x. So codes become bf16 once for each tile of up to 128 rows, and no expanded weight goes through
// any memory. Sums are outputs × rows of x; the endings transpose them.
//
// It is persistent: one block of three warpgroups per multiprocessor. The first fills three rings: slots of
// 64 inputs of the tile's rows of x, and for each of the other two warpgroups pieces, 64 bytes of codes of
// each of its outputs. Those multiply 128 outputs each, as two operands A. While the products with one
// operand run, the next is unpacked. The second warpgroup is some slots behind the first, so that the
// products of one run while the other ends its tile.
//
// A lane's 16 bytes of a piece are inputs 8 t … 8 t + 7 of each 32 (layout.h), and a lane of A has inputs 2
// t, 2 t + 1, 2 t + 8 and 2 t + 9 of each 16. So either x is interleaved (unpacked.h), or lanes read the
// codes of their neighbours too (unpacked_operands.cuh).
//
// Codes beside x in int8 (Int4BesideInt8): a slot is 128 inputs, and sums are whole numbers.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/product/unpacked_endings.cuh"
#include "kernels/cuda/product/unpacked_operands.cuh"
#include "kernels/cuda/product/unpacked_shape.cuh"

namespace troupe::kernels::cuda {

/// Adds the products of a slot with the first kN rows of x. All but the last two of them are complete then,
/// and so are those of the slot before, which is given back.
template <class Kind, int kN>
__device__ __forceinline__ void multiply_slot(const UnpackedShared<Kind>& shared,
                                              UnpackedOperands<Kind>& operands, std::uint64_t x, bool first,
                                              int previous, typename Kind::Sums& d) {
  using Sum = typename Kind::Sum;
  const auto multiply = [](Sum(&sums)[kN / 2], const std::uint32_t(&a)[4], std::uint64_t b, bool add) {
    if constexpr (Kind::kInt8)
      ptx::wgmma<kN>(sums, a, b, add);
    else
      ptx::wgmma<Bf16, kN>(sums, a, b, add);
  };
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    std::uint32_t a[2][4];
    operands.operands(quarter, a);
    // Written after the fence, they would make the assembler wait for each product.
#pragma unroll
    for (int i = 0; i < 8; ++i) ptx::materialize(a[i / 4][i % 4]);
    auto& sums = reinterpret_cast<Sum(&)[kN / 2]>(d[quarter % 2]);
    ptx::wgmma_fence();
    multiply(sums, a[0], ptx::advanced(x, UnpackedOperands<Kind>::x_at(quarter, 0)), !first || quarter >= 2);
    multiply(sums, a[1], ptx::advanced(x, UnpackedOperands<Kind>::x_at(quarter, 1)), true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (quarter == 0 && !first && threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&shared.empty[previous]);
  }
}

/// Where a warpgroup is in its rings, and where they begin: the first slot, the thread's first row of the
/// first piece.
template <class Kind>
struct UnpackedTurns {
  std::uint32_t x, codes;
  ptx::Barrier* codes_full;
  ptx::Barrier* codes_empty;
  Ring<Kind::kSlots> slots{};
  Ring<Kind::kPieces> pieces{};
};

/// The named barrier at which the second warpgroup waits until it may begin.
inline constexpr int kLagBarrier = 3;

/// Sums up a tile. `output` is the thread's first. Lets the second warpgroup begin after
/// `lag` slots; 0: it has begun.
template <class Kind>
__device__ __forceinline__ void multiply_tile(const UnpackedProduct& product,
                                              const UnpackedShared<Kind>& shared, const ProductTile& tile,
                                              int output, int lag, UnpackedTurns<Kind>& turns,
                                              typename Kind::Sums& d) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const int rows = Kind::rows_read(tile.end - tile.row), steps = slots_of_row<Kind>(product);
  UnpackedOperands<Kind> operands(product, tile, output);
  int previous = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    if (step % Kind::kSlotsOfPiece == 0) {
      ptx::mbarrier_wait(&turns.codes_full[turns.pieces.slot], turns.pieces.parity);
      operands.enter_piece(turns.codes + turns.pieces.slot * Kind::kPieceBytes);
    } else {
      operands.next_slot();
    }
    operands.enter_slot(step);
    const int slot = turns.slots.slot;
    ptx::mbarrier_wait(&shared.full[slot], turns.slots.parity);
    const std::uint64_t x = ptx::swizzled_operand(turns.x + slot * Kind::kSlotBytes);
    if (rows == 32) {
      multiply_slot<Kind, 32>(shared, operands, x, step == 0, previous, d);
    } else if (rows == 64) {
      multiply_slot<Kind, 64>(shared, operands, x, step == 0, previous, d);
    } else {
      multiply_slot<Kind, Kind::kRows>(shared, operands, x, step == 0, previous, d);
    }
    if ((step + 1) % Kind::kSlotsOfPiece == 0 || step + 1 == steps) {
      if (first_lane) ptx::mbarrier_arrive(&turns.codes_empty[turns.pieces.slot]);
      turns.pieces.next();
    }
    previous = slot;
    turns.slots.next();
    if (step + 1 == lag) ptx::barrier_arrive(kLagBarrier, 256);
  }
  ptx::wgmma_wait<0>();
  if (first_lane) ptx::mbarrier_arrive(&shared.empty[previous]);
}

template <class Kind>
__device__ __forceinline__ void multiply_tiles(const UnpackedProduct& product,
                                               const UnpackedShared<Kind>& shared,
                                               std::int32_t* offset_copies) {
  const int thread = static_cast<int>(threadIdx.x) - 128, warpgroup = thread / 128;
  const int warp = thread % 128 / 32 * 32;  // its first output of the warpgroup's
  const int row = warp + thread % 32 / 4;
  wait_for_previous();
  let_next_start();  // not earlier: it holds the next kernel (Groups::settled)
  auto walk = walk_of_tiles<Kind>(product, copy_offsets(product, offset_copies));
  UnpackedTurns<Kind> turns{
      ptx::shared_address(shared.x(0)),
      ptx::shared_address(shared.codes(warpgroup, 0)) + static_cast<std::uint32_t>(row * kUnpackedPieceBytes),
      shared.codes_full + warpgroup * Kind::kPieces, shared.codes_empty + warpgroup * Kind::kPieces};
  int lag = min(product.gather != nullptr ? Kind::kGatheredLag : Kind::kLag, slots_of_row<Kind>(product));
  for (ProductTile tile; walk.next(tile); lag = 0) {
    const int first = tile.column + warpgroup * Kind::kWarpgroupColumns;
    if (warpgroup == 1 && lag > 0) ptx::barrier_sync(kLagBarrier, 256);
    typename Kind::Sums d;
    multiply_tile<Kind>(product, shared, tile, first + row, warpgroup == 0 ? lag : 0, turns, d);
    finish_unpacked<Kind>(product, tile, first + warp, d);
  }
}

/// One thread. Requests the piece of a warpgroup's codes that begins with slot `step` of a row.
template <class Kind>
__device__ __forceinline__ void fetch_piece(const UnpackedShared<Kind>& shared, const CUtensorMap* codes_map,
                                            int warpgroup, int piece, int step, const ProductTile& tile) {
  ptx::Barrier* full = &shared.codes_full[warpgroup * Kind::kPieces + piece];
  ptx::mbarrier_arrive_expect(full, Kind::kPieceBytes);
  ptx::bulk_copy_box(shared.codes(warpgroup, piece), codes_map, full,
                     step / Kind::kSlotsOfPiece * (kUnpackedPieceBytes / 2),
                     tile.column + warpgroup * Kind::kWarpgroupColumns, tile.group);
}

/// A warpgroup fills the rings: gathered rows of x itself, codes through the copy engine.
template <class Kind>
__device__ __forceinline__ void fetch_gathered(const UnpackedProduct& product,
                                               const UnpackedShared<Kind>& shared,
                                               const CUtensorMap* codes_map) {
  const int steps = slots_of_row<Kind>(product);
  wait_for_previous();
  auto walk = walk_of_tiles<Kind>(product, {product.offsets});
  RowsOfTile<Kind, UnpackedProduct> rows{product};
  FlyingSteps<Kind::kSlots, Kind::kFlying> flying{shared.full};
  Ring<Kind::kSlots> slots;
  Ring<Kind::kPieces> pieces;
  for (ProductTile tile; walk.next(tile);) {
    rows.enter(tile);
    for (int step = 0; step < steps; ++step, slots.next()) {
      if (step % Kind::kSlotsOfPiece == 0) {
        for (int w = 0; w < 2; ++w) {
          const int piece = w * Kind::kPieces + pieces.slot;
          flying.land_until(&shared.codes_empty[piece], pieces.parity ^ 1);
          if (threadIdx.x == 0) fetch_piece<Kind>(shared, codes_map, w, pieces.slot, step, tile);
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

/// One thread: the codes of a warpgroup.
template <class Kind>
__device__ __forceinline__ void fetch_codes(const UnpackedProduct& product,
                                            const UnpackedShared<Kind>& shared, const CUtensorMap* codes_map,
                                            int warpgroup) {
  const int steps = slots_of_row<Kind>(product);
  wait_for_previous();
  auto walk = walk_of_tiles<Kind>(product, {product.offsets});
  Ring<Kind::kPieces> pieces;
  for (ProductTile tile; walk.next(tile);) {
    for (int step = 0; step < steps; step += Kind::kSlotsOfPiece, pieces.next()) {
      ptx::mbarrier_wait(&shared.codes_empty[warpgroup * Kind::kPieces + pieces.slot], pieces.parity ^ 1);
      fetch_piece<Kind>(shared, codes_map, warpgroup, pieces.slot, step, tile);
    }
  }
}

/// One thread: the rows of x. A box has 64.
template <class Kind>
__device__ __forceinline__ void fetch_rows(const UnpackedProduct& product, const UnpackedShared<Kind>& shared,
                                           const CUtensorMap* x_map) {
  const int steps = slots_of_row<Kind>(product);
  wait_for_previous();
  auto walk = walk_of_tiles<Kind>(product, {product.offsets});
  Ring<Kind::kSlots> slots;
  for (ProductTile tile; walk.next(tile);) {
    const int boxes = tile.end - tile.row > 64 ? 2 : 1;
    for (int step = 0; step < steps; ++step, slots.next()) {
      ptx::Barrier* full = &shared.full[slots.slot];
      ptx::mbarrier_wait(&shared.empty[slots.slot], slots.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, boxes * 64 * kRowBytes);
      for (int box = 0; box < boxes; ++box)
        ptx::bulk_copy_box(shared.x(slots.slot) + box * 64 * kRowBytes, x_map, full, step * (kRowBytes / 2),
                           tile.row + box * 64, 0);
    }
  }
}

template <class Kind>
__global__ void __launch_bounds__(kThreads, 1)
    unpacked_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap codes_map,
                    const __grid_constant__ UnpackedProduct product) {
  extern __shared__ std::byte dynamic[];
  __shared__ ptx::Barrier full[Kind::kSlots], empty[Kind::kSlots];
  __shared__ ptx::Barrier codes_full[2 * Kind::kPieces], codes_empty[2 * Kind::kPieces];
  __shared__ std::int32_t offset_copies[kCopiedOffsets];
  const UnpackedShared<Kind> shared{dynamic + (1024 - ptx::shared_address(dynamic) % 1024) % 1024, full,
                                    empty, codes_full, codes_empty};
  const bool gathered = product.gather != nullptr;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x_map);
    ptx::prefetch_tensor_map(&codes_map);
    for (int i = 0; i < Kind::kSlots; ++i) {
      ptx::mbarrier_init(&full[i], gathered ? 4 : 1);  // a warp that fetches, of each; or the copy engine
      ptx::mbarrier_init(&empty[i], 8);                // a warp that multiplies, of each
    }
    for (int i = 0; i < 2 * Kind::kPieces; ++i) {
      ptx::mbarrier_init(&codes_full[i], 1);
      ptx::mbarrier_init(&codes_empty[i], 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::lower_registers<40>();
    if (gathered) {
      fetch_gathered<Kind>(product, shared, &codes_map);
    } else if (threadIdx.x == 0) {
      fetch_rows<Kind>(product, shared, &x_map);
    } else if (threadIdx.x == 32 || threadIdx.x == 64) {
      fetch_codes<Kind>(product, shared, &codes_map, static_cast<int>(threadIdx.x) / 32 - 1);
    } else {
      wait_for_previous();
    }
  } else {
    ptx::raise_registers<232>();
    multiply_tiles<Kind>(product, shared, offset_copies);
  }
}

}  // namespace troupe::kernels::cuda
