// Products with few rows: the weights are read once, at the speed of the memory, and everything else hides
// behind that.
//
// A block takes kM outputs and kN rows of x. One warp fills a ring of stages in shared memory with boxes of
// weights, the others multiply. Weights are constants, so the ring is filled before the kernel waits for the
// one before it: while that one ends, the memory is already at work, and where a block's weights fit the ring
// its whole latency is hidden. Blocks are small and several fit on a multiprocessor, the next kernel's among
// them. Up to 8 rows of x lie whole in shared memory, brought by the warps that need them; more rows come
// piece by piece by a warp of their own.
//
// Weights are the tensor core's A (16 outputs × 16 inputs), rows of x its B (8 columns). Which inputs make up
// the 16 of an instruction is free as long as A and B agree, and so is which outputs make up its rows. Lane
// 4g + t of a warp takes the 8 inputs 8t … 8t + 7 of a chunk of 32, of A's row g and B's column g: one
// 16-byte load each, whose four words serve two instructions. A's row g is output g / 2 + g % 2 * 4 of eight:
// the eight lanes that load at a time then find their chunks, swizzled as the copy engine leaves them, in
// different banks. Rows of x are an odd number of 64 bytes long, to the same end.
//
// Few outputs and many inputs: the blocks of a cluster share a tile's inputs and send their sums to the block
// that finishes the outputs, which adds them in the order of the blocks. A sum's order of additions depends
// on the shape of the weight and on kN, not on the other rows.
#include <algorithm>

#include "kernels/cuda/ending.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx_stream.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/tensor_map.cuh"

namespace troupe::kernels::cuda {
namespace {

namespace st = troupe::cuda::stream;

constexpr int kChunk = 32;  ///< inputs of a 16-byte load of four lanes
constexpr int kBox = 64;    ///< inputs of a box
constexpr int kRowBytes = kBox * 2;
constexpr int kMostStages = 8;
constexpr int kMostWholeInputs = 4096;  ///< of 8 rows of x in shared memory: 64 KiB
constexpr int kHeaderBytes = 1024;      ///< barriers, before the ring; boxes lie at multiples of 1024

struct Args {
  const char* weight = nullptr;
  const char* x = nullptr;
  std::size_t row_bytes = 0;  ///< of weight and of x
  int chunks = 0;             ///< of a row
  int rows = 0;
  int row_tiles = 0;  ///< of all groups, at most
  int boxes = 0;      ///< of a stage
  int stages = 0;
  int split = 1;
  Groups groups{};
  EndingArgs ending{};
};

/// From one row of x to the next in shared memory, when a piece or all of the inputs lie there.
__host__ __device__ constexpr int x_pitch_of(int boxes) { return boxes * kRowBytes + 64; }
/// Boxes of the inputs of one block of a cluster, at most.
__host__ __device__ constexpr int most_boxes(int chunks, int split) {
  return ((chunks + 1) / 2 + split - 1) / split;
}
__host__ __device__ constexpr int stage_bytes_of(int m, int ring_n, int boxes) {
  return boxes * m * kRowBytes + (ring_n * x_pitch_of(boxes) + 1023) / 1024 * 1024;
}

/// The outputs that a block finishes, of kM: all, or a slice in a cluster.
__host__ __device__ constexpr int slice_of(int m, int split) { return m / (split < m / 16 ? split : m / 16); }

template <class T, int kM, int kN, int kWarpsM, int kWarpsN>
struct Tile {
  static constexpr bool kWholeX = kN == 8;
  static constexpr int kWarps = kWarpsM * kWarpsN;  ///< that multiply
  static constexpr int kThreads = (kWarps + (kWholeX ? 1 : 2)) * 32;
  static constexpr int kTilesM = kM / kWarpsM / 16;
  static constexpr int kTilesN = kN / kWarpsN / 8;
  static constexpr int kRingN = kWholeX ? 0 : kN;
  static constexpr int kChains =
      kTilesM * kTilesN < 8 ? 2 : 1;  ///< independent sums: an instruction takes 30 cycles
};

template <class T, int kM, int kN, int kWarpsM, int kWarpsN>
__global__ void __launch_bounds__(Tile<T, kM, kN, kWarpsM, kWarpsN>::kThreads)
    stream(const Args a, const __grid_constant__ CUtensorMap map) {
  using Tile = Tile<T, kM, kN, kWarpsM, kWarpsN>;
  constexpr int kWarps = Tile::kWarps, kTilesM = Tile::kTilesM, kTilesN = Tile::kTilesN,
                kChains = Tile::kChains;
  constexpr bool kWholeX = Tile::kWholeX;
  extern __shared__ __align__(1024) char shared[];
  const st::Address full = st::address_of(shared), empty = full + 8 * kMostStages,
                    got = empty + 8 * kMostStages, ring = full + kHeaderBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;

  troupe::cuda::let_next_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.stages; ++s) {
      st::barrier_init(full + 8 * s, st::kBoxArrivals + (kWholeX ? 0 : 32));
      st::barrier_init(empty + 8 * s, kWarps);
    }
    st::barrier_init(got, 1);
    st::barrier_publish();
  }
  if (warp == kWarps) st::prefetch_map(&map);
  __syncthreads();

