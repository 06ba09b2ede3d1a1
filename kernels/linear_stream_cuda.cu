// Products with few rows: the weights are read once, at the speed of the memory, and everything else hides
// behind that.
//
// A block takes kM outputs and kN rows of x. One warp fills a ring of stages in shared memory, each a piece
// of the inputs of all kM weight rows and all kN rows of x; the other warps multiply. Weights are constants,
// so the ring is filled with them before the kernel waits for the one before it: while that one ends, the
// memory is already at work, and where a block's weights fit the ring its whole latency is hidden.
// Blocks are small and several fit on a multiprocessor, the next kernel's among them.
//
// Weights are the tensor core's A (16 outputs × 16 inputs), rows of x its B (8 columns). Which inputs make up
// the 16 of an instruction is free as long as A and B agree. Lane 4g + t of a warp takes the 8 inputs
// 8t … 8t + 7 of a chunk of 32 for output g (A) or row g (B): one 16-byte load each, whose four words serve
// two instructions. Rows in shared memory are 64 bytes longer than their data, so these loads meet no bank
// twice.
//
// Few outputs and many inputs: the blocks of a cluster share a tile's inputs, and the sums are added up
// through shared memory, in the order of the blocks. A sum's order of additions depends on the shape of the
// weight and on kN, not on the rows.
#include <algorithm>

#include "kernels/cuda/ending.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx_stream.cuh"
#include "kernels/cuda/stream.h"

namespace troupe::kernels::cuda {
namespace {

namespace st = troupe::cuda::stream;

struct Args {
  const char* weight = nullptr;
  const char* x = nullptr;
  std::size_t row_bytes = 0;  ///< of weight and of x
  int chunks = 0;             ///< of 32 inputs
  int rows = 0;
  int row_tiles = 0;  ///< of all groups, at most
  int piece = 0;
  int stages = 0;
  int split = 1;
  bool push = true;
  Groups groups{};
  EndingArgs ending{};
};

constexpr int kChunk = 32;
constexpr int kMostStages = 8;
constexpr int kMostWholeInputs = 4096;  ///< of 8 rows of x in shared memory: 64 KiB
constexpr int kHeaderBytes = 256;       ///< barriers, before the ring
constexpr int pitch_of(int piece) { return piece * 2 + 64; }
/// Of rows of x that lie whole in shared memory.
__host__ __device__ constexpr int whole_pitch_of(int chunks, int split) {
  const int most = (chunks + split - 1) / split * kChunk * 2;
  return most % 128 == 0 ? most + 64 : most;
}

template <class T, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeX>
__global__ void __launch_bounds__((kWarpsM * kWarpsN + 1) * 32) stream(const Args a) {
  constexpr int kWarps = kWarpsM * kWarpsN;
  constexpr int kTilesM = kM / kWarpsM / 16;
  constexpr int kTilesN = kN / kWarpsN / 8;
  constexpr int kChains = kTilesM * kTilesN < 8 ? 2 : 1;
  constexpr int kTilePitch = kM + 4;
  extern __shared__ __align__(128) char shared[];
  const std::uint32_t full = st::shared_address(shared), empty = full + 8 * kMostStages,
                      got = empty + 8 * kMostStages, ring = full + kHeaderBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;

  troupe::cuda::let_next_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.stages; ++s) {
      st::barrier_init(full + 8 * s, st::kFillArrivals);
      st::barrier_init(empty + 8 * s, kWarps);
    }
    st::barrier_publish();
  }
  __syncthreads();

