// Mixture-of-experts layers on the GPU: the 21B's in bf16, int4 and wint2, and half of the 300B's in the
// latter two, a rank's of two. Decode batches are compared with the copy bandwidth of this run, prefill in
// floating-point operations per second. Only the weights of experts with rows count as bytes.
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_graph.h"
#include "kernels/cuda/moe/routing.h"
#include "kernels/fill_random.h"
#include "kernels/moe.h"

namespace troupe::bench {
namespace {

using namespace kernels;

constexpr int kLayers = 2;  // of more than 1 GB: a layer's weights do not stay in the L2 cache
constexpr int kMostRows = 8192;

struct MoeShape {
  const char* name;
  WeightFormat format;
  int hidden, intermediate, experts, shared, top_k;
};
constexpr WeightFormat kInt4{WeightKind::int4, DType::bf16}, kWint2{WeightKind::wint2, DType::bf16};
constexpr MoeShape k21B{"cuda.moe", DType::bf16, 2560, 1536, 64, 2, 6},
    k21BInt8{"cuda.moe.int8", {WeightKind::int8, DType::bf16}, 2560, 1536, 64, 2, 6},
    k21BInt4{"cuda.moe.int4", kInt4, 2560, 1536, 64, 2, 6},
    k21BWint2{"cuda.moe.wint2", kWint2, 2560, 1536, 64, 2, 6},
    kHalf300B{"cuda.moe.300b_half.int4", kInt4, 8192, 1792, 64, 0, 8},
    kHalf300BWint2{"cuda.moe.300b_half.wint2", kWint2, 8192, 1792, 64, 0, 8};

class Layers {
 public:
  Layers(Cuda& device, const MoeShape& shape) : device_(device), shape_(shape) {
    for (int i = 0; i < kLayers; ++i) {
      gate_up_[i] = stack(gate_up_outputs(shape.intermediate), shape.hidden);
      down_[i] = stack(shape.hidden, shape.intermediate);
      router_[i] = random(DType::f32, shape.experts, shape.hidden, 0.02f);
    }
    x_ = random(DType::bf16, kMostRows, shape.hidden, 1).data;
    residual_ = static_cast<float*>(random(DType::f32, kMostRows, shape.hidden, 1).data);
    bias_ = static_cast<const float*>(matrix(DType::f32, 1, shape.experts).data);
    chosen_ = static_cast<std::int32_t*>(matrix(DType::f32, kMostRows, shape.top_k).data);
  }
  ~Layers() {
    for (void* memory : memory_) device_.free(memory);
  }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  Moe op(int layer, int rows) const {
    return {.residual = residual_,
            .x = x_,
            .router = router_[layer],
            .bias = bias_,
            .gate_up = gate_up_[layer],
            .down = down_[layer],
            .experts = shape_.experts,
            .shared = shape_.shared,
            .top_k = shape_.top_k,
            .rows = rows,
            .chosen = chosen_};
  }

  /// Different experts, without the shared slices, that the rows take in all layers together.
  int touched(int rows) {
    int sum = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      run(device_, op(layer, rows));
      std::vector<std::int32_t> chosen(static_cast<std::size_t>(rows * shape_.top_k));
      device_.download(chosen.data(), chosen_, chosen.size() * sizeof(std::int32_t));
      device_.sync();
      sum += static_cast<int>(std::set<std::int32_t>(chosen.begin(), chosen.end()).size());
    }
    return sum;
  }

 private:
  Matrix matrix(const WeightFormat& format, int outputs, int inputs, int count = 1) {
    void* memory = device_.alloc(static_cast<std::size_t>(count) * matrix_bytes(format, outputs, inputs));
    if (memory == nullptr) throw CudaError("no memory for the weights that are timed");
    memory_.push_back(memory);
    return {memory, format, outputs, inputs};
  }
  Matrix random(DType dtype, int outputs, int inputs, float deviation) {
    const Matrix m = matrix(dtype, outputs, inputs);
    run(device_, FillRandom{.into = m, .outputs = outputs, .seed = seed_++, .deviation = deviation});
    return m;
  }
  MatrixStack stack(int outputs, int inputs) {
    const int count = shape_.experts + shape_.shared;
    const MatrixStack all{matrix(shape_.format, outputs, inputs, count), count};
    for (int i = 0; i < count; ++i) {
      run(device_, FillRandom{.into = all.at(i), .outputs = outputs, .seed = seed_++});
    }
    return all;
  }

