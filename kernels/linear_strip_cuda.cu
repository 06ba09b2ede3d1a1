// Products of up to eight rows with weights of some megabytes.
//
// Such a product takes little more time than its start, its end and the way of its inputs through the chip.
// So everything that can be done before the kernel's turn is: a block owns a strip of outputs with all their
// inputs, which is one piece of memory, and its weights, constants, come into its shared memory while earlier
// kernels run; a multiprocessor has room for the strips of two kernels. After the wait a lane loads its part
// of x into registers, multiplies, and the sums of the warps, each of which has a share of the inputs, meet
// in shared memory: one trip to the cache, one barrier, one store. What runs after the wait is short and
// straight: its instructions come from memory too.
//
// The weights of the next kernel and the x of this one take the same way through the chip, and whoever asks
// for the weights at once finds his x behind them. So one warp asks for a few rows at a time, a little faster
// than the memory can bring them: a third more slowly takes 13 MB 5 % longer, and as fast as the warp can,
// with eight rows of x, 25 %.
//
// Of many inputs, blocks read much of x: 128 blocks that each want 40 KiB take 1.5 us for it. There two
// blocks of a cluster have the same outputs, each with half of the inputs; each finishes half of the outputs,
// and sends the other its sums of the rest.
//
// Where x is the norm of the residual stream (linear.norm), the block makes it itself, each warp the inputs
// that it multiplies; that saves a kernel.
//
// Weights are the tensor core's A, 16 rows × 16 inputs, which here are 8 outputs × 32 inputs: row g + 8 is
// the same output as row g with other inputs. So the 16 bytes that a lane loads are its operand as they lie,
// where 16 outputs would have to be put together from two loads. B's columns are four rows of x with the
// inputs of A's rows g, and the same four with those of A's rows g + 8; of the sums a half is meant, (g, n)
// and (g + 8, n + 4). More than four rows of x are a second B.
//
// Lane 4 g + t takes the 8 inputs from 8 t of each 32. A row of weights begins 64 bytes further on, modulo
// 128, than the one before it, so that the eight lanes that load at a time, of two rows, meet no other's
// bank.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/ending.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx_stream.cuh"
#include "kernels/cuda/strip.h"

namespace troupe::kernels::cuda {
namespace {

namespace st = troupe::cuda::stream;

constexpr int kWarps = kStripWarps;
constexpr int kThreads = kWarps * 32;
/// Cycles from one KiB of weights that is asked for to the next. Found by trying on an H200, where all
/// multiprocessors together ask for 5 TB/s so. Behind a norm x is twice the bytes, and a step of the 0.3B is
/// shorter if they are hindered less.
constexpr int kPace = 53;
constexpr int pace_behind_norm(int rows) { return rows <= 2 ? 70 : rows <= 4 ? 90 : 110; }
constexpr int kAskedFor = 4;    ///< rows at a time; a block has a multiple of it
constexpr int kGotAt = 56;      ///< in the header: the barrier of what the cluster's other block sends
constexpr int kSquaresAt = 64;  ///< in the header

struct Args {
  const char* weight = nullptr;
  const char* x = nullptr;          ///< without a norm
  const float* residual = nullptr;  ///< with one
  const float* norm_weight = nullptr;
  float eps = 0;
  float of_mean = 0;  ///< 1 / the inputs that there are
  int stride = 0;     ///< inputs with their padding
  int part = 0;       ///< of them, that are a block's
  int rows = 0;
  int height = 0;
  unsigned pace = 0;  ///< cycles from kAskedFor rows of weights to the next
  int sums_at = 0;    ///< in shared memory
  bool sums_over_weights = false;
  EndingArgs ending{};
};

/// Two neighbouring inputs, rounded, as the tensor core takes them.
__device__ __forceinline__ std::uint32_t normed(float2 h, float factor, const float* weight) {
  const float2 w = *reinterpret_cast<const float2*>(weight);
  const auto one = [&](float x) { return to_float(from_float<Bf16>(x * factor)); };
  return pack_two<Bf16>(one(h.x) * w.x, one(h.y) * w.y);
}

/// One block at work on kEights eights of outputs, kPieces pieces of inputs and kSets sets of four rows; one
/// of kSplit blocks that have these outputs.
template <int kSplit, int kEights, int kPieces, int kSets, bool kNorm>
struct Strip {
  const Args& a;
  char* const shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const st::Address full = st::address_of(shared);         ///< a barrier for each two eights
  const int rank = static_cast<int>(blockIdx.x) % kSplit;  ///< in the cluster
  const int first_output = static_cast<int>(blockIdx.x) / kSplit * a.height;
  const int outputs = min(a.height, a.ending.outputs - first_output);
  const int row_bytes = a.stride * 2, part_bytes = a.part * 2, pitch = part_bytes + kStripPadding;
  char* const weights = shared + kStripHeaderBytes + strip_inbox_or_norm(kSplit, kNorm, a.stride);
  const float* const norm_weights = reinterpret_cast<const float*>(shared + kStripHeaderBytes);
  const int g = lane / 4, t = lane % 4;
  const int other = g / 4;                 ///< 1: a column of B for A's rows g + 8
  const int row = kSets == 1 ? g % 4 : g;  ///< of x, that this lane loads
  const bool there = row < a.rows;

