// Experts of a few rows. Which experts a row has is known only when the routing ends, and their weights are
// read once, so the time from that moment to the last byte counts: a warp requests its weights into shared
// memory of its own, mostly all at once, where a ring that a block shares takes a trip to memory for each
// turn.
//
// gate|up: a block has 16 outputs (eight gates and their ups) of an expert's one row, or of a shared slice's
// up to four; its warps share the inputs. down: a block has 16 outputs of a row and all of the row's experts,
// which its warps share, and adds them to the stream: no kernel sums them up afterwards.
//
// Operands of mma.sync lie in lanes as in streams (stream_block.cuh), but output g of eight is A's row g.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/moe/few_launch.h"
#include "kernels/cuda/product/codes.cuh"
#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/halved_norm.cuh"
#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/norm_producer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace few;
using streaming::kChunkBytes;

/// A stack of experts and shared slices.
struct StackArgs {
  const char* weights = nullptr;
  std::size_t stride = 0;     ///< bytes from one expert's weights to the next
  std::size_t row_bytes = 0;  ///< of weights
  std::size_t scales_at = 0;  ///< bytes from an expert's weights to its scales
  int boxes = 0;              ///< of a row of weights
  int x_bytes = 0;            ///< of a row of x
};

StackArgs stack_of(const MatrixStack& stack) {
  const Matrix& m = stack.first;
  return {.weights = static_cast<const char*>(m.data),
          .stride = stack.stride(),
          .row_bytes = static_cast<std::size_t>(row_bytes(m.format, m.inputs)),
          .scales_at = weight_bytes(m.format, m.outputs, m.inputs),
          .boxes = boxes_of(m.format, m.inputs),
          .x_bytes = row_stride(m.inputs) * 2};
}

struct FewArgs {
  StackArgs stack{};
  const char* x = nullptr;
  const std::int32_t* experts = nullptr;  ///< (rows, top_k); negative: none here
  int rows = 0, top_k = 0, shared = 0, held = 0;
};

/// A warp's part of the inputs of 16 outputs. Its weights come by way of shared memory past the L1 cache,
/// kHeld boxes at a time: 128 bytes of each of 16 rows, as narrower requests do not reach the memory's
/// bandwidth. The 16-byte chunk c of row r lies at chunk c ^ (r % 2 * 4), so that eight lanes that load at a
/// time use different banks.
template <class Kind, int kHeld>
struct WarpProduct {
  using Codes = typename Kind::Codes;
  static constexpr int kOperands = Codes::kOperands;
  static constexpr int kBoxInputBytes = 2 * kOperands * kChunkBytes;  ///< of x

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const ptx::SharedAddress to;     ///< of the 16 bytes that the lane requests of the first rows of a box
  const ptx::SharedAddress codes;  ///< of the lane's 16 bytes of output g in a box
  const char* from = nullptr;      ///< what the lane requests of the next box
  std::size_t four_rows = 0;       ///< bytes
  int first_box = 0, boxes = 0;    ///< of a tile of outputs
  int box_bytes = 0;               ///< from the lane's 16 bytes of the first box to the end of its row
  int next = 0, left = 0, to_slot = 0, slot = 0;  ///< the next box to request, of how many; their slots
  float sums[2][4];

  /// `ring`: the warp's.
  __device__ __forceinline__ explicit WarpProduct(ptx::SharedAddress ring)
      : to(ring + lane / 8 * kBoxRowBytes + ((lane % 8) ^ (lane / 8 % 2 * 4)) * 16),
        codes(ring + g * kBoxRowBytes + (t ^ (g % 2 * 4)) * 16) {}