  const bool grouped = a.groups.offsets != nullptr;
  if (grouped) troupe::cuda::wait_for_previous();
  const int split = a.split;
  const int rank = static_cast<int>(blockIdx.x) % split;
  const int tile = static_cast<int>(blockIdx.x) / split;
  const int first_output = tile / a.row_tiles * kM;  // row tiles of the same weights are neighbours in time
  const RowTile rows = find_rows(a.groups.offsets, a.groups.count, a.rows, kN, tile % a.row_tiles);
  if (rows.count <= 0) return;
  const bool push = split > 1 && a.push;
  const int slice = push ? kM / min(split, kM / 16) : kM;
  const int m_first = rank * slice;
  if (push) {
    if (threadIdx.x == 0) {
      st::barrier_init(got, 1);
      st::barrier_publish();
      st::fill_begin_one(got, split * slice * rows.count * 4);
    }
    st::cluster_arrive();
  }
  const int outputs = min(kM, a.ending.outputs - first_output);
  const int first_chunk = a.chunks * rank / split, end_chunk = a.chunks * (rank + 1) / split;
  const int piece_chunks = a.piece / kChunk;
  const int pieces = (end_chunk - first_chunk + piece_chunks - 1) / piece_chunks;
  const int pitch = pitch_of(a.piece);
  const int stage_bytes = (kM + (kWholeX ? 0 : kN)) * pitch;
  const std::uint32_t x_at = ring + static_cast<std::uint32_t>(a.stages * stage_bytes);  // kWholeX
  const int x_pitch = whole_pitch_of(a.chunks, split);

  if (warp == kWarps) {
    const char* weight = a.weight + static_cast<std::size_t>(rows.group) * a.groups.weight_stride +
                         static_cast<std::size_t>(first_output) * a.row_bytes +
                         static_cast<std::size_t>(first_chunk) * kChunk * 2;
    const char* x = a.x + static_cast<std::size_t>(first_chunk) * kChunk * 2;
    const auto bytes_of = [&](int i) {
      return min(piece_chunks, end_chunk - first_chunk - i * piece_chunks) * kChunk * 2;
    };
    const auto fill_weights = [&](int i, int s) {
      const int bytes = bytes_of(i);
      st::fill_begin(full + 8 * s, bytes * (outputs + (kWholeX ? 0 : rows.count)), lane);

      st::copy_rows(full + 8 * s, ring + s * stage_bytes, pitch, outputs, bytes, lane, [&](int r) {
        return weight + static_cast<std::size_t>(r) * a.row_bytes + static_cast<std::size_t>(i) * a.piece * 2;
      });
    };
    const auto fill_x = [&](int i, int s) {
      if constexpr (kWholeX) {
        st::fill_end(full + 8 * s);
        return;
      }
      st::copy_rows(full + 8 * s, ring + s * stage_bytes + kM * pitch, pitch, rows.count, bytes_of(i), lane,
                    [&](int r) {
                      const int p = rows.first + r;
                      const int from = a.groups.gather != nullptr ? a.groups.gather[p] : p;
                      return x + static_cast<std::size_t>(from) * a.row_bytes +
                             static_cast<std::size_t>(i) * a.piece * 2;
                    });
      st::fill_end(full + 8 * s);
    };
    const int early = min(pieces, a.stages);
    for (int i = 0; i < early; ++i) fill_weights(i, i);
    troupe::cuda::wait_for_previous();
    for (int i = 0; i < early; ++i) fill_x(i, i);
    int s = 0;
    std::uint32_t parity = 0;
    for (int i = early; i < pieces; ++i) {
      st::barrier_wait(empty + 8 * s, parity);
      fill_weights(i, s);
      fill_x(i, s);
      if (++s == a.stages) {
        s = 0;
        parity ^= 1;
      }
    }
    if (push) st::cluster_wait();
    if (split > 1 && !push) {
      st::cluster_meet();
      st::cluster_meet();
    }
    return;
  }