  /// By one warp, whose lanes keep together: what an instruction of the copy engine takes is the warp's, and
  /// need not be moved there from a lane.
  __device__ __forceinline__ void bring_weights() const {
    const char* from = a.weight +
                       static_cast<std::size_t>(first_output) * static_cast<std::size_t>(row_bytes) +
                       rank * part_bytes;
    st::Address to = st::address_of(weights), barrier = full;
    const unsigned start = st::cycle();
    unsigned next = 0;
    for (int first = 0; first < outputs; first += 16) {
      const int count = min(16, outputs - first);
      st::expect_bytes(barrier, count * part_bytes, lane == 0);
      for (int o = 0; o < count; o += kAskedFor) {
        while (st::cycle() - start < next) {
        }
        next += a.pace;
#pragma unroll
        for (int i = 0; i < kAskedFor; ++i) {
          st::copy_bytes(to, from, part_bytes, barrier, lane == 0);
          from += row_bytes;
          to += static_cast<st::Address>(pitch);
        }
      }
      barrier += 8;
    }
  }

  /// The first of the eight inputs of this lane, by piece and half of the warp's box.
  __device__ __forceinline__ int input(int piece, int half) const {
    return piece * kStripPiece + warp * kStripBox + half * 32 + t * 8;
  }
  template <class Function>
  __device__ __forceinline__ static void for_each_part(Function&& function) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int half = 0; half < 2; ++half) function(p, half);
    }
  }
  /// Words 0 and 2 of the lane's four; of the other columns 1 and 3.
  struct X {
    std::uint32_t of[kSets][kPieces][2][2];
  };
  /// Of one row's words. Of eight rows, lane ^ 16 has the same inputs of row ^ 4: each has what the other
  /// needs.
  __device__ __forceinline__ void place(X& x, int p, int half, uint4 words) const {
    const std::uint32_t mine[2] = {other ? words.y : words.x, other ? words.w : words.z};
    if constexpr (kSets == 1) {
      x.of[0][p][half][0] = mine[0];
      x.of[0][p][half][1] = mine[1];
    } else {
      const std::uint32_t yours[2] = {other ? words.x : words.y, other ? words.z : words.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t got = __shfl_xor_sync(~0u, yours[i], 16);
        x.of[0][p][half][i] = other ? got : mine[i];
        x.of[1][p][half][i] = other ? mine[i] : got;
      }
    }
  }
  __device__ __forceinline__ void load(X& x) const {
    const char* from =
        a.x + static_cast<std::size_t>(row) * static_cast<std::size_t>(row_bytes) + rank * part_bytes;
    uint4 words[kPieces][2];
    for_each_part([&](int p, int half) {
      const int i = input(p, half);
      words[p][half] = uint4{};
      if (there && i < a.part) words[p][half] = *reinterpret_cast<const uint4*>(from + i * 2);
    });
    for_each_part([&](int p, int half) { place(x, p, half, words[p][half]); });
  }
  /// Constants: before the wait.
  __device__ __forceinline__ void bring_norm_weights() const {
    for (int i = static_cast<int>(threadIdx.x) * 4; i < a.stride; i += kThreads * 4) {
      st::copy_sixteen(st::address_of(norm_weights + i), a.norm_weight + i);
    }
  }
  // Of four rows a lane loads only the words that it needs: lane ^ 16 has the others.
  __device__ __forceinline__ void load_normed(X& x) const {
    constexpr int kWords = 2 * kSets;
    const auto word = [&](int i) { return kSets == 1 ? 2 * i + other : i; };
    const float* from = a.residual + static_cast<std::size_t>(row) * static_cast<std::size_t>(a.stride);
    float2 h[kPieces][2][kWords];
    for_each_part([&](int p, int half) {
      const int first = input(p, half);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        h[p][half][i] = float2{};
        if (there && first < a.stride)
          h[p][half][i] = *reinterpret_cast<const float2*>(from + first + word(i) * 2);
      }
    });
    float squares = 0;
    for_each_part([&](int p, int half) {
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        squares += h[p][half][i].x * h[p][half][i].x + h[p][half][i].y * h[p][half][i].y;
    });
    squares += __shfl_xor_sync(~0u, squares, 1);
    squares += __shfl_xor_sync(~0u, squares, 2);
    if constexpr (kSets == 1) squares += __shfl_xor_sync(~0u, squares, 16);
    float* const all = reinterpret_cast<float*>(shared + kSquaresAt);  // (row, warp)
    if (t == 0 && g < 4 * kSets) all[row * kWarps + warp] = squares;
    st::copies_wait();
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += all[row * kWarps + w];
    const float factor = rsqrtf(sum * a.of_mean + a.eps);
    for_each_part([&](int p, int half) {
      const float* by = norm_weights + min(input(p, half), a.stride - 8);  // beyond, h is zero
      std::uint32_t w[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) w[i] = normed(h[p][half][i], factor, by + word(i) * 2);
      if constexpr (kSets == 1) {
        x.of[0][p][half][0] = w[0];
        x.of[0][p][half][1] = w[1];
      } else {
        place(x, p, half, make_uint4(w[0], w[1], w[2], w[3]));
      }
    });
  }

  struct Sums {
    float of[kSets][kEights][2];  ///< of rows 2 t and 2 t + 1 of the set, t < 2
  };
  /// No branch but the barrier's: all loads are on their way before they are needed.
  template <int kCount>
  __device__ __forceinline__ void multiply_eights(Sums& sums, int first, const X& x) const {
    const char* rows[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) {  // of what is not there, another
      rows[e] = weights + min((first + e) * 8 + g, outputs - 1) * pitch;
    }
    float d[kSets][kCount][2][4] = {};
    if (first * 8 < outputs) st::barrier_wait(full + static_cast<st::Address>(first / 2 * 8), 0);
    for_each_part([&](int p, int half) {
      const int at = min(input(p, half) * 2, part_bytes - 16);  // beyond, x is zero
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const uint4 w = *reinterpret_cast<const uint4*>(rows[e] + at);
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          st::mma<Bf16>(d[set][e][half], w.x, w.y, w.z, w.w, x.of[set][p][half][0], x.of[set][p][half][1]);
        }
      }
    });
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float low = d[set][e][0][c] + d[set][e][1][c],
                      high = d[set][e][0][c + 2] + d[set][e][1][c + 2];
          const float mine = t < 2 ? low : high;
          sums.of[set][first + e][c] = mine + __shfl_xor_sync(~0u, mine, 2);
        }
      }
    }
  }
  __device__ __forceinline__ void multiply(Sums& sums, const X& x) const {
#pragma unroll
    for (int first = 0; first + 1 < kEights; first += 2) multiply_eights<2>(sums, first, x);
    if constexpr (kEights % 2 != 0) multiply_eights<1>(sums, kEights - 1, x);
  }

  // The sums of all warps: (warp, row of x, output).
  __device__ __forceinline__ float* part(int of_warp, int n, int m) const {
    return reinterpret_cast<float*>(shared + a.sums_at) + (of_warp * a.rows + n) * (a.height + 4) + m;
  }
  __device__ __forceinline__ void hand_over(const Sums& sums) const {
    if (a.sums_over_weights) __syncthreads();
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int m = e * 8 + g;
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int n = set * 4 + 2 * t + c;
          if (t < 2 && n < a.rows && m < outputs) *part(warp, n, m) = sums.of[set][e][c];
        }
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ float4 total(int n, int m) const {
    float4 y = *reinterpret_cast<const float4*>(part(0, n, m));
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float4 more = *reinterpret_cast<const float4*>(part(w, n, m));
      y = make_float4(y.x + more.x, y.y + more.y, y.z + more.z, y.w + more.w);
    }
    return y;
  }
};

