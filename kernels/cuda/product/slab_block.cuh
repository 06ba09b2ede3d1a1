#pragma once
// One block of a slab product: 9 to 64 rows of x, weights of some megabytes.
//
// Like a strip (strip_block.cuh) it does everything possible before the kernel's turn, and what follows the
// wait is short. A strip reads all inputs of x, which from some eight rows on are more than its weights. So
// the blocks of a cluster have the same outputs and share the inputs. One warp fetches the block's weights,
// constants, while earlier kernels run. After the wait the other warps copy the block's share of x to shared
// memory, and the first four of them multiply: rows of x are wgmma's operand A, weights its operand B. Each
// row's sums are sent to the block that finishes the row, which adds them in the order of the blocks.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/norm_producer.cuh"
#include "kernels/cuda/product/slab.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda::slabs {

struct SlabArgs {
  const char* x = nullptr;
  const float* squares = nullptr;  ///< of the halved norm that x is the other half of
  int square_sums = 0;             ///< of a row of it
  float eps = 0;
  float inverse_cols = 0;  ///< 1 / inputs without padding
  int stride = 0;          ///< inputs with padding
  int rows = 0;
  int chunks = 0;                     ///< of all inputs
  int block_chunks = 0;               ///< of a block's, at most
  unsigned copy_interval_cycles = 0;  ///< from one request of a chunk of weights to the next
  int weights_offset = 0;             ///< this and the next: SlabPlan
  int inbox_offset = 0;
  int barriers_offset = 0;
  bool inbox_overwrites_inputs = false;
  EndingArgs ending{};
  HalvedNorm produced_norm{};
};

template <SlabKernel kKernel>
struct Slab {
  using Shape = SlabShape<kKernel>;
  static constexpr int kCluster = Shape::kCluster, kOutputs = Shape::kOutputs;
  static constexpr bool kConsumesNorm = kKernel.consumes_halved_norm;

  const SlabArgs& a;
  const ptx::SharedAddress shared;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(~0u, thread / 32, 0);  ///< uniform for the compiler too
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int first_output = static_cast<int>(blockIdx.x) / kCluster * kOutputs;
  const int first_chunk = slab_first_chunk(a.chunks, rank, kCluster);
  const int chunks = slab_first_chunk(a.chunks, rank + 1, kCluster) - first_chunk;
  const int x_box_bytes = slab_x_box_bytes(a.rows);
  const ptx::SharedAddress weights = shared + static_cast<ptx::SharedAddress>(a.weights_offset);
  const ptx::SharedAddress inbox = shared + static_cast<ptx::SharedAddress>(a.inbox_offset);
  const ptx::SharedAddress full = shared + static_cast<ptx::SharedAddress>(a.barriers_offset);  ///< of chunks
  const ptx::SharedAddress got =
      full + static_cast<ptx::SharedAddress>(a.block_chunks * 8);  ///< of the inbox
  const ptx::SharedAddress factors = got + 8;  ///< of the block's rows, where a halved norm is consumed

  /// Called by one thread.
  __device__ __forceinline__ void init_barriers() const {
#pragma unroll 1
    for (int q = 0; q < chunks; ++q) ptx::mbarrier_init(full + static_cast<ptx::SharedAddress>(q * 8), 1);
    ptx::mbarrier_init(got, 1);
    ptx::mbarrier_arrive_expect(
        got, static_cast<std::uint32_t>(kCluster * Shape::rows_of(rank, a.rows) * kOutputs * 4));
    ptx::fence_mbarrier_init();
  }
  /// Called by one whole warp.
  __device__ __forceinline__ void fetch_weights(const CUtensorMap* map) const {
    const unsigned start = ptx::clock_cycles();
    unsigned next = 0;
#pragma unroll 1
    for (int q = 0; q < chunks; ++q, next += a.copy_interval_cycles) {
      while (ptx::clock_cycles() - start < next) {
      }
      const ptx::SharedAddress barrier = full + static_cast<ptx::SharedAddress>(q * 8);
      if (lane == 0) {
        ptx::mbarrier_arrive_expect(barrier, Shape::kBoxBytes);
        ptx::bulk_copy_box(weights + static_cast<ptx::SharedAddress>(q * Shape::kBoxBytes), map, barrier,
                           (first_chunk + q) * kSlabChunkInputs, first_output, 0);
      }
    }
  }