  troupe::cuda::wait_for_previous();
  const int g = lane / 4, t = lane % 4;
  const int m0 = warp % kWarpsM * (kTilesM * 16), n0 = warp / kWarpsM * (kTilesN * 8);
  if constexpr (kWholeX) {
    const int bytes = (end_chunk - first_chunk) * kChunk * 2;
    const char* from = a.x + static_cast<std::size_t>(first_chunk) * kChunk * 2;
    const int sixteens = bytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < sixteens * rows.count; i += kWarps * 32) {
      const int r = i / sixteens, c = i - r * sixteens;
      const int p = rows.first + r;
      const int row = a.groups.gather != nullptr ? a.groups.gather[p] : p;
      st::copy_sixteen(x_at + static_cast<std::uint32_t>(r * x_pitch + c * 16),
                       from + static_cast<std::size_t>(row) * a.row_bytes + c * 16);
    }
    st::copies_wait();
    st::meet(1, kWarps * 32);
  }
  float sums[kChains][kTilesM][kTilesN][4] = {};
  {
    const int b_pitch = kWholeX ? x_pitch : pitch;
    const auto chunk = [&](std::uint32_t w, std::uint32_t x) {
      uint4 b[kTilesN];
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) b[j] = st::load_shared(x + j * 8 * b_pitch);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        const uint4 low = st::load_shared(w + i * 16 * pitch),
                    high = st::load_shared(w + (i * 16 + 8) * pitch);
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
    for (int i = 0; i < pieces; ++i) {
      st::barrier_wait(full + 8 * s, parity);
      const std::uint32_t w = ring + s * stage_bytes + (m0 + g) * pitch + t * 16;
      const std::uint32_t x = kWholeX ? x_at + (n0 + g) * x_pitch + i * a.piece * 2 + t * 16
                                      : ring + s * stage_bytes + (kM + n0 + g) * pitch + t * 16;
      const int chunks = min(piece_chunks, end_chunk - first_chunk - i * piece_chunks);
#pragma unroll 4
      for (int c = 0; c < chunks; ++c) chunk(w + c * kChunk * 2, x + c * kChunk * 2);
      __syncwarp();
      if (lane == 0) st::barrier_arrive(empty + 8 * s);
      if (++s == a.stages) {
        s = 0;
        parity ^= 1;
      }
    }
  }

  if (push) {
    const std::uint32_t inbox = x_at + (kWholeX ? kN * x_pitch : 0);
    const int inbox_pitch = slice + 4;
    st::cluster_wait();
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      const int m = m0 + i * 16, owner = m / slice;
      const std::uint32_t there = st::address_at(inbox, owner), barrier = st::address_at(got, owner);
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int n = n0 + j * 8 + t * 2 + c % 2, at = m - owner * slice + g + c / 2 * 8;
          float sum = sums[0][i][j][c];
          if constexpr (kChains == 2) sum += sums[1][i][j][c];
          if (n < rows.count) {
            st::send(there + static_cast<std::uint32_t>(((rank * kN + n) * inbox_pitch + at) * 4), sum,
                     barrier);
          }
        }
      }
    }
    if (m_first >= kM) return;
    st::barrier_wait(got, 0);
    const auto total = [&](int n, int m) {
      float4 y{};
      for (int r = 0; r < split; ++r) {
        const uint4 u =
            st::load_shared(inbox + static_cast<std::uint32_t>(((r * kN + n) * inbox_pitch + m) * 4));
        y.x += __uint_as_float(u.x);
        y.y += __uint_as_float(u.y);
        y.z += __uint_as_float(u.z);
        y.w += __uint_as_float(u.w);
      }
      return y;
    };
    const bool pairs = a.ending.ending == Ending::swiglu;
    const int mine = min(slice, outputs - m_first);
    const int fours = pairs ? mine / 8 : mine / 4;
    for (int i = static_cast<int>(threadIdx.x); i < fours * rows.count; i += kWarps * 32) {
      const int n = i / fours, f = i % fours;
      const int m = pairs ? f / 2 * 16 + f % 2 * 4 : f * 4;
      const float4 y = total(n, m);
      const float4 up = pairs ? total(n, m + 8) : y;
      end_four<T>(a.ending, rows.first + n, first_output + m_first + m, y, up);
    }
    return;
  }

  // The sums, by row of x and then output, in the place of the ring.
  auto* sums_at = reinterpret_cast<float*>(shared + kHeaderBytes);
  st::meet(1, kWarps * 32);
