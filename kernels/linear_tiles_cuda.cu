// Products of many rows on GPUs without wgmma: a block of the streaming products (stream_block.cuh) with a
// tile so large that arithmetic bounds it, 128 outputs × 128 rows, or × 64 rows if the weights are codes,
// since a box of integer codes needs several boxes of x, and one of fp8 has sums of its own.
//
// Four warps multiply, 64 outputs × 64 or 32 rows each: with less, shared memory could not keep up with the
// tensor cores. They fill the ring themselves by cp.async. A fifth warp for that would cost the others
// registers, and with those two blocks on a multiprocessor.
#include "base/check.h"
#include "kernels/cuda/product/biased_four.cuh"
#include "kernels/cuda/product/stream_launch.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace streaming;

template <class T, class Codes>
using TileOfManyRows =
    StreamTile<T, Codes, kWideOutputs, many_rows_tile(!std::is_same_v<Codes, PlainCodes>), 2, 2>;

constexpr int kMostStages = 3;

template <class T, class Codes, class Finish_ = Four<T>>
struct ManyRowsTile : TileOfManyRows<T, Codes> {
  using Finish = Finish_;
  static constexpr int kThreads = ManyRowsTile::kWarps * 32;
  /// fp8: scales of a box of weights, a float for eight outputs, and behind them of its rows of x.
  static constexpr int kWeightScaleBytes = ManyRowsTile::kM / kFp8ScaleOutputs * 4;
  static constexpr int kScaleBytes = kWeightScaleBytes + ManyRowsTile::kN * 4;
  static_assert(!Codes::kBlockScales || kMostStages * kScaleBytes <= kHeaderBytes);
};

/// Of a stage, in the header, where streams have the barriers that tiles do without.
template <class Tile>
__device__ __forceinline__ ptx::SharedAddress block_scales_at(const StreamBlock<Tile>& block, int stage) {
  return block.full + static_cast<ptx::SharedAddress>(stage * Tile::kScaleBytes);
}

/// What a thread copies of each piece of the inputs, a box of weights and the boxes of x that it multiplies:
/// one 16-byte chunk of every 16th row.
template <class Tile>
class TileRing {
 public:
  __device__ explicit TileRing(const StreamBlock<Tile>& block) : block_(block) {
#pragma unroll
    for (int q = 0; q < kRows; ++q) {
      const int r = first_row_ + q * kRowsAtATime;
      if (r < block.rows.count) x_row_[q] = static_cast<int>(block.row_of_x(r));
    }
  }

  /// Chunks of 64 bytes of weights that the piece has, at most 2; 0 or less: there is no such piece.
  __device__ int chunks(int piece) const { return min(2, block_.chunks - piece * 2); }

  /// Starts the copies of a piece into a stage; one group of cp.async, empty if there is no such piece.
  __device__ void bring(int piece, int stage) const {
    const int here = chunks(piece);
    if (here > 0) {
      const ptx::SharedAddress to = block_.ring + block_.at_stage(stage) + place_;
      bring_weights(piece, here, to);
      if constexpr (Tile::Codes::kBlockScales) bring_block_scales(piece, block_scales_at(block_, stage));
      const StreamArgs& a = block_.a;
#pragma unroll
      for (int b = 0; b < kOperands; ++b) {
        if (b * 2 >= here * kOperands) break;
        const int sixteen = (piece * kOperands + b) * 8 + chunk_;
#pragma unroll
        for (int q = 0; q < kRows; ++q) {
          if (first_row_ + q * kRowsAtATime >= block_.rows.count) break;
          ptx::copy_async_16_or_zero(
              to + static_cast<ptx::SharedAddress>((Tile::kM + b * Tile::kN + q * kRowsAtATime) * kRowBytes),
              a.x + static_cast<std::size_t>(x_row_[q]) * a.x_row_bytes + sixteen * 16,
              sixteen < block_.x_sixteens);
        }
      }
    }
    ptx::copy_async_commit();
  }

 private:
  static constexpr int kOperands = Tile::Codes::kOperands;
  static constexpr int kRowsAtATime = Tile::kThreads / 8;
  static constexpr int kRows = Tile::kN / kRowsAtATime;

  __device__ void bring_weights(int piece, int here, ptx::SharedAddress to) const {
    const StreamArgs& a = block_.a;
    const char* from = block_.weight() +
                       static_cast<std::size_t>(block_.first_output + first_row_) * a.row_bytes +
                       piece * kRowBytes + chunk_ * 16;
#pragma unroll
    for (int m = 0; m < Tile::kM; m += kRowsAtATime) {
      if (first_row_ + m >= block_.outputs) break;
      ptx::copy_async_16_or_zero(to + static_cast<ptx::SharedAddress>(m * kRowBytes),
                                 from + static_cast<std::size_t>(m) * a.row_bytes, chunk_ < here * 4);
    }
    if constexpr (Tile::Codes::kGroupScales) {
      constexpr int kPitch = scale_line_pitch(Tile::kM);
      const int group = piece * kBox * kOperands / a.scale_group;
      const char* scales = block_.weight() + a.scales_at;
      for (int i = thread_; i < block_.scale_lines * (kPitch / 16); i += Tile::kThreads) {
        const int line = i / (kPitch / 16), at = i % (kPitch / 16) * 16;
        if (at >= block_.scale_line_bytes()) continue;
        ptx::copy_async_16(
            to - place_ + (block_.scales_at - block_.ring) +
                static_cast<ptx::SharedAddress>(line * kPitch + at),
            scales + (static_cast<std::size_t>(group + line) * a.ending.outputs + block_.first_output) * 2 +
                at);
      }
    }
  }