  const int split = a.split;
  const int rank = static_cast<int>(blockIdx.x) % split;
  const int tile = static_cast<int>(blockIdx.x) / split;
  const int first_output = tile / a.row_tiles * kM;  // row tiles of the same weights are neighbours in time
  if (a.groups.offsets != nullptr) troupe::cuda::wait_for_previous();
  const RowTile rows = find_rows(a.groups.offsets, a.groups.count, a.rows, kN, tile % a.row_tiles);
  if (rows.count <= 0) return;
  const int outputs = min(kM, a.ending.outputs - first_output);
  const int all_boxes = (a.chunks + 1) / 2;
  const int first_chunk = all_boxes * rank / split * 2,
            end_chunk = min(a.chunks, all_boxes * (rank + 1) / split * 2);
  const int piece_chunks = a.boxes * 2;
  const int pieces = (end_chunk - first_chunk + piece_chunks - 1) / piece_chunks;
  const int stage_bytes = stage_bytes_of(kM, Tile::kRingN, a.boxes);
  const st::Address x_at = kWholeX ? ring + static_cast<st::Address>(a.stages * stage_bytes)
                                   : ring + static_cast<st::Address>(a.boxes * kM * kRowBytes);
  const int x_pitch = x_pitch_of(kWholeX ? most_boxes(a.chunks, split) : a.boxes);
  const int slice = slice_of(kM, split);
  const st::Address inbox =
      ring + static_cast<st::Address>(a.stages * stage_bytes + (kWholeX ? kN * x_pitch : 0));
  const int inbox_pitch = slice + 4;
  if (split > 1) {
    if (threadIdx.x == 0) st::barrier_expect(got, split * slice * rows.count * 4);
    st::cluster_arrive();
  }

  if (warp == kWarps) {  // weights
    int s = 0;
    std::uint32_t parity = 1;  // the first turn finds all stages empty
    for (int i = 0; i < pieces; ++i) {
      st::barrier_wait(empty + 8 * s, parity);
      const int chunks = min(piece_chunks, end_chunk - first_chunk - i * piece_chunks);
      const int boxes = (chunks + 1) / 2;
      st::boxes_begin(full + 8 * s, boxes * kM * kRowBytes, lane);
      for (int b = 0; b < boxes; ++b) {
        const int chunk = first_chunk + i * piece_chunks + b * 2;
        st::copy_box<kM>(
            ring + static_cast<st::Address>(s * stage_bytes + b * kM * kRowBytes), full + 8 * s,
            {.map = &map,
             .first = a.weight + static_cast<std::size_t>(rows.group) * a.groups.weight_stride +
                      static_cast<std::size_t>(first_output) * a.row_bytes + chunk * (kChunk * 2),
             .row_bytes = a.row_bytes,
             .rows = outputs,
             .columns = (chunks - b * 2) * kChunk,
             .column = chunk * kChunk,
             .row = first_output,
             .group = rows.group},
            lane);
      }
      st::boxes_end(full + 8 * s);
      if (++s == a.stages) {
        s = 0;
        parity ^= 1;
      }
    }
    troupe::cuda::wait_for_previous();
    if (split > 1) st::cluster_wait();
    return;
  }