#pragma unroll
  for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int n = n0 + j * 8 + t * 2 + c % 2, m = m0 + i * 16 + g + c / 2 * 8;
        float sum = sums[0][i][j][c];
        if constexpr (kChains == 2) sum += sums[1][i][j][c];
        sums_at[n * kTilePitch + m] = sum;
      }
    }
  }
  if (split > 1) {
    st::cluster_meet();
  } else {
    st::meet(1, kWarps * 32);
  }
  const auto total = [&](int n, int m) {
    const std::uint32_t at = ring + static_cast<std::uint32_t>(n * kTilePitch + m) * 4;
    float4 y = *reinterpret_cast<const float4*>(sums_at + n * kTilePitch + m);
    if (split > 1) {
      y = st::load_cluster(at, 0);
      for (int r = 1; r < split; ++r) {
        const float4 more = st::load_cluster(at, r);
        y.x += more.x;
        y.y += more.y;
        y.z += more.z;
        y.w += more.w;
      }
    }
    return y;
  };
  const bool pairs = a.ending.ending == Ending::swiglu;
  const int fours = pairs ? outputs / 8 : outputs / 4;
  for (int i = rank * kWarps * 32 + static_cast<int>(threadIdx.x); i < fours * rows.count;
       i += split * kWarps * 32) {
    const int n = i / fours, f = i % fours;
    const int m = pairs ? f / 2 * 16 + f % 2 * 4 : f * 4;
    const float4 y = total(n, m);
    const float4 up = pairs ? total(n, m + 8) : y;
    end_four<T>(a.ending, rows.first + n, first_output + m, y, up);
  }
  if (split > 1) st::cluster_meet();  // nobody leaves while its sums are read
}

/// Bytes of shared memory that a block may have.
int most_shared(const Cuda& device) {
  return (device.capability() >= 90 ? 227 : device.capability() == 80 ? 163 : 99) << 10;
}

template <class T, int kM, int kN, int kWarpsM, int kWarpsN, bool kWholeX>
void start(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  Args a{.weight = static_cast<const char*>(linear.weight.data),
         .x = static_cast<const char*>(linear.x),
         .row_bytes = static_cast<std::size_t>(row_stride(linear.weight.inputs)) * 2,
         .chunks = row_stride(linear.weight.inputs) / kChunk,
         .rows = linear.rows,
         .row_tiles = most_row_tiles(linear, kN),
         .piece = plan.piece,
         .stages = plan.stages,
         .split = plan.split,
         .push = plan.push,
         .groups = linear.groups,
         .ending = ending_of(linear)};
  const int pieces = ((a.chunks + plan.split - 1) / plan.split * kChunk + plan.piece - 1) / plan.piece;
  const auto kernel = stream<T, kM, kN, kWarpsM, kWarpsN, kWholeX>;
  const int slice = kM / std::min(plan.split, kM / 16);
  const int inbox = plan.split > 1 ? plan.split * kN * (slice + 4) * 4 : 0;
  const int whole = kWholeX ? kN * whole_pitch_of(a.chunks, plan.split) : 0;
  const int stage = (kM + (kWholeX ? 0 : kN)) * pitch_of(plan.piece);
  const int tile = kN * (kM + 4) * 4;
  const auto bytes = [&] { return kHeaderBytes + std::max(a.stages * stage + whole + inbox, tile); };
  a.stages = std::clamp(std::min(plan.stages, pieces), 1, kMostStages);
  while (a.stages > 1 && bytes() > most_shared(device)) --a.stages;
  const troupe::cuda::Shape shape{
      .grid = dim3(static_cast<unsigned>((a.ending.outputs + kM - 1) / kM * a.row_tiles * plan.split)),
      .block = dim3((kWarpsM * kWarpsN + 1) * 32),
      .shared_bytes = static_cast<std::size_t>(bytes()),
      .cluster = plan.split};
  troupe::cuda::allow_shared(kernel, shape.shared_bytes);
  troupe::cuda::launch(device, kernel, shape, a);
}

template <class T>
void start(Cuda& device, const Linear& linear, const StreamPlan& plan) {
  switch (plan.tile_rows) {
    case 7: return start<T, 64, 8, 4, 1, false>(device, linear, plan);
    case 8: return start<T, 64, 8, 4, 1, true>(device, linear, plan);
    case 16: return start<T, 64, 16, 4, 1, false>(device, linear, plan);
    case 32: return start<T, 64, 32, 4, 1, false>(device, linear, plan);
    default: return start<T, 128, 64, 4, 2, false>(device, linear, plan);
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
  plan.split = 1;
  if (plan.tile_rows == 64) plan.piece = 128;
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