  /// Begins with `tiles` times 16 outputs, of which `weights` are, one after the other.
  __device__ __forceinline__ void begin(const char* weights, std::size_t row_bytes, int first, int count,
                                        int tiles) {
    first_box = first;
    boxes = count;
    left = tiles * count;
    const int at = first * kBoxRowBytes + lane % 8 * 16;
    from = weights + static_cast<std::size_t>(lane / 8) * row_bytes + at;
    four_rows = 4 * row_bytes;
    box_bytes = static_cast<int>(row_bytes) - at;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) request();
  }
  __device__ __forceinline__ void request() {
    if (left > 0) {
      const ptx::SharedAddress at = to + static_cast<ptx::SharedAddress>(to_slot);
      const bool there = next * kBoxRowBytes < box_bytes;  // else x is zero, and weights must be finite
#pragma unroll
      for (int i = 0; i < kOutputs / 4; ++i)
        ptx::copy_async_16_or_zero(at + static_cast<ptx::SharedAddress>(i * 4 * kBoxRowBytes),
                                   from + i * four_rows, there);
      --left;
      to_slot = to_slot == (kHeld - 1) * kBoxBytes ? 0 : to_slot + kBoxBytes;
      from += kBoxRowBytes;
      if (++next == boxes) {
        next = 0;
        from += 4 * four_rows - static_cast<std::size_t>(boxes * kBoxRowBytes);
      }
    }
    ptx::copy_async_commit();
  }
  /// Brings the warp's inputs of a row of x, for the whole warp after __syncwarp(); its later ones are zero.
  __device__ __forceinline__ void bring_x(ptx::SharedAddress to_row, const char* row, int x_bytes) const {
    constexpr int kAtOnce = 3;
    const int first = first_box * kBoxInputBytes, bytes = boxes * kBoxInputBytes;
    for (int begin = lane * 16; begin < bytes; begin += kAtOnce * 512) {
      uint4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + begin + i * 512;
        v[i] = begin + i * 512 < bytes && at < x_bytes ? __ldcg(reinterpret_cast<const uint4*>(row + at))
                                                       : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i * 512 < bytes)
          ptx::store_shared_16(to_row + static_cast<ptx::SharedAddress>(begin + i * 512), v[i]);
      }
    }
  }
  /// Multiplies the next tile. `x`: the row of the lane's column of B, of which it takes 16 bytes from 16 t
  /// of each 64.
  __device__ __forceinline__ void multiply(ptx::SharedAddress x) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[0][c] = sums[1][c] = 0;
    for (int box = 0; box < boxes; ++box) {
      ptx::copy_async_wait<kHeld - 1>();
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const ptx::SharedAddress at =
            (codes ^ static_cast<ptx::SharedAddress>(half * 64)) + static_cast<ptx::SharedAddress>(slot);
        const uint4 low_codes = ptx::load_shared_16(at),
                    high_codes = ptx::load_shared_16(at + 8 * kBoxRowBytes);
#pragma unroll
        for (int o = 0; o < kOperands; ++o) {
          const uint4 b =
              ptx::load_shared_16(x + static_cast<ptx::SharedAddress>((half * kOperands + o) * kChunkBytes));
          const uint4 low = Codes::operand(low_codes, o), high = Codes::operand(high_codes, o);
          ptx::mma<typename Kind::T>(sums[0], low.x, high.x, low.y, high.y, b.x, b.y);
          ptx::mma<typename Kind::T>(sums[1], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
      x += kBoxInputBytes;
      slot = slot == (kHeld - 1) * kBoxBytes ? 0 : slot + kBoxBytes;
      __syncwarp();
      request();
    }
  }
  /// Of output g + 8 (c / 2), and column 2 t + c % 2 of B.
  __device__ __forceinline__ float sum(int c) const { return sums[0][c] + sums[1][c]; }
};

struct GateUpArgs : FewArgs {
  int warp_boxes = 0;              ///< that a warp has of a tile, at most
  int tiles = 0, block_tiles = 0;  ///< of 16 outputs, and those of a block, at most
  void* out = nullptr;             ///< (shared · rows, then rows · top_k)
  int out_stride = 0;
  ConsumedNorm norm{};
  const float* factors = nullptr;  ///< Routing::factors
};