  troupe::cuda::wait_for_previous();
  const auto x_row = [&](int r) {
    const int p = rows.first + r;
    const int row = a.groups.gather != nullptr ? a.groups.gather[p] : p;
    return a.x + static_cast<std::size_t>(row) * a.row_bytes + first_chunk * (kChunk * 2);
  };
  if (!kWholeX && warp > kWarps) {  // rows of x
    const char* const low = lane < rows.count ? x_row(lane) : nullptr;
    const char* const high = lane + 32 < rows.count ? x_row(lane + 32) : nullptr;
    int s = 0;
    std::uint32_t parity = 1;
    for (int i = 0; i < pieces; ++i) {
      st::barrier_wait(empty + 8 * s, parity);
      const int sixteens = min(piece_chunks, end_chunk - first_chunk - i * piece_chunks) * 4;
      const st::Address to = x_at + static_cast<st::Address>(s * stage_bytes);
      for (int r = 0; r < rows.count; ++r) {
        const auto from = reinterpret_cast<const char*>(
            __shfl_sync(~0u, reinterpret_cast<unsigned long long>(r < 32 ? low : high), r % 32));
        for (int c = lane; c < sixteens; c += 32) {
          st::copy_sixteen(to + static_cast<st::Address>(r * x_pitch + c * 16),
                           from + i * (piece_chunks * kChunk * 2) + c * 16);
        }
      }
      st::barrier_arrive_after_copies(full + 8 * s);
      if (++s == a.stages) {
        s = 0;
        parity ^= 1;
      }
    }
    if (split > 1) st::cluster_wait();
    return;
  }

  // What this block finishes: outputs by fours, from m_first; of a gate|up matrix the fours that are gates.
  const int m_first = rank * slice;
  const bool pairs = a.ending.ending == Ending::swiglu;
  const int fours = max(0, min(slice, outputs - m_first)) / (pairs ? 8 : 4);
  const auto output_of = [&](int four) { return pairs ? four / 2 * 16 + four % 2 * 4 : four * 4; };
  if (static_cast<int>(threadIdx.x) < fours * rows.count) {
    const int i = static_cast<int>(threadIdx.x);
    touch_four(a.ending, rows.first + i / fours, first_output + m_first + output_of(i % fours));
  }
  if constexpr (kWholeX) {
    const int sixteens = (end_chunk - first_chunk) * 4;
    for (int r = 0; r < rows.count; ++r) {
      const char* from = x_row(r);
      for (int c = static_cast<int>(threadIdx.x); c < sixteens; c += kWarps * 32) {
        st::copy_sixteen(x_at + static_cast<st::Address>(r * x_pitch + c * 16), from + c * 16);
      }
    }
    st::copies_wait();
    st::meet(1, kWarps * 32);
  }
  const int g = lane / 4, t = lane % 4;
  const int row = g / 2 + g % 2 * 4;  // of A's eight
  const int m0 = warp % kWarpsM * (kTilesM * 16), n0 = warp / kWarpsM * (kTilesN * 8);
  float sums[kChains][kTilesM][kTilesN][4] = {};
  {
    // Chunk 4 e + t of a box's row, e = 0 or 1, in its swizzled place.
    const st::Address even = (m0 + row) * kRowBytes + ((t ^ row % 4) + row / 4 * 4) * 16, odd = even ^ 64;
    const auto load = [&](st::Address at) { return *reinterpret_cast<const uint4*>(shared + (at - full)); };
    const auto chunk = [&](st::Address w, st::Address x) {
      uint4 b[kTilesN];
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) b[j] = load(x + j * 8 * x_pitch);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        const uint4 low = load(w + i * 16 * kRowBytes), high = load(w + (i * 16 + 8) * kRowBytes);
#pragma unroll
        for (int j = 0; j < kTilesN; ++j)
          st::mma<T>(sums[0][i][j], low.x, high.x, low.y, high.y, b[j].x, b[j].y);
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          st::mma<T>(sums[kChains - 1][i][j], low.z, high.z, low.w, high.w, b[j].z, b[j].w);
        }
      }
    };
    int s = 0;
    std::uint32_t parity = 0;
    st::Address x = x_at + static_cast<st::Address>((n0 + g) * x_pitch + t * 16);
    for (int i = 0; i < pieces; ++i) {
      st::barrier_wait(full + 8 * s, parity);
      const st::Address w = ring + static_cast<st::Address>(s * stage_bytes);
      const st::Address xs = kWholeX ? x + static_cast<st::Address>(i * a.boxes * kRowBytes)
                                     : x + static_cast<st::Address>(s * stage_bytes);
      const int chunks = min(piece_chunks, end_chunk - first_chunk - i * piece_chunks);
#pragma unroll 2
      for (int b = 0; b < chunks / 2; ++b) {
        chunk(w + b * (kM * kRowBytes) + even, xs + b * kRowBytes);
        chunk(w + b * (kM * kRowBytes) + odd, xs + b * kRowBytes + 64);
      }
      if (chunks % 2 != 0) chunk(w + chunks / 2 * (kM * kRowBytes) + even, xs + chunks / 2 * kRowBytes);
      __syncwarp();
      if (lane == 0) st::barrier_arrive(empty + 8 * s);
      if (++s == a.stages) {
        s = 0;
        parity ^= 1;
      }
    }
  }

  // Sums to the inbox of the block that finishes them, by sender, row of x and output; or, alone, to the
  // place of the ring.
  if (split > 1) {
    st::cluster_wait();
  } else {
    st::meet(1, kWarps * 32);
  }
  auto* const alone = reinterpret_cast<float*>(shared + kHeaderBytes);
