// Every matrix product of the 0.3B and 21B models on the GPU, with decode batch sizes: bytes of weights (each
// counted once) per second, compared with the copy bandwidth of this run. A graph runs the products in order
// as in a step; each has its own weights, which are not in the L2 cache. Small products are also compared
// with a chain of kernels that only copy as many weights and read as much of x.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/product_chain.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_graph.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/product/slab.h"
#include "kernels/cuda/product/strip.h"
#include "kernels/fill_random.h"
#include "kernels/quantise_rows.h"

namespace troupe::bench {
namespace {

using namespace kernels;
using kernels::cuda::Ending;

/// Weights that a graph reads once: far more than the L2 cache.
constexpr std::size_t kPoolBytes = std::size_t{4} << 30;
/// With this many products of 1.5 us each, the cost of starting the graph is negligible.
constexpr std::size_t kMostTurns = 1024;
constexpr int kMostRows = 256;
constexpr int kMostInputs = 12288, kMostOutputs = 103424;
constexpr int kExperts = 64, kShared = 2, kTopK = 6;
constexpr int kKvBlocks = kMostRows / kBlockTokens;
/// Products that read less are bound by latency, not by bandwidth.
constexpr std::size_t kDemandedBytes = std::size_t{12} << 20;

struct Product {
  const char* name;
  Ending ending;
  int outputs, inputs;
  int heads = 0, kv_heads = 0;
  bool grouped = false;
  bool halved = false;  ///< on Hopper, up to kSlabMostRows, it takes or leaves half a norm, as in a step
};

/// How a product runs that slabs take.
enum class Way {
  chosen,
  stream,  ///< behind a kernel that makes the norm, if the product takes half of one
  wgmma,   ///< likewise
};

const Product kProducts[] = {
    {"0.3b.qkv", Ending::qkv, 2560, 1024, 16, 2, false, true},
    {"0.3b.o", Ending::add, 1024, 2048, 0, 0, false, true},
    {"0.3b.gate_up", Ending::swiglu, 6144, 1024, 0, 0, false, true},
    {"0.3b.down", Ending::add, 1024, 3072, 0, 0, false, true},
    {"0.3b.lm_head", Ending::store_f32, 103424, 1024},
    {"21b.qkv", Ending::qkv, 3584, 2560, 20, 4},
    {"21b.o", Ending::add, 2560, 2560},
    {"21b.dense_gate_up", Ending::swiglu, 24576, 2560},
    {"21b.dense_down", Ending::add, 2560, 12288},
    {"21b.lm_head", Ending::store_f32, 103424, 2560},
    {"21b.experts_gate_up", Ending::swiglu, 3072, 2560, 0, 0, true},
    {"21b.experts_down", Ending::store_scaled, 2560, 1536, 0, 0, true},
};

/// A batch's rows sorted by expert: top-6 of 64 drawn evenly, and both shared slices.
struct Routed {
  Routed(Cuda& device, int rows, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<std::int32_t>> of(kExperts + kShared);
    std::vector<int> experts(kExperts);
    for (int r = 0; r < rows; ++r) {
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), random);
      for (int k = 0; k < kTopK; ++k)
        of[static_cast<std::size_t>(experts[static_cast<std::size_t>(k)])].push_back(r);
      for (int s = 0; s < kShared; ++s) of[static_cast<std::size_t>(kExperts + s)].push_back(r);
    }
    std::vector<std::int32_t> offsets{0}, gather;
    for (const auto& rows_of : of) {
      gather.insert(gather.end(), rows_of.begin(), rows_of.end());
      offsets.push_back(static_cast<std::int32_t>(gather.size()));
      touched += !rows_of.empty();
    }
    this->offsets = put(device, offsets);
    this->gather = put(device, gather);
  }
  static std::int32_t* put(Cuda& device, const std::vector<std::int32_t>& values) {
    void* memory = device.alloc(values.size() * sizeof values[0]);
    if (memory == nullptr) throw CudaError("no memory for the rows that are timed");
    device.upload(memory, values.data(), values.size() * sizeof values[0]);
    return static_cast<std::int32_t*>(memory);
  }
  std::int32_t* offsets = nullptr;
  std::int32_t* gather = nullptr;
  int touched = 0;  ///< groups with rows
};

