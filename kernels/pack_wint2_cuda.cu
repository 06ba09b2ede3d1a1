// Pack and FillRandom into wint2: bytes and scales of a file as they are, or drawn, in the order of layout.h.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/pack_codes.h"
#include "kernels/cuda/product/wint2_layout.h"
#include "kernels/fill_random.h"
#include "kernels/wint2.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileOutputs = 64;
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;  // of bytes of codes at a time

/// The parts of a matrix.
struct Wint2Parts {
  explicit Wint2Parts(const Matrix& m)
      : codes(static_cast<std::uint8_t*>(m.data)),
        floats(static_cast<float*>(scales_of(m))),
        groups(static_cast<std::uint8_t*>(scales_of(m)) + wint2_groups_at(padded(m.outputs))),
        row_bytes(cuda::row_bytes(m.format, m.inputs)),
        outputs(padded(m.outputs)) {}

  std::uint8_t* codes;
  float* floats;
  std::uint8_t* groups;
  int row_bytes, outputs;
};

struct Placing {
  Place place = Place::rows;
  int first = 0;
  int outputs = 0;

  __device__ std::size_t row(int o) const { return static_cast<std::size_t>(placed_row(place, first, o)); }
};

/// A block of threads turns the bytes of kTileOutputs outputs × kWint2Unit inputs round.
__global__ void __launch_bounds__(kThreads) place_wint2_codes(const Wint2Parts into, const Placing placing,
                                                              const std::uint8_t* source, int first_piece) {
  constexpr int kOfRow = kThreads / kTileOutputs;  // threads that write a row's bytes, each as many
  constexpr int kBytes = kWint2PieceBytes / kOfRow;
  __shared__ std::uint8_t tile[kWint2PieceBytes][kTileOutputs + 4];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int thread = static_cast<int>(threadIdx.x), column = static_cast<int>(blockIdx.x) * kTileOutputs;
  const auto piece = static_cast<std::size_t>(blockIdx.y);
  for (int i = thread; i < kWint2PieceBytes * kTileOutputs; i += kThreads) {
    const int line = i / kTileOutputs, o = column + i % kTileOutputs;
    if (o < placing.outputs)
      tile[line][i % kTileOutputs] = source[(piece * kWint2PieceBytes + static_cast<std::size_t>(line)) *
                                                static_cast<std::size_t>(placing.outputs) +
                                            static_cast<std::size_t>(o)];
  }
  __syncthreads();
  const int o = thread / kOfRow, part = thread % kOfRow;
  if (column + o >= placing.outputs) return;
  std::uint8_t* row = into.codes + placing.row(column + o) * static_cast<std::size_t>(into.row_bytes) +
                      (static_cast<std::size_t>(first_piece) + piece) * kWint2PieceBytes;
  for (int q = part * kBytes; q < (part + 1) * kBytes; ++q) row[wint2_place(q)] = tile[q][o];
}

struct Wint2Source {
  const std::uint8_t* groups;
  const void* super_scales;
  const float* code_scales;
  const float* code_zps;
};

/// Blocks (outputs, lines of group scales); the first line brings the floats too.
template <class Super>
__global__ void __launch_bounds__(kThreads)
    place_wint2_scales(const Wint2Parts into, const Placing placing, const Wint2Source source) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const int o = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (o >= placing.outputs) return;
  const std::size_t row = placing.row(o), line = blockIdx.y, outputs = static_cast<std::size_t>(into.outputs);
  into.groups[line * outputs + row] =
      source.groups[line * static_cast<std::size_t>(placing.outputs) + static_cast<std::size_t>(o)];
  if (line != 0) return;
  into.floats[row] = to_float(static_cast<const Super*>(source.super_scales)[o]);
  into.floats[outputs + row] = source.code_scales[o];
  into.floats[2 * outputs + row] = source.code_zps[o];
}

