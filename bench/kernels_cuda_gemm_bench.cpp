// The matrix products of a prefill step on the GPU, with their endings, for the 0.3B and the 21B model.
//
// The bound of a row is the lower of two: the tensor cores' peak in this run (operands in shared memory,
// random numbers), and the copy bandwidth of this run applied to the bytes that the product must move. The
// square product is compared with kSquareElsewhere. --codes: instead the 21B's products with weights in
// codes, expanded in memory or unpacked in registers, beside those in bf16.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_graph.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/fill_random.h"
#include "kernels/matrix_peak.h"

namespace troupe::bench {
namespace {

using namespace kernels;
using cuda::Ending;

/// TFLOP/s of an 8192 × 8192 × 8192 product in bf16 by the vendor's library, measured on H200 cards (769 to
/// 798).
constexpr double kSquareElsewhere = 790;

constexpr int kExperts = 64, kShared = 2, kTopK = 6;
constexpr std::size_t kWeightBytes = std::size_t{2400} << 20;  // rotated through: none stays in the L2 cache
constexpr int kMostRows = 8192;
constexpr int kMostPlaces = kMostRows * (kTopK + kShared);

struct Shape {
  const char* name;
  Ending ending;
  int outputs, inputs;
  bool experts = false;
  int heads = 0, kv_heads = 0;
  double must = 0;  ///< TFLOP/s at 8192 rows
};

class Arena {
 public:
  explicit Arena(Cuda& device) : device_(device) {
    weights_ = random(DType::bf16, static_cast<int>(kWeightBytes / 2 / 8192), 8192, 0.02f);
    x_ = random(DType::bf16, kMostPlaces, 1536, 1);  // 8192 rows of 12288 as well
    out_ = random(DType::f32, kMostPlaces / 2, 2560, 1);
    scale_ = random(DType::f32, kMostPlaces / 32, 32, 1);
    rope_ = random(DType::f32, kMostRows, 128, 1);
    q_ = random(DType::bf16, kMostRows, 2560, 1);
    kv_ = {random(DType::bf16, kMostRows, 2 * 4 * 128, 1), DType::bf16, 1, 4, 128};
    std::vector<KvSlot> slots(kMostRows);
    for (int r = 0; r < kMostRows; ++r)
      slots[static_cast<std::size_t>(r)] = {r / kBlockTokens, r % kBlockTokens};
    slots_ = static_cast<KvSlot*>(take(slots.size() * sizeof(KvSlot)));
    device.upload(slots_, slots.data(), slots.size() * sizeof(KvSlot));
    offsets_ = static_cast<std::int32_t*>(take((kExperts + kShared + 1) * sizeof(std::int32_t)));
    gather_ = static_cast<std::int32_t*>(take(kMostPlaces * sizeof(std::int32_t)));
    device.sync();
  }

  /// Product number `turn`; each has its own weight.
  cuda::Linear linear(const Shape& shape, int rows, int turn) const {
    const std::size_t one = matrix_bytes(DType::bf16, shape.outputs, shape.inputs);
    const std::size_t all = shape.experts ? one * (kExperts + kShared) : one;
    const std::size_t copies = std::max<std::size_t>(kWeightBytes / all, 1);
    cuda::Linear l{
        .weight = {static_cast<std::byte*>(weights_) + all * (static_cast<std::size_t>(turn) % copies),
                   DType::bf16, shape.outputs, shape.inputs},
        .x = x_,
        .rows = rows,
        .ending = shape.ending,
        .out = out_,
        .scale = static_cast<const float*>(scale_),
        .q = q_,
        .rope = static_cast<const float*>(rope_),
        .kv = kv_,
        .heads = shape.heads,
        .slots = slots_};
    l.kv.kv_heads = shape.kv_heads;
    if (shape.experts) {
      l.rows = rows * (kTopK + kShared);
      l.groups = {.offsets = offsets_,
                  .gather = shape.ending == Ending::swiglu ? gather_ : nullptr,
                  .count = kExperts + kShared,
                  .weight_stride = one};
    }
    return l;
  }

  /// Experts of uneven popularity (the busiest has about 1.5 times the mean), then the shared slices.
  void route(int rows) {
    std::mt19937 bits(4);
    std::normal_distribution<double> normal(0, 0.2);
    std::vector<double> share(kExperts);
    double sum = 0;
    for (double& s : share) sum += s = std::exp(normal(bits));
    std::vector<std::int32_t> offsets{0}, gather;
    double until = 0;
    for (int e = 0; e < kExperts; ++e) {
      until += share[static_cast<std::size_t>(e)] / sum;
      offsets.push_back(e + 1 == kExperts ? rows * kTopK : static_cast<std::int32_t>(until * rows * kTopK));
    }
    for (int s = 0; s < kShared; ++s) offsets.push_back(offsets.back() + rows);
    for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
      const std::int64_t size = offsets[g + 1] - offsets[g];
      for (std::int64_t i = 0; i < size; ++i) gather.push_back(static_cast<std::int32_t>(i * rows / size));
    }
    device_.upload(offsets_, offsets.data(), offsets.size() * sizeof(std::int32_t));
    device_.upload(gather_, gather.data(), gather.size() * sizeof(std::int32_t));
    device_.sync();
  }

