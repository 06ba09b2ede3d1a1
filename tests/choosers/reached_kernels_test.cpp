// Every compiled kernel of a product is launched for a documented model on a documented card, and no product
// asks for another one or for a larger launch than CUDA takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "choosers/model_products.h"
#include "kernels/cuda/product/biased.h"
#include "kernels/cuda/product/launch_size.h"
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {
namespace {

using test::ChosenProduct, test::Part;

constexpr std::array kReachingRows = {1,   2,   4,   5,   8,   9,    12,   16,   17,   24,
                                      32,  33,  40,  48,  64,  65,   100,  128,  200,  256,
                                      264, 300, 392, 512, 520, 1000, 1216, 2048, 4096, 8192};
constexpr const char* kCodeKindNames[kCodeKinds] = {"bf16", "f16",          "fp8",  "int8",
                                                    "int4", "grouped int4", "wint2"};

std::string number(int n) { return std::to_string(n); }
std::string name(CodeKind kind) { return kCodeKindNames[static_cast<int>(kind)]; }
std::string name(const StripKernel& k, int row_sets) {
  return std::string("strips: ") + to_string(k.ending) + " of kind " + number(static_cast<int>(k.kind)) +
         ", cluster " + number(k.cluster) + ", tiles " + number(k.tiles) + ", slices " + number(k.slices) +
         (k.consumes_halved_norm ? ", consumes a norm, " : ", ") + number(row_sets) + " sets";
}
std::string name(const SlabKernel& k) {
  return std::string("slabs: ") + to_string(k.ending) + (k.consumes_halved_norm ? ", consumes a norm" : "");
}
std::string name(CodeKind kind, const StreamTileSize& tile) {
  return "stream: " + name(kind) + ", " + number(tile.outputs) + " × " + number(tile.rows);
}
std::string name(const WgmmaTile& tile, WgmmaScales scales, const char* of = "") {
  return std::string("wgmma: ") + of + number(tile.rows) + " × " + number(tile.columns) + ", cluster " +
         number(tile.cluster) + ", scales " + number(static_cast<int>(scales));
}
std::string generic_name(const WeightFormat& format) {
  const bool codes = format.quantised() && !format.fp8() && format.kind != WeightKind::wint2;
  return "generic: " + number(static_cast<int>(format.activations)) + ", " +
         (codes                ? "codes"
          : format.fp8()       ? "fp8"
          : format.quantised() ? "wint2"
                               : "numbers");
}

std::set<std::string> compiled() {
  std::set<std::string> all;
  for (const StripKernel& kernel : kStripKernels) {
    for (int row_sets = 1; row_sets <= kernel.row_sets; ++row_sets) all.insert(name(kernel, row_sets));
  }
  for (const SlabKernel& kernel : kSlabKernels) all.insert(name(kernel));
  for (int i = 0; i < kCodeKinds; ++i) {
    const auto kind = static_cast<CodeKind>(i);
    for (const StreamTileSize& tile : kStreamTiles) {
      if (has_stream_kernel(kind, tile)) all.insert(name(kind, tile));
    }
    if (has_tile_kernel(kind)) all.insert("tiles: " + name(kind));
    if (kind <= CodeKind::f16) all.insert("biased tiles: " + name(kind));
    if (kind >= CodeKind::int8) all.insert("unpacked: " + name(kind));
    if (kind >= CodeKind::int8 && kind < CodeKind::wint2) all.insert("expanded: " + name(kind));
  }
  all.insert("unpacked: int4 beside int8");
  for (const WgmmaTile& tile : kWgmmaTiles) {
    for (const WgmmaScales scales :
         {WgmmaScales::none, WgmmaScales::outputs, WgmmaScales::blocks, WgmmaScales::pairs}) {
      if (is_compiled(tile, scales)) all.insert(name(tile, scales));
    }
  }
  all.insert(name(kWgmmaTiles[kWgmmaF16Tile], WgmmaScales::none, "f16, "));
  for (const int tile : {kBiasedWideTile, kBiasedNarrowTile})
    all.insert(name(kWgmmaTiles[tile], WgmmaScales::none, "biased, "));
  all.insert(name(kWgmmaTiles[kBiasedNarrowTile], WgmmaScales::none, "biased f16, "));
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const WeightFormat& format :
         {WeightFormat(dtype), WeightFormat(WeightKind::int8, dtype), WeightFormat(WeightKind::fp8, dtype),
          WeightFormat(WeightKind::wint2, dtype)})
      all.insert(generic_name(format));
  }
  return all;
}

/// The tile of a product that takes wgmma.
const WgmmaTile& wgmma_tile(const ChosenProduct& p, const GpuTraits& gpu) {
  return kWgmmaTiles[p.biased ? biased_wgmma_plan(p.shape, gpu.multiprocessors) : p.choice.wgmma_tile];
}