template <class Kind>
__global__ void __launch_bounds__(kMostWarps * 32, 4) few_gate_up(const GateUpArgs a) {
  extern __shared__ __align__(kBoxRowBytes) char shared[];
  __shared__ float output_scales[kMostTiles * kOutputs];
  __shared__ float factors[kMostFewRows];
  using T = typename Kind::T;
  using Codes = typename Kind::Codes;
  const int warps = static_cast<int>(blockDim.x) / 32, thread = static_cast<int>(threadIdx.x),
            warp = thread / 32;
  WarpProduct<Kind, kGateUpHeld> product(ptx::shared_address(shared) +
                                         static_cast<ptx::SharedAddress>(warp * kGateUpHeld * kBoxBytes));
  // Blocks of the shared slices come first. Their rows are known: they run beside the routing, and wait where
  // the others end.
  const int part = static_cast<int>(blockIdx.y), choice = part - a.shared;
  const bool known = choice < 0;
  int expert = a.held + part;
  if (!known) {
    troupe::cuda::wait_for_previous();
    troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one
    expert = a.experts[choice];
    if (expert < 0) return;
  }
  const char* const weights = a.stack.weights + static_cast<std::size_t>(expert) * a.stack.stride;
  const int first_output = static_cast<int>(blockIdx.x) * a.block_tiles * kOutputs;
  const int tiles = min(a.block_tiles, a.tiles - static_cast<int>(blockIdx.x) * a.block_tiles);
  const int first_box = min(a.stack.boxes, warp * a.warp_boxes);
  product.begin(weights + static_cast<std::size_t>(first_output) * a.stack.row_bytes, a.stack.row_bytes,
                first_box, min(a.stack.boxes - first_box, a.warp_boxes), tiles);
  if constexpr (Codes::kOutputScales) {
    for (int i = thread; i < tiles * kOutputs; i += static_cast<int>(blockDim.x))
      output_scales[i] =
          __ldg(reinterpret_cast<const float*>(weights + a.stack.scales_at) + first_output + i);
  }
  const int rows = known ? a.rows : 1, first_row = known ? 0 : choice / a.top_k;
  const int pitch = x_pitch(a.warp_boxes * 2 * Codes::kOperands);
  char* const behind_rings = shared + warps * kGateUpHeld * kBoxBytes;
  const ptx::SharedAddress x =
      ptx::shared_address(behind_rings) + static_cast<ptx::SharedAddress>(warp * a.rows * pitch);
  for (int r = 0; r < rows; ++r)
    product.bring_x(x + static_cast<ptx::SharedAddress>(r * pitch),
                    a.x + static_cast<std::size_t>(first_row + r) * static_cast<std::size_t>(a.stack.x_bytes),
                    a.stack.x_bytes);
  if (a.norm.squares != nullptr) {
    if (!known) {
      if (thread == 0) factors[0] = a.factors[first_row];
    } else {  // the routing may not have got so far
      for (int r = warp; r < rows; r += warps) {
        const float factor = a.norm.factor(r);
        if (product.lane == 0) factors[r] = factor;
      }
    }
  }
  __syncwarp();
  const ptx::SharedAddress x_of_lane =
      x + static_cast<ptx::SharedAddress>(min(product.g, rows - 1) * pitch + product.t * 16);
  float* const sums = reinterpret_cast<float*>(behind_rings + warps * a.rows * pitch);
  const int r = thread / 8, i = thread % 8;
  const int place = known ? part * a.rows + r : a.shared * a.rows + choice;
  T* const out = static_cast<T*>(a.out) +
                 static_cast<std::size_t>(place) * static_cast<std::size_t>(a.out_stride) +
                 static_cast<std::size_t>(first_output / 2 + i);
  for (int tile = 0; tile < tiles; ++tile) {
    product.multiply(x_of_lane);
    // Two buffers: one barrier a tile.
    float* const of_tile = sums + tile % 2 * (warps * a.rows * kOutputs);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = 2 * product.t + c % 2;
      if (column < a.rows)
        of_tile[(warp * a.rows + column) * kOutputs + product.g + c / 2 * 8] = product.sum(c);
    }
    __syncthreads();
    if (r >= rows) continue;
    float gate = 0, up = 0;
    for (int w = 0; w < warps; ++w) {
      const float* of_row = of_tile + (w * a.rows + r) * kOutputs;
      gate += of_row[i];
      up += of_row[8 + i];
    }
    if constexpr (Codes::kOutputScales) {
      gate *= output_scales[tile * kOutputs + i];
      up *= output_scales[tile * kOutputs + 8 + i];
    }
    if (a.norm.squares != nullptr) {
      gate *= factors[r];
      up *= factors[r];
    }
    out[tile * 8] = from_float<T>(silu<T>(gate) * up);
  }
  if (known) troupe::cuda::wait_for_previous();
}

