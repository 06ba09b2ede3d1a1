// The vision tower and the resampler of ERNIE-4.5-VL on the GPU, with random weights in bf16: whole pictures,
// and the ops of a block alone, beside the tensor cores' peak in this run. Only useful operations count.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/buffer.h"
#include "kernels/fill_random.h"
#include "kernels/frame_attention.h"
#include "kernels/linear_bias.h"
#include "kernels/matrix_peak.h"
#include "model/vision/tower.h"

namespace troupe::bench {
namespace {

using namespace model;

constexpr int kHidden = 2560;
constexpr VisionSpec kReleased{.depth = 32, .width = 1280, .heads = 16, .intermediate = 5120};

struct Picture {
  const char* name;
  PatchGrid grid;
  double must;  ///< TFLOP/s
};
constexpr Picture kPictures[] = {
    {"480x640", {1, 34, 46}, 0}, {"1080x1920", {1, 78, 138}, 350}, {"largest", {1, 156, 158}, 0}};

Buffer<Cuda> memory(Cuda& device, std::size_t bytes) {
  Result<Buffer<Cuda>> made = Buffer<Cuda>::make(device, bytes, "the tower that is timed");
  if (!made) throw CudaError(made.status().message);
  return std::move(*made);
}

/// Matrices N(0, 0.02), norms 1, biases 0.
VisionWeights random_weights(Cuda& device, Buffer<Cuda>& buffer) {
  Arena counting;
  VisionWeights::make(kReleased, kHidden, DType::bf16, counting);
  buffer = memory(device, counting.used());
  Arena arena(buffer.view());
  VisionWeights weights = VisionWeights::make(kReleased, kHidden, DType::bf16, arena);
  std::uint64_t seed = 0;
  for (const VisionTensor& tensor : vision_tensors(kReleased, kHidden, weights)) {
    if (tensor.matrix != nullptr) {
      kernels::run(
          device, kernels::FillRandom{
                      .into = *tensor.matrix, .outputs = tensor.outputs, .seed = ++seed, .deviation = 0.02f});
    } else if (tensor.scales) {
      const std::vector<float> ones(static_cast<std::size_t>(tensor.inputs), 1.0f);
      device.upload(const_cast<float*>(*tensor.vector), ones.data(), ones.size() * sizeof(float));
    }
  }
  device.sync();
  return weights;
}

/// Rows of N(0, 1) in bf16.
Buffer<Cuda> random_rows(Cuda& device, int rows, int columns, std::uint64_t seed) {
  Buffer<Cuda> made = memory(device, kernels::matrix_bytes(DType::bf16, rows, columns));
  const kernels::Matrix matrix{made.data(), DType::bf16, rows, columns};
  kernels::run(device, kernels::FillRandom{.into = matrix, .outputs = rows, .seed = seed, .deviation = 1});
  return made;
}

/// The median of some runs on the GPU's clock, behind one that does not count.
double seconds(Cuda& device, int runs, const std::function<void()>& work) {
  std::vector<double> times;
  CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
  for (int i = 0; i <= runs; ++i) {
    begin.record(device);
    work();
    end.record(device);
    end.wait();
    if (i > 0) times.push_back(end.milliseconds_since(begin) * 1e-3);
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[static_cast<std::size_t>(runs / 2)];
}

void time_picture(Cuda& device, VisionTower<Cuda>& tower, const Picture& picture, double peak,
                  Report& report) {
  std::vector<std::uint8_t> patches(static_cast<std::size_t>(picture.grid.patches()) * kPatchBytes);
  for (std::size_t i = 0; i < patches.size(); ++i)
    patches[i] = static_cast<std::uint8_t>(i * 2654435761u >> 24);
  const Buffer<Cuda> out =
      memory(device, static_cast<std::size_t>(picture.grid.tokens()) * kernels::padded(kHidden) * 2);
  double operations = 0;
  const double took = seconds(device, 5, [&] {
    if (const Status begun = tower.begin(MediaKind::image, picture.grid, patches, out.data()); !begun.ok())
      throw CudaError(begun.message);
    operations = 0;
    bool more = true;
    while (more) {
      more = tower.advance();
      operations += tower.operations();
    }
  });
  const std::string name = std::string("cuda_vision.tower.") + picture.name;
  report.row({name, operations * 1e-12 / took, "TFLOP/s", peak * 1e-12, picture.must});
  report.row({.name = name + ".time",
              .value = took * 1e3,
              .unit = "ms",
              .bound = operations / peak * 1e3,
              .better = Better::lower});
}

void time_attention(Cuda& device, const Picture& picture, double peak, Report& report) {
  const int rows = static_cast<int>(picture.grid.patches()), width = kReleased.width;
  const Buffer<Cuda> qkv = random_rows(device, rows, 3 * width, 5), out = random_rows(device, rows, width, 6),
                     rope = memory(device,
                                   static_cast<std::size_t>(rows) * kReleased.head_dim() * sizeof(float));
  std::vector<float> angles(static_cast<std::size_t>(rows) * static_cast<std::size_t>(kReleased.head_dim()));
  for (std::size_t i = 0; i < angles.size(); i += 2) angles[i] = 1;  // cosines, beside sines of 0
  device.upload(rope.data(), angles.data(), angles.size() * sizeof(float));
  kernels::FrameAttention op = frame_attention_of(kReleased, DType::bf16, rows);
  const Buffer<Cuda> packed = memory(device, kernels::packed_bytes(device, op));
  op.out = out.data();
  op.packed = packed.data();
  op.count = rows;
  const kernels::PackFrame pack{.packed = packed.data(),
                                .qkv = qkv.data(),
                                .rope = static_cast<const float*>(rope.data()),
                                .dtype = op.dtype,
                                .rows = rows,
                                .heads = op.heads,
                                .head_dim = op.head_dim,
                                .count = rows};
  const double took = seconds(device, 9, [&] {
    kernels::run(device, pack);
    kernels::run(device, op);
  });
  report.row({std::string("cuda_vision.attention.") + picture.name, 4e-12 * rows * rows * width / took,
              "TFLOP/s", peak * 1e-12});
}

void time_product(Cuda& device, const Picture& picture, const char* name, int outputs, int inputs,
                  kernels::BiasEnding ending, double peak, Report& report) {
  const int rows = static_cast<int>(picture.grid.patches());
  const Buffer<Cuda> x = random_rows(device, rows, inputs, 7),
                     weight = random_rows(device, outputs, inputs, 8),
                     bias =
                         memory(device, static_cast<std::size_t>(kernels::padded(outputs)) * sizeof(float)),
                     out = memory(device,
                                  static_cast<std::size_t>(rows) * kernels::padded(outputs) * sizeof(float));
  const kernels::LinearBias op{.out = out.data(),
                               .sum = static_cast<float*>(out.data()),
                               .x = x.data(),
                               .weight = {weight.data(), DType::bf16, outputs, inputs},
                               .bias = static_cast<const float*>(bias.data()),
                               .rows = rows,
                               .ending = ending};
  const double took = seconds(device, 9, [&] { kernels::run(device, op); });
  report.row({std::string("cuda_vision.") + name + "." + picture.name, 2e-12 * rows * outputs * inputs / took,
              "TFLOP/s", peak * 1e-12});
}

void run_all(Report& report, bool quick) {
  Cuda device;
  Buffer<Cuda> buffer;
  const VisionWeights weights = random_weights(device, buffer);
  Result<VisionTower<Cuda>> tower =
      VisionTower<Cuda>::make(device, kReleased, kHidden, 1e-5f, DType::bf16, weights, kMostFramePatches);
  if (!tower) throw CudaError(tower.status().message);
  const double peak = kernels::matrix_peak(device);
  for (const Picture& picture : kPictures) {
    if (quick && picture.grid.patches() > 5000) continue;
    time_picture(device, *tower, picture, peak, report);
    time_attention(device, picture, peak, report);
    const int w = kReleased.width, wide = kReleased.intermediate;
    using kernels::BiasEnding;
    time_product(device, picture, "qkv", 3 * w, w, BiasEnding::store, peak, report);
    time_product(device, picture, "out", w, w, BiasEnding::add, peak, report);
    time_product(device, picture, "fc1", wide, w, BiasEnding::quick_gelu, peak, report);
    time_product(device, picture, "fc2", w, wide, BiasEnding::add, peak, report);
  }
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("cuda_vision_bench")) return 0;
  bench::Report report(argc, argv);
  try {
    bench::run_all(report, bench::is_quick(argc, argv));
  } catch (const CudaError& error) {
    std::fprintf(stderr, "cuda_vision_bench: %s\n", error.what());
    return 1;
  }
  return report.all_met() ? 0 : 1;
}