class Setting {
 public:
  explicit Setting(Cuda& device) : device_(device) {
    pool_ = random(kPoolBytes, DType::bf16, 0.02f);
    const auto rows = static_cast<std::size_t>(kMostRows) * (kTopK + kShared);
    x_ = random(rows * kMostInputs * 2, DType::bf16, 1);
    out_ = random(std::size_t{kMostRows} * kMostOutputs * 4, DType::f32, 1);
    rope_ = random(std::size_t{kMostRows} * 128 * 4, DType::f32, 1);
    scale_ = random(rows * 4, DType::f32, 1);
    squares_ = static_cast<float*>(device.alloc(std::size_t{kernels::cuda::kStripRows} * kMostInputs * 4));
    weighted_ = device.alloc(std::size_t{kernels::cuda::kSlabMostRows} * kMostInputs * 2);
    if (squares_ == nullptr || weighted_ == nullptr)
      throw CudaError("no memory for the norms that are timed");
    q_ = random(std::size_t{kMostRows} * 20 * 128 * 2, DType::bf16, 1);
    kv_ = random(KvCache{.layers = 1, .kv_heads = 4, .head_dim = 128}.block_bytes() * kKvBlocks, DType::bf16,
                 1);
    std::vector<std::int32_t> slots;  // pairs of block and offset
    for (int r = 0; r < kMostRows; ++r) {
      slots.push_back(r / kBlockTokens);
      slots.push_back(r % kBlockTokens);
    }
    slots_ = Routed::put(device, slots);
    for (std::size_t i = 0; i < kDraws; ++i) {
      for (const int r : kRows) routed_.emplace_back(device, r, static_cast<std::uint32_t>(i + 1));
    }
    device.sync();
  }

  /// Bytes per second of the weights that have rows; medians of a few launches of a graph, of each draw.
  double speed(const Product& product, std::size_t which_rows) {
    const std::size_t matrix = matrix_bytes(DType::bf16, product.outputs, product.inputs);
    const std::size_t step = product.grouped ? matrix * (kExperts + kShared) : matrix;
    double bytes = 0, seconds = 0;
    for (std::size_t draw = 0; draw < (product.grouped ? kDraws : 1); ++draw) {
      const Routed& routed = routed_[draw * std::size(kRows) + which_rows];
      const std::size_t read = product.grouped ? matrix * static_cast<std::size_t>(routed.touched) : matrix;
      const std::size_t turns = std::clamp<std::size_t>(kPoolBytes / read, 4, kMostTurns);
      const CudaGraph graph = CudaGraph::capture(device_, [&] {
        for (std::size_t i = 0; i < turns; ++i) {
          run(linear(product, i % (kPoolBytes / step) * step, kRows[which_rows], routed));
        }
      });
      seconds += median_seconds(device_, graph, kLaunches);
      bytes += static_cast<double>(read * turns);
    }
    return bytes / seconds;
  }

  /// Seconds that a dense product takes.
  double seconds(const Product& product, int rows, Way way) {
    const std::size_t matrix = matrix_bytes(DType::bf16, product.outputs, product.inputs);
    const std::size_t turns = std::clamp<std::size_t>(kPoolBytes / matrix, 4, kMostTurns);
    const kernels::cuda::GpuTraits gpu = kernels::cuda::traits_of(device_);
    const CudaGraph graph = CudaGraph::capture(device_, [&] {
      for (std::size_t i = 0; i < turns; ++i) {
        kernels::cuda::Linear l = linear(product, i % (kPoolBytes / matrix) * matrix, rows, routed_[0]);
        if (way == Way::chosen) {
          run(l);
          continue;
        }
        if (l.consumed_norm.weighted != nullptr) {
          kernels::run(device_, AddRmsNorm{.out = x_,
                                           .residual = static_cast<float*>(out_),
                                           .weight = static_cast<const float*>(scale_),
                                           .rows = rows,
                                           .cols = product.inputs});
        }
        l.consumed_norm = l.produced_norm = {};
        const kernels::cuda::LinearShape shape = shape_of(l);
        kernels::cuda::run(device_, l,
                           way == Way::stream
                               ? kernels::cuda::LinearChoice{.way = kernels::cuda::LinearWay::stream,
                                                             .stream = stream_plan(shape, gpu)}
                               : kernels::cuda::LinearChoice{.way = kernels::cuda::LinearWay::wgmma,
                                                             .wgmma_tile = wgmma_plan(shape, gpu)});
      }
    });
    return median_seconds(device_, graph, kLaunches) / static_cast<double>(turns);
  }