struct DownArgs : FewArgs {
  float* residual = nullptr;
  const float* weights = nullptr;  ///< (rows, top_k) of the chosen experts
  const KvSlot* slots = nullptr;
  int stride = 0;  ///< of the residual
  bool exact = false;
  HalvedNorm produced{};
};

template <class Kind>
__global__ void __launch_bounds__(kMostWarps * 32, 4) few_down(const DownArgs a) {
  extern __shared__ __align__(kBoxRowBytes) char shared[];
  using T = typename Kind::T;
  using Codes = typename Kind::Codes;
  const int warps = static_cast<int>(blockDim.x) / 32, thread = static_cast<int>(threadIdx.x),
            warp = thread / 32;
  const int row = static_cast<int>(blockIdx.y), first_output = static_cast<int>(blockIdx.x) * kOutputs;
  const int parts = a.top_k + a.shared;
  const int pitch = x_pitch(a.stack.boxes * 2 * Codes::kOperands);
  const ptx::SharedAddress ring =
      ptx::shared_address(shared) + static_cast<ptx::SharedAddress>(warp * kDownHeld * kBoxBytes);
  char* const behind_rings = shared + warps * kDownHeld * kBoxBytes;
  const ptx::SharedAddress x =
      ptx::shared_address(behind_rings) + static_cast<ptx::SharedAddress>(warp * pitch);
  float* const outputs = reinterpret_cast<float*>(behind_rings + warps * pitch);
  bool waited = false;
  const NormProducer<kSquaresPerSum / 4> norm(a.produced, thread < kOutputs / 4, row,
                                              first_output + thread * 4, a.stride);
  troupe::cuda::let_next_start();
  for (int k = warp; k < parts; k += warps) {
    const int slice = k - a.top_k;
    // The choices are settled (launch.cuh).
    const int expert = slice >= 0 ? a.held + slice : __ldcg(a.experts + row * a.top_k + k);
    WarpProduct<Kind, kDownHeld> product(ring);
    float scales[2] = {1, 1};
    if (expert >= 0) {
      const char* const weights = a.stack.weights + static_cast<std::size_t>(expert) * a.stack.stride;
      product.begin(weights + static_cast<std::size_t>(first_output) * a.stack.row_bytes, a.stack.row_bytes,
                    0, a.stack.boxes, 1);
      if constexpr (Codes::kOutputScales) {
        const float* of_outputs =
            reinterpret_cast<const float*>(weights + a.stack.scales_at) + first_output + product.g;
        scales[0] = __ldg(of_outputs);
        scales[1] = __ldg(of_outputs + 8);
      }
    }
    if (!waited) troupe::cuda::wait_for_previous();
    waited = true;
    float y[2] = {};
    if (expert >= 0) {
      const int place = slice >= 0 ? slice * a.rows + row : a.shared * a.rows + row * a.top_k + k;
      product.bring_x(x, a.x + static_cast<std::size_t>(place) * static_cast<std::size_t>(a.stack.x_bytes),
                      a.stack.x_bytes);
      const float weight = slice >= 0 ? 1.0f : a.weights[row * a.top_k + k];
      __syncwarp();
      product.multiply(x + static_cast<ptx::SharedAddress>(product.t * 16));
      __syncwarp();
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        y[c] = weight * (product.sum(2 * c) * scales[c]);
        if (!a.exact) y[c] = to_float(from_float<T>(y[c]));
      }
    }
    if (product.t == 0) {
      outputs[k * kOutputs + product.g] = y[0];
      outputs[k * kOutputs + product.g + 8] = y[1];
    }
  }
  if (!waited) troupe::cuda::wait_for_previous();
  __syncthreads();
  if (thread >= kOutputs / 4) return;
  float* const to = a.residual + static_cast<std::size_t>(row) * static_cast<std::size_t>(a.stride) +
                    first_output + thread * 4;
  float4 h = *reinterpret_cast<const float4*>(to);
  if (a.slots == nullptr || a.slots[row].block != kPaddingBlock) {
    for (int k = 0; k < parts; ++k) {
      const float4 y = *reinterpret_cast<const float4*>(outputs + k * kOutputs + thread * 4);
      h = make_float4(h.x + y.x, h.y + y.y, h.z + y.z, h.w + y.w);
    }
    *reinterpret_cast<float4*>(to) = h;
  }
  norm.store(h);
}