  Cuda& device_;
  const MoeShape& shape_;
  std::vector<void*> memory_;
  std::uint64_t seed_ = 1;
  MatrixStack gate_up_[kLayers], down_[kLayers];
  Matrix router_[kLayers];
  void* x_ = nullptr;
  float* residual_ = nullptr;
  const float* bias_ = nullptr;
  std::int32_t* chosen_ = nullptr;
};

/// Of one layer, in a graph of all of them; the median of a few launches.
double seconds(Cuda& device, const auto& layer) {
  constexpr int kTurns = 4, kLaunches = 9;
  layer(0);  // the scratch memory grows before a graph holds its address
  const CudaGraph graph = CudaGraph::capture(device, [&] {
    for (int i = 0; i < kTurns * kLayers; ++i) layer(i % kLayers);
  });
  return median_seconds(device, graph, kLaunches) / (kTurns * kLayers);
}

std::string row_name(const MoeShape& shape, const char* what, int rows) {
  return std::string(shape.name) + "." + what + ".rows_" + std::to_string(rows);
}

void measure_decode(Report& report, Cuda& device, const MoeShape& shape, Layers& layers, double bandwidth) {
  const double expert_bytes =
      static_cast<double>(matrix_bytes(shape.format, gate_up_outputs(shape.intermediate), shape.hidden) +
                          matrix_bytes(shape.format, shape.hidden, shape.intermediate));
  const bool demanded = &shape == &k21B;
  for (const int rows : {1, 2, 4, 8, 32, 64, 128, 256}) {
    const double touched = static_cast<double>(layers.touched(rows)) / kLayers;
    const double bytes = (touched + shape.shared) * expert_bytes;
    const double time = seconds(device, [&](int i) { run(device, layers.op(i, rows)); });
    report.row(
        {row_name(shape, "experts_touched", rows), touched, "of 64", 0, demanded && rows == 64 ? 61.0 : 0});
    report.row(
        {row_name(shape, "decode", rows), time * 1e6, "us", bytes / bandwidth * 1e-3, 0, Better::lower});
    report.row({row_name(shape, "decode", rows), bytes / time * 1e-9, "GB/s", bandwidth,
                demanded ? 0.72 * bandwidth : 0});
  }
}

void measure_routing(Report& report, Cuda& device, const MoeShape& shape, Layers& layers) {
  for (const int rows : {1, 32, 256, 2048, 8192}) {
    const auto routed = [&](int i) {
      const Moe op = layers.op(i, rows);
      cuda::Routing routing;
      const std::size_t bytes = cuda::lay_out(routing, op, nullptr);
      cuda::lay_out(routing, op, static_cast<std::byte*>(device.scratch(bytes)));
      cuda::route(device, op, routing);
    };
    report.row({row_name(shape, "route", rows), seconds(device, routed) * 1e6, "us"});
  }
}

void measure_prefill(Report& report, Cuda& device, const MoeShape& shape, Layers& layers) {
  for (const int rows : {512, 2048, 8192}) {
    const double time = seconds(device, [&](int i) { run(device, layers.op(i, rows)); });
    const double operations =
        2.0 * rows * (shape.top_k + shape.shared) * 3 * shape.hidden * shape.intermediate;
    report.row({row_name(shape, "prefill", rows), time * 1e6, "us"});
    report.row({row_name(shape, "prefill", rows), operations / time * 1e-12, "TFLOP/s", 0,
                &shape == &k21B && rows == kMostRows ? 480.0 : 0});
  }
}

void measure(Report& report, bool quick, bool codes) {
  Cuda device;
  const double bandwidth = copy_bandwidth(device) * 1e-9;
  report.row({"gpu.copy", bandwidth, "GB/s"});
  for (const MoeShape* shape : {&k21B, &k21BInt8, &k21BInt4, &k21BWint2, &kHalf300B, &kHalf300BWint2}) {
    if (codes && !shape->format.quantised()) continue;
    Layers layers(device, *shape);
    measure_decode(report, device, *shape, layers, bandwidth);
    if (quick) continue;
    if (shape == &k21B) measure_routing(report, device, *shape, layers);
    measure_prefill(report, device, *shape, layers);
  }
}

}  // namespace
}  // namespace troupe::bench

// --quick: decode batches alone; --codes: without bf16.
int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("kernels_cuda_moe")) return 0;
  bench::Report report(argc, argv);
  const bool quick = bench::is_quick(argc, argv);
  bench::measure(report, quick, bench::has_flag(argc, argv, "--codes"));
  return 0;
}