 private:
  void* take(std::size_t bytes) {
    void* memory = device_.alloc(bytes);
    if (memory == nullptr) throw CudaError("no memory for the products that are timed");
    return memory;
  }
  void* random(DType dtype, int outputs, int inputs, float deviation) {
    const Matrix m{take(matrix_bytes(dtype, outputs, inputs)), dtype, outputs, inputs};
    run(device_, FillRandom{.into = m, .outputs = outputs, .seed = seed_++, .deviation = deviation});
    return m.data;
  }

  Cuda& device_;
  std::uint64_t seed_ = 1;
  void *weights_, *x_, *out_, *scale_, *rope_, *q_;
  KvCache kv_{};
  KvSlot* slots_;
  std::int32_t *offsets_, *gather_;
};

/// Seconds per product in a graph of several, which run(i) launches; the median of a few launches.
template <class Run>
double seconds_of(Cuda& device, double operations, Run&& run) {
  constexpr int kLaunches = 5;
  const int turns = static_cast<int>(std::clamp(6e12 / operations, 4.0, 40.0));
  run(0);  // working memory grows outside the graph
  const CudaGraph graph = CudaGraph::capture(device, [&] {
    for (int i = 0; i < turns; ++i) run(i);
  });
  graph.launch(device);
  return median_seconds(device, graph, kLaunches) / turns;
}

double operations_of(const Arena& arena, const Shape& shape, int rows) {
  return 2.0 * arena.linear(shape, rows, 0).rows * shape.outputs * shape.inputs;
}

double seconds(Cuda& device, const Arena& arena, const Shape& shape, int rows) {
  const int tile = cuda::wgmma_plan(cuda::shape_of(arena.linear(shape, rows, 0)), cuda::traits_of(device));
  return seconds_of(device, operations_of(arena, shape, rows),
                    [&](int i) { run_wgmma(device, arena.linear(shape, rows, i), tile); });
}

/// The experts' products with weights in codes, in both ways that take many rows.
void measure_codes(Report& report, Cuda& device, const Arena& arena, const Shape& shape,
                   const WeightFormat& format, int rows, double peak) {
  constexpr int kMatrices = kExperts + kShared;
  const std::size_t stride = matrix_bytes(format, shape.outputs, shape.inputs);
  auto* const memory = static_cast<std::byte*>(device.alloc(stride * kMatrices));
  if (memory == nullptr) throw CudaError("no memory for the codes that are timed");
  for (std::size_t i = 0; i < kMatrices; ++i) {
    run(device, FillRandom{.into = {memory + i * stride, format, shape.outputs, shape.inputs},
                           .outputs = shape.outputs,
                           .seed = i + 1,
                           .deviation = 0.02f});
  }
  cuda::Linear l = arena.linear(shape, rows, 0);
  l.weight = {memory, format, shape.outputs, shape.inputs};
  l.groups.weight_stride = stride;
  l.x_rows = rows;
  const cuda::LinearShape described = cuda::shape_of(l);
  const cuda::GpuTraits gpu = cuda::traits_of(device);
  const char* kind = format.kind == WeightKind::int8 ? ".int8" : format.group == 0 ? ".int4" : ".int4_groups";
  const std::string name = std::string("cuda.codes.") + shape.name + kind + ".rows_" + std::to_string(rows);
  const double operations = operations_of(arena, shape, rows);
  const auto row = [&](const char* way, auto&& run_it) {
    report.row({name + way, operations / seconds_of(device, operations, run_it) * 1e-12, "TFLOP/s", peak});
  };
  const int tile = cuda::wgmma_plan(described, gpu);
  row(".expanded", [&](int) { run_expanded(device, l, tile); });
  row(".unpacked", [&](int) { run_unpacked(device, l); });
  device.sync();
  device.free(memory);
}

void measure_codes(Report& report) {
  Cuda device;
  const double peak = matrix_peak(device) * 1e-12;
  report.row({"gpu.matrix_peak", peak, "TFLOP/s"});
  Arena arena(device);
  const Shape shapes[] = {{.name = "21b.experts_gate_up",
                           .ending = Ending::swiglu,
                           .outputs = 3072,
                           .inputs = 2560,
                           .experts = true},
                          {.name = "21b.experts_down",
                           .ending = Ending::store_scaled,
                           .outputs = 2560,
                           .inputs = 1536,
                           .experts = true}};
  for (const int rows : {512, 2048, kMostRows}) {
    arena.route(rows);
    for (const Shape& shape : shapes) {
      for (const WeightFormat& format :
           {WeightFormat(WeightKind::int8, DType::bf16), WeightFormat(WeightKind::int4, DType::bf16),
            WeightFormat(WeightKind::int4, DType::bf16, 64)})
        measure_codes(report, device, arena, shape, format, rows, peak);
    }
  }
}

/// Bytes of weight, x and result, each once.
double bytes_of(const cuda::Linear& l, const Shape& shape, int rows) {
  const double weights =
      static_cast<double>(matrix_bytes(DType::bf16, shape.outputs, shape.inputs)) * l.groups.count;
  const double x = 2.0 * (l.groups.gather != nullptr ? rows : l.rows) * shape.inputs;
  const double width = shape.ending == Ending::add         ? 8
                       : shape.ending == Ending::store_f32 ? 4
                       : shape.ending == Ending::swiglu    ? 1
                                                           : 2;
  return weights + x + width * l.rows * shape.outputs;
}

void measure(Report& report) {
  Cuda device;
  const double bandwidth = copy_bandwidth(device), peak = matrix_peak(device) * 1e-12;
  report.row({"gpu.copy", bandwidth * 1e-9, "GB/s"});
  report.row({"gpu.matrix_peak", peak, "TFLOP/s"});
  Arena arena(device);
  const Shape square{"square", Ending::store_scaled, 8192, 8192};
  report.row({"cuda.gemm.square.rows_8192",
              2.0 * 8192 * 8192 * 8192 / seconds(device, arena, square, 8192) * 1e-12, "TFLOP/s",
              kSquareElsewhere});
  const Shape shapes[] = {
      {.name = "21b.gate_up_dense", .ending = Ending::swiglu, .outputs = 24576, .inputs = 2560, .must = 600},
      {.name = "21b.down_dense", .ending = Ending::add, .outputs = 2560, .inputs = 12288, .must = 600},
      {.name = "21b.qkv", .ending = Ending::qkv, .outputs = 3584, .inputs = 2560, .heads = 20, .kv_heads = 4},
      {.name = "21b.o", .ending = Ending::add, .outputs = 2560, .inputs = 2560},
      {.name = "21b.experts_gate_up",
       .ending = Ending::swiglu,
       .outputs = 3072,
       .inputs = 2560,
       .experts = true,
       .must = 500},
      {.name = "21b.experts_down",
       .ending = Ending::store_scaled,
       .outputs = 2560,
       .inputs = 1536,
       .experts = true,
       .must = 500},
      {.name = "0.3b.qkv",
       .ending = Ending::qkv,
       .outputs = 2560,
       .inputs = 1024,
       .heads = 16,
       .kv_heads = 2},
      {.name = "0.3b.o", .ending = Ending::add, .outputs = 1024, .inputs = 2048},
      {.name = "0.3b.gate_up", .ending = Ending::swiglu, .outputs = 6144, .inputs = 1024},
      {.name = "0.3b.down", .ending = Ending::add, .outputs = 1024, .inputs = 3072},
  };
  const auto row = [&](const Shape& shape, int rows, double must) {
    const cuda::Linear l = arena.linear(shape, rows, 0);
    const double operations = 2.0 * l.rows * shape.outputs * shape.inputs;
    const double bound = std::min(peak, operations / bytes_of(l, shape, rows) * bandwidth * 1e-12);
    report.row({std::string("cuda.gemm.") + shape.name + ".rows_" + std::to_string(rows),
                operations / seconds(device, arena, shape, rows) * 1e-12, "TFLOP/s", bound, must});
  };
  for (const int rows : {512, 2048, kMostRows}) {
    arena.route(rows);
    for (const Shape& shape : shapes) row(shape, rows, rows == kMostRows ? shape.must : 0);
  }
  row({.name = "21b.lm_head", .ending = Ending::store_f32, .outputs = 103424, .inputs = 2560}, 256, 0);
  row({.name = "0.3b.lm_head", .ending = Ending::store_f32, .outputs = 103424, .inputs = 1024}, 256, 0);
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  const Status usable = cuda_usable();
  if (!usable.ok() || !Cuda().features().wgmma) {
    std::fprintf(stderr, "kernels_cuda_gemm: skipped: %s\n",
                 usable.ok() ? "the GPU is not of compute capability 9.0." : usable.message.c_str());
    return 0;
  }
  bench::Report report(argc, argv);
  bench::has_flag(argc, argv, "--codes") ? bench::measure_codes(report) : bench::measure(report);
  return 0;
}