template <Ending kEnding, int kSplit, int kEights, int kPieces, int kSets, bool kNorm>
__global__ void __launch_bounds__(kThreads, 2) strip_kernel(const Args a) {
  extern __shared__ __align__(128) char shared[];
  troupe::cuda::let_next_start();
  using Block = Strip<kSplit, kEights, kPieces, kSets, kNorm>;
  const Block strip{.a = a, .shared = shared};
  if (strip.outputs <= 0) return troupe::cuda::wait_for_previous();
  const st::Address got = strip.full + kGotAt;
  const int half = a.height / 2;  // of a cluster's outputs, that a block of it finishes
  if (threadIdx.x == 0) {
    for (int i = 0; i < (kEights + 1) / 2; ++i)
      st::barrier_init(strip.full + static_cast<st::Address>(i * 8), 1);
    if constexpr (kSplit == 2) {
      st::barrier_init(got, 1);
      st::barrier_expect(got, max(0, min(half, strip.outputs - strip.rank * half)) * a.rows * 4);
    }
    st::barrier_publish();
  }
  __syncthreads();
  if constexpr (kSplit == 2) st::cluster_arrive();
  if (strip.warp == 0) strip.bring_weights();
  if constexpr (kNorm) strip.bring_norm_weights();
  // What this thread finishes: four outputs of a row; there are at most 8 rows of 12 such.
  constexpr bool pairs = kEnding == Ending::swiglu;
  EndingArgs ending = a.ending;
  ending.ending = kEnding;  // known to the compiler
  const int fours = strip.outputs / (pairs ? 8 : 4);
  const int n = static_cast<int>(threadIdx.x) / fours, four = static_cast<int>(threadIdx.x) - n * fours;
  const int m = pairs ? four / 2 * 16 + four % 2 * 4 : four * 4;
  const int owner = kSplit == 2 && m >= half ? 1 : 0;
  const bool sums_up = n < a.rows, finishes = sums_up && owner == strip.rank;
  Four<Bf16> out(ending, finishes ? n : 0, strip.first_output + (finishes ? m : 0));
  typename Block::X x;
  typename Block::Sums sums;
  if constexpr (kSplit == 2) st::cluster_wait();  // the other may be sent to
  troupe::cuda::wait_for_previous();
  if constexpr (kNorm) {
    strip.load_normed(x);
  } else {
    strip.load(x);
  }
  if (finishes) out.read();
  strip.multiply(sums, x);
  strip.hand_over(sums);
  if (!sums_up) return;
  float4 y = strip.total(n, m);
  if constexpr (kSplit == 2) {
    float4* const inbox =
        reinterpret_cast<float4*>(shared + kStripHeaderBytes) + (n * half + m - owner * half) / 4;
    if (!finishes)
      return st::send(st::address_at(st::address_of(inbox), owner), y, st::address_at(got, owner));
    st::barrier_wait(got, 0);
    y = make_float4(y.x + inbox->x, y.y + inbox->y, y.z + inbox->z, y.w + inbox->w);
  }
  out.finish(y, pairs ? strip.total(n, m + 8) : y);
}

