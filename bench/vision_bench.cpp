// The vision tower of ERNIE-4.5-VL on the CPU, with random weights in bf16: a block for a picture of 480 ×
// 640 and for one of 1080 × 1920 pixels, and the resampler, beside the dot-product peak of this run.
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "kernels/best_isa.h"
#include "kernels/fill_random.h"
#include "model/vision/tower.h"

namespace {

using namespace troupe;
using namespace troupe::model;

constexpr int kHidden = 2560;
constexpr VisionSpec kReleased{.depth = 1, .width = 1280, .heads = 16, .intermediate = 5120};

/// Useful operations of a block: products of every patch, and attention of each to all.
double block_operations(double patches) {
  const double w = kReleased.width, products = 4 * w * w + 2 * w * kReleased.intermediate;
  return 2 * patches * products + 4 * patches * patches * w;
}

double merge_operations(double tokens) {
  const double m = kReleased.merged_width();
  return 2 * tokens * (m * m * 2 + 2 * m * m + m * m + m * kHidden);
}

/// Seconds of the pieces of one picture: the blocks, then the resampler.
std::pair<double, double> seconds(VisionTower<Cpu>& tower, const PatchGrid& grid, void* out) {
  const std::vector<std::uint8_t> patches(static_cast<std::size_t>(grid.patches()) * kPatchBytes, 77);
  if (const Status begun = tower.begin(MediaKind::image, grid, patches, out); !begun.ok()) {
    std::fprintf(stderr, "%s\n", begun.message.c_str());
    std::exit(1);
  }
  const std::int64_t start = now_ns();
  while (!tower.frame_has_ended()) tower.advance();
  const std::int64_t middle = now_ns();
  while (tower.advance()) {
  }
  const std::int64_t end = now_ns();
  return {static_cast<double>(middle - start) * 1e-9, static_cast<double>(end - middle) * 1e-9};
}

}  // namespace

int main(int argc, char** argv) {
  troupe::bench::Report report(argc, argv);
  Cpu device({.isa = kernels::best_isa().isa});
  Arena counting;
  VisionWeights::make(kReleased, kHidden, DType::bf16, counting);
  Buffer<Cpu> memory = *Buffer<Cpu>::make(device, counting.used(), "weights");
  Arena arena(memory.view());
  VisionWeights weights = VisionWeights::make(kReleased, kHidden, DType::bf16, arena);
  for (const VisionTensor& tensor : vision_tensors(kReleased, kHidden, weights)) {
    if (tensor.matrix == nullptr) continue;
    kernels::run(device,
                 kernels::FillRandom{
                     .into = *tensor.matrix, .outputs = tensor.outputs, .seed = 1, .deviation = 0.02f});
  }
  constexpr PatchGrid kSmall{1, 34, 46}, kLarge{1, 78, 138};
  auto tower = VisionTower<Cpu>::make(device, kReleased, kHidden, 1e-5f, DType::bf16, weights,
                                      static_cast<int>(kLarge.patches()));
  const auto out =
      Buffer<Cpu>::make(device, static_cast<std::size_t>(kLarge.tokens()) * kHidden * 2, "embeddings");
  const double peak = dot_peak(device) * 1e-9;
  for (const auto& [name, grid, passes] :
       {std::tuple{"480x640", kSmall, 3}, std::tuple{"1080x1920", kLarge, 1}}) {
    double block = 1e9, merge = 1e9;
    for (int pass = 0; pass < passes; ++pass) {
      const auto [of_block, of_merge] = seconds(*tower, grid, out->data());
      block = std::min(block, of_block);
      merge = std::min(merge, of_merge);
    }
    const auto patches = static_cast<double>(grid.patches());
    report.row(
        {std::string("vision.block.") + name, block_operations(patches) * 1e-9 / block, "GFLOP/s", peak});
    report.row({std::string("vision.resampler.") + name, merge_operations(patches / 4) * 1e-9 / merge,
                "GFLOP/s", peak});
  }
  return 0;
}