  /// A warp requests those of the weights, 64 threads those of x.
  __device__ void bring_block_scales(int box, ptx::SharedAddress to) const {
    const StreamArgs& a = block_.a;
    constexpr int kSixteens = Tile::kWeightScaleBytes / 16;
    static_assert(kSixteens <= 32 && Tile::kN + 32 <= Tile::kThreads);
    const int r = thread_ - 32;
    if (thread_ < kSixteens) {
      if (thread_ * (4 * kFp8ScaleOutputs) >= block_.outputs) return;
      const auto eights = static_cast<std::size_t>(a.ending.outputs / kFp8ScaleOutputs);
      const auto* from = reinterpret_cast<const float*>(block_.weight() + a.scales_at) +
                         static_cast<std::size_t>(box) * eights + block_.first_output / kFp8ScaleOutputs;
      ptx::copy_async_16(to + static_cast<ptx::SharedAddress>(thread_ * 16), from + thread_ * 4);
    } else if (r >= 0 && r < block_.rows.count) {
      const auto boxes = static_cast<std::size_t>(a.chunks / 2);
      ptx::copy_async_4(to + static_cast<ptx::SharedAddress>(Tile::kWeightScaleBytes + r * 4),
                        a.x_scales + block_.row_of_x(r) * boxes + static_cast<std::size_t>(box));
    }
  }

  const StreamBlock<Tile>& block_;
  const int thread_ = static_cast<int>(threadIdx.x);
  const int chunk_ = thread_ % 8, first_row_ = thread_ / 8;
  /// Of the thread's first chunk in a box; its other rows are whole multiples of eight further on.
  const ptx::SharedAddress place_ =
      static_cast<ptx::SharedAddress>(first_row_ * kRowBytes + (chunk_ ^ first_row_ % 8) * 16);
  int x_row_[kRows] = {};
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    tiles(const StreamArgs a, const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap) {
  extern __shared__ __align__(1024) char shared[];
  StreamBlock<Tile> block{.a = a, .shared = shared};
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one (Groups::settled)
  block.rows = find_rows(a.groups.offsets, a.groups.count, a.rows, Tile::kN, static_cast<int>(blockIdx.y));
  if (block.rows.count <= 0) return;
  typename StreamBlock<Tile>::Sums sums;
  {
    const TileRing<Tile> ring(block);
    const StreamOperands operands = block.place_operands();
    const int ahead = a.stages - 1;  // pieces on their way while one is multiplied: 0, 1 or 2
    for (int i = 0; i < ahead; ++i) ring.bring(i, i);
    int stage = 0, next = ahead;
    for (int i = 0; ring.chunks(i) > 0; ++i) {
      if (ahead == 0) ring.bring(i, 0);
      ahead > 1 ? ptx::copy_async_wait<1>() : ptx::copy_async_wait<0>();
      __syncthreads();
      if (ahead > 0) {
        ring.bring(i + ahead, next);
        if (++next == a.stages) next = 0;
      }
      const Halves w = operands.w + block.at_stage(stage), x = operands.x + block.at_stage(stage);
      if constexpr (Tile::Codes::kBlockScales) {
        const ptx::SharedAddress scales = block_scales_at(block, stage);
        block.multiply_scaled_box(sums, w, x, scales, scales + Tile::kWeightScaleBytes);
      } else {
        const ptx::SharedAddress scales = block.scales_at + block.at_stage(stage);
        block.multiply_chunk(sums, 0, w, x, scales, {});
        if (ring.chunks(i) > 1)
          block.multiply_chunk(
              sums, 1, w, x,
              scales + static_cast<ptx::SharedAddress>(block.scale_lines / 2 * scale_line_pitch(Tile::kM)),
              {});
      }
      if (ahead == 0) __syncthreads();
      if (++stage == a.stages) stage = 0;
    }
  }
  block.hand_over(sums, block.place_sums());
  const auto first = block.mine(static_cast<int>(threadIdx.x));
  typename Tile::Finish four(a.ending, first.p, first.o);
  if (first.there) four.read();
  block.finish(first, four,
               first.there ? block.output_scales(first.o) : typename StreamBlock<Tile>::OutputScales{});
}

template <int kKind, template <class> class Finish>
constexpr StreamRow row_of() {
  using Kind = MultipliedAt<kKind>;
  using Tile = ManyRowsTile<typename Kind::T, typename Kind::Codes, Finish<typename Kind::T>>;
  static_assert(Tile::kM == kWideOutputs &&
                Tile::kN == many_rows_tile(kKind >= static_cast<int>(CodeKind::fp8)));
  return {tiles<Tile>, Tile::kThreads};
}
constexpr auto kRows = make_table<kCodeKinds>([](auto kind) {
  if constexpr (has_tile_kernel(static_cast<CodeKind>(kind()))) {
    return row_of<kind, Four>();
  } else {
    return StreamRow{};
  }
});
/// Of weights that are no codes.
constexpr auto kBiasedRows = make_table<2>([](auto kind) { return row_of<kind, BiasedFour>(); });

/// Launches the row of the weights' kind.
template <class Table>
void launch_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan, const Table& table) {
  const auto kind = static_cast<std::size_t>(code_kind(linear.weight.format));
  TROUPE_CHECK(kind < table.size() && plan.tile_rows == many_rows_tile(linear.weight.format.quantised()) &&
               plan.outputs == kWideOutputs && plan.cluster == 1 && plan.boxes == 1 &&
               plan.stages <= kMostStages);
  launch_stream(device, linear, plan, table[kind]);
}

}  // namespace

void run_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  launch_tiles(device, linear, plan, kRows);
}
void run_biased_tiles(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  launch_tiles(device, linear, plan, kBiasedRows);
}

std::vector<CompiledKernel> tile_kernels() { return compiled_of(kRows, kBiasedRows); }

}  // namespace troupe::kernels::cuda