template <Ending kEnding, int kSplit, int kEights, int kPieces, int kSets, bool kNorm>
void launch_strips(Cuda& device, const Linear& linear, const StripPlan& plan) {
  const int stride = row_stride(linear.weight.inputs);
  Args a{.weight = static_cast<const char*>(linear.weight.data),
         .x = static_cast<const char*>(linear.x),
         .residual = linear.norm.residual,
         .norm_weight = linear.norm.weight,
         .eps = linear.norm.eps,
         .stride = stride,
         .part = stride / kSplit,
         .rows = linear.rows,
         .height = plan.height,
         .pace = static_cast<unsigned>(kAskedFor * stride / kSplit * 2 / 1024.0 *
                                       (kNorm ? pace_behind_norm(linear.rows) : kPace)),
         .sums_at = plan.sums_at,
         .sums_over_weights = plan.sums_over_weights,
         .ending = ending_of(linear)};
  if constexpr (kNorm) a.of_mean = 1.0f / static_cast<float>(linear.norm.cols);
  const auto kernel = strip_kernel<kEnding, kSplit, kEights, kPieces, kSets, kNorm>;
  const troupe::cuda::Shape shape{.grid = dim3(static_cast<unsigned>(plan.blocks)),
                                  .block = dim3(kThreads),
                                  .shared_bytes = static_cast<std::size_t>(plan.bytes),
                                  .cluster = kSplit};
  troupe::cuda::allow_shared(kernel, shape.shared_bytes);
  troupe::cuda::launch(device, kernel, shape, a);
}

