// The generic way of a product: fp32 multiply-adds on tiles in shared memory.
#include "base/check.h"
#include "kernels/cuda/product/ending.cuh"
#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/wint2_layout.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kTile = kGenericTile;
constexpr int kDepth = 32;     // inputs at a time
constexpr int kThreads = 256;  // 16 × 16, each 4 outputs × 4 rows
constexpr int kPitch = kTile + 4;

struct GenericArgs {
  const void* weight = nullptr;
  WeightFormat format{};
  std::size_t row_bytes = 0;  ///< of weight
  std::size_t scales_at = 0;  ///< bytes from a group's weight to its scales
  const void* x = nullptr;    ///< numbers, or codes where the weights are fp8
  const float* x_scales = nullptr;
  int stride = 0;  ///< elements of a row of x
  int rows = 0;
  int row_tiles = 0;
  Groups groups{};
  EndingArgs ending{};
};

/// A row of weights of T.
template <class T>
struct FloatRow {
  using X = T;
  static constexpr bool kScaledBlocks = false;
  const T* row = nullptr;

  __device__ FloatRow(const GenericArgs& a, const char* weight, int output)
      : row(reinterpret_cast<const T*>(weight + static_cast<std::size_t>(output) * a.row_bytes)) {}
  __device__ float at(int input) const { return to_float(row[input]); }
  __device__ static float output_scale(const GenericArgs&, const char*, int) { return 1; }
};

/// A row of codes; a code in a group comes with its scale, exactly whatever T is.
template <class T>
struct CodeRow {
  using X = T;
  static constexpr bool kScaledBlocks = false;
  WeightFormat format;
  const char* row;
  const Bf16* scales;  ///< of the output's first group
  int pitch;           ///< from a group's scale to the next

  __device__ CodeRow(const GenericArgs& a, const char* weight, int output)
      : format(a.format),
        row(weight + static_cast<std::size_t>(output) * a.row_bytes),
        scales(reinterpret_cast<const Bf16*>(weight + a.scales_at) + output),
        pitch(a.ending.outputs) {}
  __device__ float at(int input) const {
    const CodePlace place = code_place(format, input);
    const int shift = 32 - format.bits();  // brings the sign of the code to the sign of the int
    const int bits = static_cast<unsigned char>(row[place.byte]) >> place.shift;
    const auto code = static_cast<float>(static_cast<int>(static_cast<unsigned>(bits) << shift) >> shift);
    if (format.group == 0) return code;
    return code * to_float(scales[static_cast<std::size_t>(input / format.group) * pitch]);
  }
  __device__ static float output_scale(const GenericArgs& a, const char* weight, int output) {
    if (a.format.group != 0) return 1;
    return reinterpret_cast<const float*>(weight + a.scales_at)[output];
  }
};

/// A row of wint2. A code comes with its group's scale, exactly.
template <class T>
struct Wint2Row {
  using X = T;
  static constexpr bool kScaledBlocks = false;
  const char* row;
  const std::uint8_t* groups;  ///< of the output's first kWint2Unit inputs
  int inputs, pitch;
  float code_scale, code_zp;

  __device__ Wint2Row(const GenericArgs& a, const char* weight, int output)
      : row(weight + static_cast<std::size_t>(output) * a.row_bytes),
        groups(reinterpret_cast<const std::uint8_t*>(weight + a.scales_at) +
               wint2_groups_at(a.ending.outputs) + output),
        inputs(static_cast<int>(a.row_bytes) * kWint2Inputs),
        pitch(a.ending.outputs) {
    const float* floats = reinterpret_cast<const float*>(weight + a.scales_at) + output;
    code_scale = floats[a.ending.outputs];
    code_zp = floats[2 * a.ending.outputs];
  }
  __device__ float at(int input) const {
    if (input >= inputs) return 0;
    const float byte = static_cast<float>(static_cast<unsigned char>(row[wint2_place(input / kWint2Inputs)]));
    const int word = __float2int_rd(__fadd_rn(__fmaf_rn(byte, code_scale, code_zp), 0.5f));
    const int both = groups[static_cast<std::size_t>(input / kWint2Unit) * pitch];
    return static_cast<float>(wint2_code(word, input % kWint2Inputs) *
                              (input % kWint2Unit < kWint2Group ? both >> 4 : both & 15));
  }
  __device__ static float output_scale(const GenericArgs& a, const char* weight, int output) {
    return reinterpret_cast<const float*>(weight + a.scales_at)[output];
  }
};