#pragma unroll
  for (int i = 0; i < kTilesM; ++i) {
    const int m = m0 + i * 16, owner = m / slice;
    const st::Address there = st::address_at(inbox, owner), barrier = st::address_at(got, owner);
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int n = n0 + j * 8 + t * 2 + c % 2, at = m - owner * slice + row + c / 2 * 8;
        float sum = sums[0][i][j][c];
        if constexpr (kChains == 2) sum += sums[1][i][j][c];
        if (split == 1) {
          alone[n * inbox_pitch + at] = sum;
        } else if (n < rows.count) {
          st::send(there + static_cast<st::Address>(((rank * kN + n) * inbox_pitch + at) * 4), sum, barrier);
        }
      }
    }
  }
  if (m_first >= kM) return;
  if (split > 1) {
    st::barrier_wait(got, 0);
  } else {
    st::meet(1, kWarps * 32);
  }
  const float* const parts = reinterpret_cast<const float*>(shared + ((split > 1 ? inbox : ring) - full));
  const auto total = [&](int n, int m) {
    float4 part[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      if (r < split) part[r] = *reinterpret_cast<const float4*>(parts + (r * kN + n) * inbox_pitch + m);
    }
    float4 y = part[0];
#pragma unroll
    for (int r = 1; r < 8; ++r) {
      if (r < split) y = make_float4(y.x + part[r].x, y.y + part[r].y, y.z + part[r].z, y.w + part[r].w);
    }
    return y;
  };
  for (int i = static_cast<int>(threadIdx.x); i < fours * rows.count; i += kWarps * 32) {
    const int n = i / fours, m = output_of(i % fours);
    const float4 y = total(n, m);
    const float4 up = pairs ? total(n, m + 8) : y;
    end_four<T>(a.ending, rows.first + n, first_output + m_first + m, y, up);
  }
}

/// Bytes of shared memory that a block may have.
int most_shared(const Cuda& device) {
  return (device.capability() >= 90 ? 227 : device.capability() == 80 ? 163 : 99) << 10;
}