/// The kernels that a product launches.
std::vector<std::string> launched(const ChosenProduct& p, const GpuTraits& gpu) {
  const LinearChoice& choice = p.choice;
  const CodeKind kind = code_kind(p.shape.format);
  const bool f16 = p.shape.activations() == DType::f16;
  switch (choice.way) {
    case LinearWay::unsupported: return {"unsupported: " + to_string(p.shape)};
    case LinearWay::generic: return {generic_name(p.shape.format)};
    case LinearWay::strips: return {name(choice.strips.kernel, choice.strips.row_sets)};
    case LinearWay::slabs: return {name(choice.slabs.kernel)};
    case LinearWay::stream: {
      if (choice.stream.many_rows) return {(p.biased ? "biased tiles: " : "tiles: ") + name(kind)};
      return {name(kind, {choice.stream.outputs, choice.stream.tile_rows})};
    }
    case LinearWay::wgmma: {
      const char* of = p.biased ? (f16 ? "biased f16, " : "biased, ") : f16 ? "f16, " : "";
      return {name(wgmma_tile(p, gpu), wgmma_scales(p.shape), of)};
    }
    case LinearWay::unpacked: return {"unpacked: " + (p.int8_x ? "int4 beside int8" : name(kind))};
    case LinearWay::expanded:
      return {"expanded: " + name(kind), name(wgmma_tile(p, gpu), wgmma_scales(p.shape))};
  }
  return {};
}

LaunchSize size_of(const ChosenProduct& p, const GpuTraits& gpu) {
  switch (p.choice.way) {
    case LinearWay::strips: return launch_size(p.choice.strips);
    case LinearWay::slabs: return launch_size(p.choice.slabs);
    case LinearWay::stream: return launch_size(p.shape, p.choice.stream);
    case LinearWay::wgmma:
    case LinearWay::expanded: return wgmma_size(p.shape, wgmma_tile(p, gpu), gpu.multiprocessors);
    case LinearWay::unpacked: return unpacked_size(p.shape, gpu.multiprocessors);
    default: return generic_size(p.shape);
  }
}

/// True if CUDA takes it.
bool fits(const LaunchSize& size, const GpuTraits& gpu) {
  constexpr int kMost = 65'535;
  return size.x > 0 && size.y > 0 && size.z > 0 && size.y <= kMost && size.z <= kMost && size.cluster >= 1 &&
         size.cluster <= 8 && size.x % size.cluster == 0 && size.shared_bytes <= gpu.block_shared_bytes &&
         (size.cluster == 1 || gpu.features.clusters);
}

/// Each card that differs in what choosers read, also batch-invariant; and an H200 without one of the ways.
std::vector<GpuTraits> reaching_gpus() {
  std::vector<GpuTraits> all;
  for (const Card& card : cards()) {
    const GpuTraits gpu = traits_of(card);
    const bool known = std::ranges::any_of(all, [&](const GpuTraits& other) {
      return other.features == gpu.features && other.multiprocessors == gpu.multiprocessors &&
             other.block_shared_bytes == gpu.block_shared_bytes;
    });
    if (card.capability >= 80 && !known) all.push_back(gpu);
  }
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(all[i]);
    all.back().batch_invariant = true;
  }
  for (const KernelWay way : {KernelWay::product_stream, KernelWay::product_wgmma,
                              KernelWay::product_unpacked, KernelWay::product_expanded}) {
    all.push_back(kH200);
    all.back().avoided.add(way);
  }
  return all;
}

TEST(ReachedKernels, AreThoseThatAreCompiled) {
  const std::set<std::string> expected = compiled();
  std::set<std::string> reached;
  std::set<std::string> oversized;
  const std::vector<Part> parts = test::parts();
  for (const GpuTraits& gpu : reaching_gpus()) {
    for (const Part& part : parts) {
      for (const int rows : kReachingRows) {
        each_product(part, rows, gpu, [&](const ChosenProduct& product) {
          for (std::string& kernel : launched(product, gpu)) reached.insert(std::move(kernel));
          if (!fits(size_of(product, gpu), gpu))
            oversized.insert(part.name + ": " + to_string(product.shape));
        });
      }
    }
  }
  for (const std::string& kernel : expected) EXPECT_TRUE(reached.contains(kernel)) << "unreached " << kernel;
  for (const std::string& kernel : reached) EXPECT_TRUE(expected.contains(kernel)) << "missing " << kernel;
  EXPECT_EQ(oversized, std::set<std::string>());
}

}  // namespace
}  // namespace troupe::kernels::cuda