/// A row of fp8 codes. The sum over each block of inputs is multiplied by the scales of x and of the weights.
struct Fp8Row {
  using X = E4m3;
  static constexpr bool kScaledBlocks = true;
  const E4m3* row;

  __device__ Fp8Row(const GenericArgs& a, const char* weight, int output)
      : row(reinterpret_cast<const E4m3*>(weight + static_cast<std::size_t>(output) * a.row_bytes)) {}
  __device__ float at(int input) const { return to_float(row[input]); }
  __device__ static float output_scale(const GenericArgs&, const char*, int) { return 1; }
};

/// Row of x that row p of the product reads.
__device__ __forceinline__ std::size_t row_of_x(const GenericArgs& a, int p) {
  return static_cast<std::size_t>(a.groups.gather != nullptr ? a.groups.gather[p] : p);
}

// Sums run over the inputs in rising order whatever the tile, so a row's bits do not depend on other rows.
template <class T, class Row>
__global__ void __launch_bounds__(kThreads) generic(const GenericArgs a) {
  __shared__ float w_tile[kDepth][kPitch], x_tile[kDepth][kPitch];
  __shared__ float sums_at[kTile][kPitch];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();  // not earlier: this kernel holds the next one (Groups::settled)
  const int tile = static_cast<int>(blockIdx.x);
  const int first_output = tile / a.row_tiles * kTile;
  const RowTile rows = find_rows(a.groups.offsets, a.groups.count, a.rows, kTile, tile % a.row_tiles);
  if (rows.count <= 0) return;
  const int outputs = min(kTile, a.ending.outputs - first_output);
  const auto stride = static_cast<std::size_t>(a.stride);
  const char* weight =
      static_cast<const char*>(a.weight) + static_cast<std::size_t>(rows.group) * a.groups.weight_stride;
  using X = typename Row::X;

  // Each thread loads 8 inputs of one row of each operand; four threads share a row.
  const int thread = static_cast<int>(threadIdx.x);
  const int line = thread / 4, at = thread % 4 * 8;
  const bool has_output = line < outputs;
  const Row w_from(a, weight, first_output + (has_output ? line : 0));
  const X* x_from = nullptr;
  if (line < rows.count) x_from = static_cast<const X*>(a.x) + row_of_x(a, rows.first + line) * stride + at;
  const int m = thread % 16 * 4, n = thread / 16 * 4;
  float sums[4][4] = {};
  [[maybe_unused]] float scaled_sums[4][4] = {};
  for (int k = 0; k < a.stride; k += kDepth) {
    for (int i = 0; i < 8; ++i) {
      w_tile[at + i][line] = has_output ? w_from.at(k + at + i) : 0.0f;
      x_tile[at + i][line] = x_from != nullptr ? to_float(x_from[k + i]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const float4 w = *reinterpret_cast<const float4*>(&w_tile[i][m]);
      const float4 v = *reinterpret_cast<const float4*>(&x_tile[i][n]);
      const float ws[4] = {w.x, w.y, w.z, w.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int o = 0; o < 4; ++o) sums[r][o] = fmaf(ws[o], vs[r], sums[r][o]);
      }
    }
    __syncthreads();
    if constexpr (Row::kScaledBlocks) {
      if ((k + kDepth) % kFp8Block != 0) continue;
      const auto blocks = stride / kFp8Block, block = static_cast<std::size_t>(k / kFp8Block);
      const auto eight = static_cast<std::size_t>((first_output + m) / kFp8ScaleOutputs);
      const float* scales = reinterpret_cast<const float*>(weight + a.scales_at);
      const auto eights = static_cast<std::size_t>(a.ending.outputs / kFp8ScaleOutputs);
      const float w_scale = m < outputs ? scales[block * eights + eight] : 0.0f;
      for (int r = 0; r < 4; ++r) {
        float scale = 0;
        if (n + r < rows.count)
          scale = a.x_scales[row_of_x(a, rows.first + n + r) * blocks + block] * w_scale;
        for (int o = 0; o < 4; ++o) {
          scaled_sums[r][o] = fmaf(sums[r][o], scale, scaled_sums[r][o]);
          sums[r][o] = 0;
        }
      }
    }
  }
  if constexpr (Row::kScaledBlocks) {
    for (int r = 0; r < 4; ++r) {
      for (int o = 0; o < 4; ++o) sums[r][o] = scaled_sums[r][o];
    }
  }
  for (int r = 0; r < 4; ++r) {
    for (int o = 0; o < 4; ++o) {
      sums_at[n + r][m + o] =
          m + o < outputs ? sums[r][o] * Row::output_scale(a, weight, first_output + m + o) : 0.0f;
    }
  }
  __syncthreads();
  const bool pairs = a.ending.ending == Ending::swiglu;
  const int fours = pairs ? outputs / 8 : outputs / 4;
  for (int i = thread; i < fours * rows.count; i += kThreads) {
    const int r = i / fours, f = i % fours;
    const int o = pairs ? f / 2 * 16 + f % 2 * 4 : f * 4;
    const float4 y = *reinterpret_cast<const float4*>(&sums_at[r][o]);
    const float4 up = pairs ? *reinterpret_cast<const float4*>(&sums_at[r][o + 8]) : y;
    if (a.ending.ending == Ending::qkv && a.ending.kv.head_dim % 4 != 0) {
      end_pair<T>(a.ending, rows.first + r, first_output + o, y.x, y.y);
      end_pair<T>(a.ending, rows.first + r, first_output + o + 2, y.z, y.w);
    } else {
      Four<T> four(a.ending, rows.first + r, first_output + o);
      four.read();
      four.finish(y, up);
    }
  }
}