template <int kSplit, int kEights, int kPieces, int kSets, bool kNorm>
void start(Cuda& device, const Linear& linear, const StripPlan& plan) {
  if constexpr (has_strip_kernel(kSplit, kEights, kPieces, kNorm)) {
    if (linear.ending == Ending::qkv)
      return launch_strips<Ending::qkv, kSplit, kEights, kPieces, kSets, kNorm>(device, linear, plan);
    if constexpr (kSplit == 1) {
      if (linear.ending == Ending::swiglu)
        return launch_strips<Ending::swiglu, kSplit, kEights, kPieces, kSets, kNorm>(device, linear, plan);
    }
    if constexpr (!kNorm)
      return launch_strips<Ending::add, kSplit, kEights, kPieces, kSets, kNorm>(device, linear, plan);
  }
  TROUPE_CHECK(false);  // not a plan of strip_plan()
}
template <int kSplit, int kEights, int kPieces>
void start(Cuda& device, const Linear& linear, const StripPlan& plan) {
  const bool norm = linear.norm.weight != nullptr;
  if (plan.two_sets) {
    return norm ? start<kSplit, kEights, kPieces, 2, true>(device, linear, plan)
                : start<kSplit, kEights, kPieces, 2, false>(device, linear, plan);
  }
  return norm ? start<kSplit, kEights, kPieces, 1, true>(device, linear, plan)
              : start<kSplit, kEights, kPieces, 1, false>(device, linear, plan);
}
template <int kEights>
void start(Cuda& device, const Linear& linear, const StripPlan& plan) {
  if (plan.split == 2) {
    return plan.pieces == 2 ? start<2, kEights, 2>(device, linear, plan)
                            : start<2, kEights, 3>(device, linear, plan);
  }
  return plan.pieces == 2 ? start<1, kEights, 2>(device, linear, plan)
                          : start<1, kEights, 4>(device, linear, plan);
}

}  // namespace

void run_strips(Cuda& device, const Linear& linear, const StripPlan& plan) {
  switch (plan.eights) {
    case 1: return start<1>(device, linear, plan);
    case 2: return start<2>(device, linear, plan);
    case 3: return start<3>(device, linear, plan);
    case 4: return start<4>(device, linear, plan);
    case 5: return start<5>(device, linear, plan);
    default: return start<6>(device, linear, plan);
  }
}

}  // namespace troupe::kernels::cuda