  static constexpr int kRowsAtOnce = kSlabThreads / 8;  ///< eight threads load a row of a chunk
  static constexpr int kTurns = kSlabMostRows / kRowsAtOnce;
  /// A thread's part of x: one 16-byte piece of each chunk, of a row in each turn.
  struct X {
    const char* from[kTurns];
    ptx::SharedAddress to;
    int pieces_left;  ///< of the row from this piece on
  };
  __device__ __forceinline__ X place_x() const {
    const int row = thread / 8, piece = thread % 8;
    X x{.to = shared + static_cast<ptx::SharedAddress>(slab_piece_at(row, piece)),
        .pieces_left = a.stride / 8 - first_chunk * 8 - piece};
    ptx::materialize(x.to);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      x.from[i] = a.x + static_cast<std::size_t>(row + i * kRowsAtOnce) * a.stride * 2 +
                  first_chunk * kSlabRowBytes + piece * 16;
      ptx::materialize(x.from[i]);
    }
    return x;
  }
  /// Requests the chunks of a group.
  __device__ __forceinline__ void request_x(const X& x, int group) const {
    const int end = slab_group_begin(chunks, group + 1);
#pragma unroll 1
    for (int q = slab_group_begin(chunks, group); q < end; ++q) {
      const auto place = static_cast<ptx::SharedAddress>(slab_place(chunks, q) * x_box_bytes);
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        if (thread / 8 + i * kRowsAtOnce < a.rows)
          ptx::copy_async_16_or_zero(
              x.to + place + static_cast<ptx::SharedAddress>(i * kRowsAtOnce * kSlabRowBytes),
              x.from[i] + q * kSlabRowBytes, q * 8 < x.pieces_left);
      }
    }
    ptx::copy_async_commit();
  }
  /// Warps of both kinds meet here from different places of the code. PTX allows it; compute-sanitizer's
  /// synccheck takes it for a divergence.
  __device__ __forceinline__ static void barrier() { ptx::barrier_sync<1, kSlabThreads>(); }
  /// Makes x visible to wgmma, once all but kPending of each thread's groups have landed.
  template <int kPending>
  __device__ __forceinline__ void wait_for_x() const {
    ptx::copy_async_wait<kPending>();
    ptx::fence_proxy_async();
    barrier();
  }

  using Sums = float[kOutputs / 2];  ///< as wgmma leaves them
  /// Begins the products of a group.
  __device__ __forceinline__ void multiply(Sums& sums, int group) const {
    const int end = slab_group_begin(chunks, group + 1);
#pragma unroll 1
    for (int q = slab_group_begin(chunks, group); q < end; ++q) {
      ptx::mbarrier_wait(full + static_cast<ptx::SharedAddress>(q * 8), 0);
      const std::uint64_t x = ptx::swizzled_operand(
          shared + static_cast<ptx::SharedAddress>(slab_place(chunks, q) * x_box_bytes));
      const std::uint64_t w =
          ptx::swizzled_operand(weights + static_cast<ptx::SharedAddress>(q * Shape::kBoxBytes));
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSlabRowBytes; k += 32)
        ptx::wgmma<Bf16, kOutputs>(sums, ptx::advanced(x, k), ptx::advanced(w, k), true);
      ptx::wgmma_commit();
    }
  }
  /// Sums of squares that a lane adds up: of a row of the block, four lanes a row.
  using Squares = float4[kSlabFoursOfSquares];
  __device__ __forceinline__ static int row_of_squares() {
    return static_cast<int>(threadIdx.x - kSlabMultiplyingWarps * 32) / 4;
  }
  __device__ __forceinline__ void load_squares(Squares& squares) const {
    const int n = min(rank + row_of_squares() * kCluster, a.rows - 1);
#pragma unroll
    for (int i = 0; i < kSlabFoursOfSquares; ++i) {
      const int first = i * 16 + lane % 4 * 4;
      squares[i] = float4{};
      if (first < a.square_sums)
        squares[i] = *reinterpret_cast<const float4*>(a.squares + n * a.square_sums + first);
    }
  }
  /// Factor of the row's sums: 1 / sqrt(mean(h^2) + eps). Visible to the block after its next barrier.
  __device__ __forceinline__ void store_factor(const Squares& squares) const {
    float sum = 0;
#pragma unroll
    for (const float4& four : squares) sum += four.x + four.y + four.z + four.w;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0)
      ptx::store_shared(factors + static_cast<ptx::SharedAddress>(row_of_squares() * 4),
                        rsqrtf(sum * a.inverse_cols + a.eps));
  }

  /// Where a lane's sums of the first eight outputs go.
  struct Destination {
    int row;
    ptx::SharedAddress sums, barrier;
  };
  __device__ __forceinline__ Destination place_sums() const {
    const int n = slab_sent_row(warp, lane), owner = n % kCluster;
    const int index = Shape::inbox_index(a.rows, rank, n, slab_sent_output(lane));
    Destination to{.row = n,
                   .sums = ptx::peer_address(inbox + static_cast<ptx::SharedAddress>(index * 4), owner),
                   .barrier = ptx::peer_address(got, owner)};
    ptx::materialize(to.sums);
    ptx::materialize(to.barrier);
    return to;
  }
  /// Called by the warps that multiply.
  __device__ __forceinline__ void send(const Sums& sums, const Destination& to) const {
    const bool odd = lane % 2 != 0;
#pragma unroll
    for (int j = 0; j < kOutputs / 8; ++j) {
      const float(&d)[4] = reinterpret_cast<const float(&)[4]>(sums[4 * j]);
      const float left = __shfl_xor_sync(~0u, odd ? d[0] : d[2], 1);
      const float right = __shfl_xor_sync(~0u, odd ? d[1] : d[3], 1);
      const float4 four = odd ? make_float4(left, right, d[2], d[3]) : make_float4(d[0], d[1], left, right);
      if (to.row < a.rows)
        ptx::store_async(to.sums + static_cast<ptx::SharedAddress>(j * 32), four, to.barrier);
    }
  }

  /// Four outputs of a row (of gate|up four gates and their ups) that this thread finishes.
  struct Item {
    const bool there;
    Four<Bf16> four;
    NormProducer<kSlabSquaresPerSum / 4> norm;
    ptx::SharedAddress at;  ///< in the inbox, from the first block
    ptx::SharedAddress factor;

    __device__ __forceinline__ Item(const Slab& slab, const EndingArgs& ending, int n, int m)
        : there(n < slab.a.rows && slab.first_output + m < ending.outputs),
          // Whether the output is there is the same in all passes, so the compiler finds its head once.
          four(ending, n < slab.a.rows ? n : 0,
               slab.first_output + (slab.first_output + m < ending.outputs ? m : 0)),
          norm(slab.a.produced_norm, there, n, slab.first_output + m, ending.outputs),
          at(slab.inbox + static_cast<ptx::SharedAddress>(Shape::inbox_index(slab.a.rows, 0, n, m) * 4)),
          factor(slab.factors + static_cast<ptx::SharedAddress>(n / kCluster * 4)) {
      ptx::materialize(at);
    }
  };
  /// Constructed before the wait.
  struct Items {
    Item of[Shape::kPasses];
  };
  template <int... kPass>
  __device__ __forceinline__ Items place_items(const EndingArgs& ending,
                                               std::integer_sequence<int, kPass...>) const {
    return {
        {Item(*this, ending, Shape::finished_row(rank, kPass, thread), Shape::finished_output(thread))...}};
  }
  /// After the wait.
  __device__ __forceinline__ void read(Items& items) const {
#pragma unroll
    for (Item& item : items.of) {
      if (item.there) item.four.read();
    }
  }
  /// From the wait until the sums are under way. kMultiplies: called by the warps that do; else by the
  /// others.
  template <bool kMultiplies>
  __device__ __forceinline__ void run(const X& x, const Destination& destination, Items& items) const {
    constexpr bool kMakesFactors = kConsumesNorm && !kMultiplies;
    [[maybe_unused]] Sums sums = {};
    [[maybe_unused]] Squares squares;
    for (int group = 0; group < 3; ++group) request_x(x, group);
    read(items);
    if constexpr (kMakesFactors) load_squares(squares);
    wait_for_x<2>();
    if constexpr (kMultiplies) {
      multiply(sums, 0);
      ptx::wgmma_wait<0>();
      ptx::changed_asynchronously(sums);
    }
    barrier();  // group 3 takes the place of group 0
    request_x(x, 3);
    wait_for_x<2>();
    if constexpr (kMultiplies) multiply(sums, 1);
    wait_for_x<1>();
    if constexpr (kMultiplies) multiply(sums, 2);
    if constexpr (kMakesFactors) store_factor(squares);
    wait_for_x<0>();
    if constexpr (kMultiplies) {
      multiply(sums, 3);
      ptx::wgmma_wait<0>();
      ptx::changed_asynchronously(sums);
    }
    if (a.inbox_overwrites_inputs) {  // until all blocks have read their inputs
      ptx::warp_cluster_arrive_relaxed();
      ptx::warp_cluster_wait();
    }
    if constexpr (kMultiplies) send(sums, destination);
  }

  /// The sum of the blocks' sums of four outputs.
  __device__ __forceinline__ float4 total(ptx::SharedAddress from) const {
    const auto of_block = static_cast<ptx::SharedAddress>(Shape::rows_of(0, a.rows) * kOutputs * 4);
    float4 y = ptx::load_shared_float4(from);
#pragma unroll
    for (unsigned sender = 1; sender < kCluster; ++sender) {
      const float4 more = ptx::load_shared_float4(from + sender * of_block);
      y = make_float4(y.x + more.x, y.y + more.y, y.z + more.z, y.w + more.w);
    }
    return y;
  }
  __device__ __forceinline__ void finish(Items& items) const {
#pragma unroll
    for (Item& item : items.of) {
      if (!item.there) continue;
      float4 y = total(item.at), up = Shape::kPairs ? total(item.at + 8 * 4) : y;
      if constexpr (kConsumesNorm) {
        const float by = ptx::load_shared_float(item.factor);
        y = scaled(y, by);
        if constexpr (Shape::kPairs) up = scaled(up, by);
      }
      item.four.finish(y, up);
      if constexpr (kKernel.ending == Ending::add) item.norm.store(item.four.added(y));
    }
  }
};

}  // namespace troupe::kernels::cuda::slabs