/// Rows of weights of floats, of codes, of wint2 and of fp8, of each type of activations.
template <class T>
constexpr KernelRow<GenericArgs> kRowsOf[] = {{generic<T, FloatRow<T>>, kThreads},
                                              {generic<T, CodeRow<T>>, kThreads},
                                              {generic<T, Wint2Row<T>>, kThreads},
                                              {generic<T, Fp8Row>, kThreads}};

int row_of(const WeightFormat& format) {
  switch (format.kind) {
    case WeightKind::fp8: return 3;
    case WeightKind::wint2: return 2;
    default: return format.quantised() ? 1 : 0;
  }
}

}  // namespace

void run_generic(Cuda& device, const Linear& linear) {
  const Matrix& weight = linear.weight;
  const bool fp8 = takes_coded_x(weight.format);
  TROUPE_CHECK(!fp8 || (linear.x_codes != nullptr && linear.x_scales != nullptr));
  const LinearShape shape = shape_of(linear);
  const GenericArgs a{.weight = weight.data,
                      .format = weight.format,
                      .row_bytes = static_cast<std::size_t>(row_bytes(weight.format, weight.inputs)),
                      .scales_at = weight_bytes(weight.format, weight.outputs, weight.inputs),
                      .x = fp8 ? linear.x_codes : linear.x,
                      .x_scales = linear.x_scales,
                      .stride = fp8 ? coded_stride(weight.inputs) : row_stride(weight.inputs),
                      .rows = linear.rows,
                      .row_tiles = most_row_tiles(shape, kTile),
                      .groups = linear.groups,
                      .ending = ending_of(linear)};
  with_element(weight.activations(), [&](auto element) {
    launch(
        device, kRowsOf<decltype(element)>[row_of(weight.format)], generic_size(shape),
        { .holds_next = true }, a);
  });
}

std::vector<CompiledKernel> generic_kernels() {
  return compiled_of(kRowsOf<Bf16>, kRowsOf<F16>, kRowsOf<float>);
}

}  // namespace troupe::kernels::cuda