/// A thread for each kWint2DrawnInputs inputs of an output.
__global__ void __launch_bounds__(kThreads)
    draw_wint2(const Wint2Parts into, const Placing placing, const FillRandom op, float super_scale) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const auto draws = static_cast<std::size_t>(op.into.inputs / kWint2DrawnInputs);
  const std::size_t n = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= draws * static_cast<std::size_t>(placing.outputs)) return;
  const int o = static_cast<int>(n / draws), i = static_cast<int>(n % draws) * kWint2DrawnInputs;
  const std::size_t row = placing.row(o), outputs = static_cast<std::size_t>(into.outputs);
  const auto output = static_cast<std::uint32_t>(op.first_output + o);
  std::uint64_t bits = draw_bits(op.seed, output, wint2_draw(op.part.first + i));
  std::uint8_t* codes = into.codes + row * static_cast<std::size_t>(into.row_bytes);
  for (int b = 0; b < 8; ++b, bits >>= 8)
    codes[wint2_place(i / kWint2Inputs + b)] = static_cast<std::uint8_t>(bits);
  if (i % kWint2Unit == 0)
    into.groups[static_cast<std::size_t>(i / kWint2Unit) * outputs + row] =
        drawn_wint2_scales(op.seed, output, (op.part.first + i) / kWint2Unit);
  if (i != 0) return;
  into.floats[row] = super_scale;
  into.floats[outputs + row] = kWint2DrawnLine.scale;
  into.floats[2 * outputs + row] = kWint2DrawnLine.zp;
}

}  // namespace

void pack_wint2(Cuda& device, const Pack& op) {
  const StoredWint2& source = *op.wint2;
  TROUPE_CHECK(op.into.format.kind == WeightKind::wint2 && op.into.inputs % kWint2Unit == 0 &&
               op.source_stride >= op.outputs);
  const Wint2Parts into(op.into);
  const Placing placing{op.place, op.first, op.outputs};
  const auto outputs = static_cast<std::size_t>(op.outputs),
             stride = static_cast<std::size_t>(op.source_stride);
  const int units = op.into.inputs / kWint2Unit;
  const auto at_once = static_cast<int>(std::clamp(kPieceBytes / (outputs * kWint2PieceBytes), std::size_t{1},
                                                   static_cast<std::size_t>(units)));
  // The tensors one after the other, those of larger numbers first.
  const std::size_t floats = outputs * sizeof(float), lines = outputs * static_cast<std::size_t>(units);
  auto* const memory = static_cast<std::byte*>(
      device.scratch(3 * floats + lines + outputs * kWint2PieceBytes * static_cast<std::size_t>(at_once)));
  std::byte *const code_scales = memory, *const code_zps = memory + floats,
                   *const super_scales = memory + 2 * floats, *const groups = memory + 3 * floats,
                   *const codes = groups + lines;
  const auto upload = [&](std::byte* to, const StoredWint2::Tensor& tensor, std::size_t line_bytes,
                          std::size_t count) {
    device.upload_lines(to, *tensor.file, tensor.offset, count, line_bytes, stride);
  };
  upload(code_scales, source.code_scales, floats, 1);
  upload(code_zps, source.code_zps, floats, 1);
  upload(super_scales, source.super_scales, outputs * size_of(source.super_type), 1);
  upload(groups, source.groups, outputs, static_cast<std::size_t>(units));
  const auto blocks = [&](int size) { return static_cast<unsigned>((op.outputs + size - 1) / size); };
  with_element(source.super_type, [&](auto element) {
    troupe::cuda::launch(
        device, place_wint2_scales<decltype(element)>,
        {.grid = dim3(blocks(kThreads), static_cast<unsigned>(units)), .block = kThreads}, into, placing,
        Wint2Source{reinterpret_cast<const std::uint8_t*>(groups), super_scales,
                    reinterpret_cast<const float*>(code_scales), reinterpret_cast<const float*>(code_zps)});
  });
  for (int unit = 0; unit < units; unit += at_once) {
    const int count = std::min(at_once, units - unit);
    const auto skipped = static_cast<std::size_t>(unit) * kWint2PieceBytes * stride;
    upload(codes, {op.file, op.offset + skipped}, outputs,
           static_cast<std::size_t>(count) * kWint2PieceBytes);
    troupe::cuda::launch(
        device, place_wint2_codes,
        {.grid = dim3(blocks(kTileOutputs), static_cast<unsigned>(count)), .block = kThreads}, into, placing,
        reinterpret_cast<const std::uint8_t*>(codes), unit);
  }
}

void fill_wint2(Cuda& device, const FillRandom& op) {
  TROUPE_CHECK(op.into.inputs % kWint2Unit == 0 && op.part.first % kWint2Unit == 0);
  const std::size_t threads =
      static_cast<std::size_t>(op.outputs) * static_cast<std::size_t>(op.into.inputs / kWint2DrawnInputs);
  troupe::cuda::launch(
      device, draw_wint2,
      {.grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads), .block = kThreads},
      Wint2Parts(op.into), Placing{op.place, op.first, op.outputs}, op,
      drawn_wint2_super_scale(op.deviation));
}

}  // namespace troupe::kernels::cuda