template <class T, int kM, int kN, int kWarpsM, int kWarpsN>
void start(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  using Tile = Tile<T, kM, kN, kWarpsM, kWarpsN>;
  const int inputs = row_stride(linear.weight.inputs);
  Args a{.weight = static_cast<const char*>(linear.weight.data),
         .x = static_cast<const char*>(linear.x),
         .row_bytes = static_cast<std::size_t>(inputs) * 2,
         .chunks = inputs / kChunk,
         .rows = linear.rows,
         .row_tiles = most_row_tiles(linear, kN),
         .boxes = plan.boxes,
         .split = plan.split,
         .groups = linear.groups,
         .ending = ending_of(linear)};
  const int boxes = most_boxes(a.chunks, plan.split);
  const int whole = Tile::kWholeX ? kN * x_pitch_of(boxes) : 0;
  const int inbox = plan.split > 1 ? plan.split * kN * (slice_of(kM, plan.split) + 4) * 4 : 0;
  const int alone = kN * (kM + 4) * 4;
  a.boxes = std::min(a.boxes, boxes);
  const auto bytes = [&] {
    const int ring = a.stages * stage_bytes_of(kM, Tile::kRingN, a.boxes);
    return kHeaderBytes + std::max(ring + whole + inbox, alone);
  };
  a.stages = std::clamp(std::min(plan.stages, (boxes + a.boxes - 1) / a.boxes), 1, kMostStages);
  while (a.stages > 1 && bytes() > most_shared(device)) --a.stages;
  CUtensorMap map{};
  if (device.hopper()) {
    map = troupe::cuda::tensor_map(
        {.data = linear.weight.data,
         .dtype = linear.weight.dtype,
         .sizes = {static_cast<std::uint64_t>(inputs), static_cast<std::uint64_t>(a.ending.outputs),
                   static_cast<std::uint64_t>(linear.groups.count)},
         .strides = {a.row_bytes, linear.groups.count > 1 ? linear.groups.weight_stride : a.row_bytes},
         .box = {kBox, kM, 1}});
  }
  const auto kernel = stream<T, kM, kN, kWarpsM, kWarpsN>;
  const troupe::cuda::Shape shape{
      .grid = dim3(static_cast<unsigned>((a.ending.outputs + kM - 1) / kM * a.row_tiles * plan.split)),
      .block = dim3(Tile::kThreads),
      .shared_bytes = static_cast<std::size_t>(bytes()),
      .cluster = plan.split};
  troupe::cuda::allow_shared(kernel, shape.shared_bytes);
  troupe::cuda::launch(device, kernel, shape, a, map);
}

template <class T>
void start(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  switch (plan.tile_rows) {
    case 8: return start<T, 64, 8, 4, 1>(device, linear, plan);
    case 9: return start<T, 128, 8, 8, 1>(device, linear, plan);
    case 16: return start<T, 64, 16, 4, 1>(device, linear, plan);
    case 17: return start<T, 128, 16, 8, 1>(device, linear, plan);
    case 32: return start<T, 64, 32, 4, 1>(device, linear, plan);
    case 33: return start<T, 128, 32, 4, 2>(device, linear, plan);
    case 65: return start<T, 64, 64, 4, 2>(device, linear, plan);
    default: return start<T, 128, 64, 4, 2>(device, linear, plan);
  }
}

}  // namespace

bool stream_takes(const Cuda&, const Linear& linear) {
  return size_of(linear.weight.dtype) == 2 && (linear.ending != Ending::qkv || linear.kv.head_dim % 4 == 0);
}

StreamPlan stream_plan(const Cuda& device, const Linear& linear) {
  int rows = linear.rows;
  if (linear.groups.offsets != nullptr) rows = (rows + linear.groups.count - 1) / linear.groups.count * 3 / 2;
  StreamPlan plan;
  plan.tile_rows = device.batch_invariant() ? 32 : rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  const int outputs = plan.tile_rows == 64 ? 128 : 64;
  const int tiles = (padded(linear.weight.outputs) + outputs - 1) / outputs;
  if (plan.tile_rows == 64) plan.boxes = 2;
  const bool may_split = device.hopper() && linear.groups.offsets == nullptr;
  while (may_split && plan.split < 8 && tiles * plan.split < device.multiprocessors() &&
         linear.weight.inputs / (2 * plan.split) >= 128) {
    plan.split *= 2;
  }
  if (plan.tile_rows == 8 && linear.weight.inputs / plan.split > kMostWholeInputs) plan.tile_rows = 16;
  return plan;
}

void run_stream(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  if (linear.rows <= 0) return;
  if (linear.weight.dtype == DType::bf16) {
    start<Bf16>(device, linear, plan);
  } else {
    start<F16>(device, linear, plan);
  }
}

void run_stream(Cuda& device, const Linear& linear) {
  run_stream(device, linear, stream_plan(device, linear));
}

}  // namespace troupe::kernels::cuda