  /// Bytes per second of the product's weights, of a chain of kernels that only fetch them and read x, as
  /// much as a block of a strip does.
  double chain_speed(const Product& product, int rows) {
    const auto plan = kernels::cuda::strip_plan(kernels::cuda::shape_of(linear(product, 0, rows, routed_[0])),
                                                kernels::cuda::traits_of(device_));
    const std::size_t matrix = matrix_bytes(DType::bf16, product.outputs, product.inputs);
    const std::size_t share = matrix / static_cast<std::size_t>(device_.multiprocessors());
    ProductChain chain{.weights = pool_,
                       .weights_bytes = kPoolBytes,
                       .fetched = static_cast<int>((share + 1023) / 1024 * 1024),
                       .x = x_,
                       .x_bytes = rows * product.inputs * 2 / plan.kernel.cluster,
                       .kernels = static_cast<int>(kMostTurns)};
    const CudaGraph graph = CudaGraph::capture(device_, [&] { kernels::run(device_, chain); });
    return static_cast<double>(matrix) * chain.kernels / median_seconds(device_, graph, kLaunches);
  }

  /// Seconds in which so many rows of kQuantisedColumns numbers become fp8 codes. Each turn reads other rows.
  double quantise_seconds(int rows) {
    QuantiseRows op{.rows = rows, .cols = kQuantisedColumns};
    lay_out(op, out_);
    const std::size_t read = static_cast<std::size_t>(rows) * kQuantisedColumns * 2;
    const std::size_t turns = std::clamp<std::size_t>(kPoolBytes / read, 4, kMostTurns);
    const CudaGraph graph = CudaGraph::capture(device_, [&] {
      for (std::size_t i = 0; i < turns; ++i) {
        op.x = static_cast<const std::byte*>(pool_) + i * read;
        kernels::run(device_, op);
      }
    });
    return median_seconds(device_, graph, kLaunches) / static_cast<double>(turns);
  }

  static constexpr int kQuantisedColumns = 2560;
  static constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

 private:
  static constexpr std::size_t kDraws = 5;
  static constexpr int kLaunches = 7;

  void* random(std::size_t bytes, DType dtype, float deviation) {
    const int inputs = 1024;
    const auto outputs = static_cast<int>((bytes / size_of(dtype) + inputs - 1) / inputs);
    const Matrix m{device_.alloc(matrix_bytes(dtype, outputs, inputs)), dtype, outputs, inputs};
    if (m.data == nullptr) throw CudaError("no memory for the weights that are timed");
    kernels::run(device_, FillRandom{.into = m, .outputs = outputs, .seed = ++seed_, .deviation = deviation});
    return m.data;
  }

  void run(const kernels::cuda::Linear& linear) { kernels::cuda::run(device_, linear); }

  kernels::cuda::Linear linear(const Product& product, std::size_t at, int rows, const Routed& routed) const {
    kernels::cuda::Linear l{
        .weight = {static_cast<std::byte*>(pool_) + at, DType::bf16, product.outputs, product.inputs},
        .x = x_,
        .rows = rows,
        .ending = product.ending,
        .out = out_,
        .scale = static_cast<const float*>(scale_),
        .q = q_,
        .rope = static_cast<const float*>(rope_),
        .kv = {.data = kv_, .layers = 1, .kv_heads = product.kv_heads, .head_dim = 128},
        .heads = product.heads,
        .slots = reinterpret_cast<const KvSlot*>(slots_)};
    if (product.halved && device_.features().clusters && rows <= kernels::cuda::kSlabMostRows) {
      const bool adds = product.ending == Ending::add;
      (adds ? l.produced_norm : l.consumed_norm) = {.weighted = adds ? weighted_ : x_,
                                                    .squares = squares_,
                                                    .weight = static_cast<const float*>(scale_),
                                                    .cols = adds ? product.outputs : product.inputs,
                                                    .eps = 1};
    }
    if (product.grouped) {
      l.rows = rows * (kTopK + kShared);
      l.groups = {.offsets = routed.offsets,
                  .gather = product.ending == Ending::swiglu ? routed.gather : nullptr,
                  .count = kExperts + kShared,
                  .weight_stride = matrix_bytes(DType::bf16, product.outputs, product.inputs),
                  .settled = product.ending == Ending::store_scaled};  // as behind its gate|up
    }
    return l;
  }