constexpr auto kGateUpRows = make_table<kCodeKinds>([](auto row) {
  if constexpr (has_few_kernel(static_cast<CodeKind>(static_cast<int>(row)))) {
    return KernelRow<GateUpArgs>{few_gate_up<MultipliedAt<row>>};
  } else {
    return KernelRow<GateUpArgs>{};
  }
});
constexpr auto kDownRows = make_table<kCodeKinds>([](auto row) {
  if constexpr (has_few_kernel(static_cast<CodeKind>(static_cast<int>(row)))) {
    return KernelRow<DownArgs>{few_down<MultipliedAt<row>>};
  } else {
    return KernelRow<DownArgs>{};
  }
});

}  // namespace

void run_few(Cuda& device, const Moe& op, const MoeLayout& layout, const HalvedNorm& consumed,
             const HalvedNorm& produced) {
  const Matrix &gate_up = op.gate_up.first, &down = op.down.first;
  const auto kind = static_cast<std::size_t>(code_kind(down.format));
  const FewArgs common{.experts = layout.routing.experts,
                       .rows = op.rows,
                       .top_k = op.top_k,
                       .shared = op.shared,
                       .held = op.in_stacks()};
  const GateUpPlan plan = gate_up_plan(shape_of(op), traits_of(device));
  GateUpArgs a{common};
  a.stack = stack_of(op.gate_up);
  a.x = static_cast<const char*>(op.x);
  a.warp_boxes = plan.boxes;
  a.tiles = padded(gate_up.outputs) / kOutputs;
  a.block_tiles = plan.tiles;
  a.out = layout.activations;
  a.out_stride = padded(down.inputs);
  a.norm = ConsumedNorm(consumed);
  a.factors = layout.routing.factors;
  launch(device, kGateUpRows[kind],
         {.x = (a.tiles + plan.tiles - 1) / plan.tiles,
          .y = op.shared + op.rows * op.top_k,
          .shared_bytes = plan.shared_bytes,
          .threads = plan.warps * 32},
         {.holds_next = true, .reads_settled = op.shared > 0 ? op.x : nullptr}, a);

  const DownPlan of_down = down_plan(down.format, down.inputs, op.top_k + op.shared);
  const int hidden = padded(down.outputs);
  DownArgs b{common};
  b.stack = stack_of(op.down);
  b.x = reinterpret_cast<const char*>(layout.activations);
  b.residual = op.residual;
  b.weights = layout.routing.weights;
  b.slots = op.slots;
  b.stride = hidden;
  b.exact = layout.exact;
  b.produced = produced;
  launch(device, kDownRows[kind],
         {.x = hidden / kOutputs,
          .y = op.rows,
          .shared_bytes = of_down.shared_bytes,
          .threads = of_down.warps * 32},
         {.reads_constant = down.data, .reads_settled = layout.routing.experts}, b);
}

std::vector<CompiledKernel> few_kernels() { return compiled_of(kGateUpRows, kDownRows); }

}  // namespace troupe::kernels::cuda
