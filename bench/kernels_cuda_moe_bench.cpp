// A mixture-of-experts layer of the 21B shape on the GPU: decode batches compared with the copy bandwidth of
// this run, prefill in floating-point operations per second. Only the weights of experts with rows count as
// bytes.
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

constexpr int kHidden = 2560, kIntermediate = 1536, kExperts = 64, kShared = 2, kTopK = 6;
constexpr int kLayers = 2;  // 3.1 GB: a layer's weights do not stay in the L2 cache
constexpr int kMostRows = 8192;

class Layers {
 public:
  explicit Layers(Cuda& device) : device_(device) {
    for (int i = 0; i < kLayers; ++i) {
      gate_up_[i] = stack(gate_up_outputs(kIntermediate), kHidden);
      down_[i] = stack(kHidden, kIntermediate);
      router_[i] = random(DType::f32, kExperts, kHidden, 0.02f);
    }
    x_ = random(DType::bf16, kMostRows, kHidden, 1).data;
    residual_ = static_cast<float*>(random(DType::f32, kMostRows, kHidden, 1).data);
    bias_ = static_cast<const float*>(matrix(DType::f32, 1, kExperts).data);
    chosen_ = static_cast<std::int32_t*>(matrix(DType::f32, kMostRows, kTopK).data);
  }

  Moe op(int layer, int rows) const {
    return {.residual = residual_,
            .x = x_,
            .router = router_[layer],
            .bias = bias_,
            .gate_up = gate_up_[layer],
            .down = down_[layer],
            .experts = kExperts,
            .shared = kShared,
            .top_k = kTopK,
            .rows = rows,
            .chosen = chosen_};
  }

  /// Different experts, without the shared slices, that the rows take in all layers together.
  int touched(int rows) {
    int sum = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      run(device_, op(layer, rows));
      std::vector<std::int32_t> chosen(static_cast<std::size_t>(rows * kTopK));
      device_.download(chosen.data(), chosen_, chosen.size() * sizeof(std::int32_t));
      device_.sync();
      sum += static_cast<int>(std::set<std::int32_t>(chosen.begin(), chosen.end()).size());
    }
    return sum;
  }

 private:
  Matrix matrix(DType dtype, int outputs, int inputs, int count = 1) {
    void* memory = device_.alloc(static_cast<std::size_t>(count) * matrix_bytes(dtype, outputs, inputs));
    if (memory == nullptr) throw CudaError("no memory for the weights that are timed");
    return {memory, dtype, outputs, inputs};
  }
  Matrix random(DType dtype, int outputs, int inputs, float deviation) {
    const Matrix m = matrix(dtype, outputs, inputs);
    run(device_, FillRandom{.into = m, .outputs = outputs, .seed = seed_++, .deviation = deviation});
    return m;
  }
  MatrixStack stack(int outputs, int inputs) {
    constexpr int kCount = kExperts + kShared;
    const MatrixStack all{matrix(DType::bf16, outputs, inputs, kCount), kCount};
    for (int i = 0; i < kCount; ++i) {
      run(device_, FillRandom{.into = all.at(i), .outputs = outputs, .seed = seed_++});
    }
    return all;
  }

  Cuda& device_;
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

void measure(Report& report, bool quick) {
  Cuda device;
  const double bandwidth = copy_bandwidth(device) * 1e-9;
  report.row({"gpu.copy", bandwidth, "GB/s"});
  Layers layers(device);
  const double expert_bytes =
      static_cast<double>(matrix_bytes(DType::bf16, gate_up_outputs(kIntermediate), kHidden) +
                          matrix_bytes(DType::bf16, kHidden, kIntermediate));
  for (const int rows : {1, 8, 32, 64, 128, 256}) {
    const std::string name = ".rows_" + std::to_string(rows);
    const double touched = static_cast<double>(layers.touched(rows)) / kLayers;
    const double time = seconds(device, [&](int i) { run(device, layers.op(i, rows)); });
    report.row({"cuda.moe.experts_touched" + name, touched, "of 64", 0, rows == 64 ? 61.0 : 0});
    report.row({"cuda.moe.decode" + name, time * 1e6, "us",
                (touched + kShared) * expert_bytes / bandwidth * 1e-3, 0, Better::lower});
    report.row({"cuda.moe.decode" + name, (touched + kShared) * expert_bytes / time * 1e-9, "GB/s", bandwidth,
                0.72 * bandwidth});
  }
  for (const int rows : {1, 32, 256, 2048, 8192}) {
    if (quick) break;
    const auto routed = [&](int i) {
      const Moe op = layers.op(i, rows);
      cuda::Routing routing;
      const std::size_t bytes = cuda::lay_out(routing, op, nullptr);
      cuda::lay_out(routing, op, static_cast<std::byte*>(device.scratch(bytes)));
      cuda::route(device, op, routing);
    };
    report.row({"cuda.moe.route.rows_" + std::to_string(rows), seconds(device, routed) * 1e6, "us"});
  }
  for (const int rows : {512, 2048, 8192}) {
    const std::string name = ".rows_" + std::to_string(rows);
    const double time = seconds(device, [&](int i) { run(device, layers.op(i, rows)); });
    const double operations = 2.0 * rows * (kTopK + kShared) * 3 * kHidden * kIntermediate;
    report.row({"cuda.moe.prefill" + name, time * 1e6, "us"});
    report.row(
        {"cuda.moe.prefill" + name, operations / time * 1e-12, "TFLOP/s", 0, rows == kMostRows ? 480.0 : 0});
  }
}

}  // namespace
}  // namespace troupe::bench

// --quick: without the router alone.
int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("kernels_cuda_moe")) return 0;
  bench::Report report(argc, argv);
  const bool quick = bench::is_quick(argc, argv);
  bench::measure(report, quick);
  return 0;
}