  Cuda& device_;
  std::uint64_t seed_ = 0;
  void *pool_ = nullptr, *x_ = nullptr, *out_ = nullptr, *rope_ = nullptr, *scale_ = nullptr;
  void *q_ = nullptr, *kv_ = nullptr, *weighted_ = nullptr;
  float* squares_ = nullptr;
  const std::int32_t* slots_ = nullptr;
  std::vector<Routed> routed_;
};

/// The 0.3B's products around the rows that slabs take: as chosen, and the ways there were before.
void measure_slabs(Report& report, Setting& setting, double bandwidth) {
  for (const Product& product : kProducts) {
    if (!product.halved && std::string(product.name) != "0.3b.lm_head") continue;
    const double bound =
        static_cast<double>(matrix_bytes(DType::bf16, product.outputs, product.inputs)) / bandwidth * 1e-3;
    for (const int rows : {8, 9, 16, 24, 32, 40, 48, 64}) {
      const std::string name = std::string("cuda.slabs.") + product.name + ".rows_" + std::to_string(rows);
      const auto report_as = [&](const char* suffix, Way way) {
        report.row({name + suffix, setting.seconds(product, rows, way) * 1e6, "us", bound, 0, Better::lower});
      };
      report_as("", Way::chosen);
      report_as(".stream", Way::stream);
      if (rows > 32) report_as(".wgmma", Way::wgmma);
    }
  }
}

void measure(Report& report, bool quick, bool slabs) {
  Cuda device;
  const double bandwidth = copy_bandwidth(device) * 1e-9;
  report.row({"gpu.copy", bandwidth, "GB/s"});
  Setting setting(device);
  if (device.features().clusters && !quick) measure_slabs(report, setting, bandwidth);
  if (slabs) return;
  for (const int rows : {1, 64, 8192}) {
    const double seconds = setting.quantise_seconds(rows);
    const std::string name = "cuda.quantise_rows.rows_" + std::to_string(rows);
    report.row({name + ".time", seconds * 1e6, "us"});
    const double bytes = static_cast<double>(rows) * (3 + 4.0 / kFp8Block) * Setting::kQuantisedColumns;
    if (rows > 1000) report.row({name, bytes / seconds * 1e-9, "GB/s", bandwidth});
  }
  for (const Product& product : kProducts) {
    const std::size_t bytes = matrix_bytes(DType::bf16, product.outputs, product.inputs);
    for (std::size_t i = 0; i < std::size(Setting::kRows); ++i) {
      const int rows = Setting::kRows[i];
      if (quick && rows != 1 && rows != 8 && rows != 64) continue;
      const bool demanded = rows <= 8 && bytes * (product.grouped ? 8 : 1) >= kDemandedBytes;
      report.row({std::string("cuda.linear.") + product.name + ".rows_" + std::to_string(rows),
                  setting.speed(product, i) * 1e-9, "GB/s", bandwidth, demanded ? 0.85 * bandwidth : 0});
      if (device.features().clusters && rows <= 8 && !product.grouped && bytes < kDemandedBytes) {
        report.row({std::string("cuda.chain.") + product.name + ".rows_" + std::to_string(rows),
                    setting.chain_speed(product, rows) * 1e-9, "GB/s", bandwidth});
      }
    }
  }
}

}  // namespace
}  // namespace troupe::bench

// --quick: 1, 8 and 64 rows. --slabs: only the products that slabs take, beside the ways there were before.
int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("kernels_cuda_linear")) return 0;
  bench::Report report(argc, argv);
  const bool quick = bench::is_quick(argc, argv);
  bool slabs = false;
  for (int i = 1; i < argc; ++i) slabs |= std::strcmp(argv[i], "--slabs") == 0;
  bench::measure(report, quick, slabs);
  return 0;
}
