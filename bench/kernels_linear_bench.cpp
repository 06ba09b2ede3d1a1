// Matrix products of the 0.3B's and the demo model's shapes. Every figure stands beside the time that its
// bytes take at the read bandwidth or its operations at the dot-product peak, whichever is longer; both are
// measured in this run.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "gpu/buffer.h"
#include "gpu/ceilings.h"
#include "kernels/best_isa.h"
#include "kernels/fill_random.h"
#include "kernels/linear_add.h"
#include "kernels/mlp.h"

namespace troupe::bench {
namespace {

using namespace kernels;

struct Shape {
  const char* suffix;  ///< of its rows' names
  int hidden, intermediate;
  int layers_timed;  ///< at once: about 113 MB in bf16, a few milliseconds as what the bandwidth is timed by
};
constexpr Shape kErnie03b{"", 1024, 3072, 6};
constexpr Shape kDemo{".demo", 576, 1536, 20};
constexpr Shape kExpert21b{".21b_expert", 2560, 1536, 8};

constexpr int kDecodeRows[] = {1, 2, 4, 8, 16};
constexpr int kMostRows = 512;
constexpr int kRounds = 4;
constexpr int kPrefillLayers = 3;
constexpr std::size_t kLeastBytes = std::size_t{340} << 20;  // of weights

/// As it stands in the rows' names: "bfloat16", "int8", "int4_64".
std::string name_of(const WeightFormat& format) {
  if (!format.quantised()) return to_string(format.activations);
  if (format.kind == WeightKind::wint2) return "wint2";
  const std::string kind = format.kind == WeightKind::int8 ? "int8" : "int4";
  return format.group == 0 ? kind : kind + "_" + std::to_string(format.group);
}

void fill(Cpu& device, const Matrix& into) {
  run(device, FillRandom{.into = into, .outputs = into.outputs, .seed = 1});
}

Matrix make_weight(Cpu& device, const WeightFormat& format, int outputs, int inputs) {
  const Matrix m{device.alloc(matrix_bytes(format, outputs, inputs)), format, outputs, inputs};
  fill(device, m);
  return m;
}

/// The MLPs of a model, one after the other, in one piece of memory as a model's weights are: matrices of
/// less than 2 MiB, alone, would not get huge pages.
class Layers {
 public:
  Layers(Cpu& device, const Shape& shape, const WeightFormat& format) : device_(device) {
    const std::size_t gate_up_bytes = matrix_bytes(format, gate_up_outputs(shape.intermediate), shape.hidden);
    const std::size_t down_bytes = matrix_bytes(format, shape.hidden, shape.intermediate);
    const std::size_t bytes = aligned_bytes(gate_up_bytes) + aligned_bytes(down_bytes);
    const std::size_t group_bytes = bytes * std::size_t(shape.layers_timed);
    groups = static_cast<int>((bytes_beyond_caches(kLeastBytes) + group_bytes - 1) / group_bytes);
    const std::size_t layers = std::size_t(groups) * std::size_t(shape.layers_timed);
    Arena weights({device.alloc(bytes * layers), bytes * layers});
    for (std::size_t i = 0; i < layers; ++i) {
      gate_up.push_back(
          {weights.take_bytes(gate_up_bytes), format, gate_up_outputs(shape.intermediate), shape.hidden});
      fill(device, gate_up.back());
      down.push_back({weights.take_bytes(down_bytes), format, shape.hidden, shape.intermediate});
      fill(device, down.back());
    }
    layer_bytes = static_cast<double>(gate_up_bytes + down_bytes);
    layer_operations = 2.0 * 3 * shape.hidden * shape.intermediate;
    residual_ = static_cast<float*>(device.alloc(sizeof(float) * kMostRows * std::size_t(shape.hidden)));
    x_ = device.alloc(sizeof(float) * kMostRows * std::size_t(shape.hidden));
    activation_ = device.alloc(sizeof(float) * kMostRows * std::size_t(shape.intermediate));
    for (int i = 0; i < kMostRows * shape.hidden; ++i)
      store_element(x_, format.activations, i, 0.01f * float(i % 17));
  }

  void pass(int rows, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      run(device_, Mlp{.residual = residual_,
                       .x = x_,
                       .activation = activation_,
                       .gate_up = gate_up[std::size_t(i)],
                       .down = down[std::size_t(i)],
                       .rows = rows});
    }
  }

  std::vector<Matrix> gate_up, down;
  int groups = 0;  ///< of layers that are timed at once; together they are more than the caches hold
  double layer_bytes = 0;
  double layer_operations = 0;  ///< of one row

 private:
  Cpu& device_;
  float* residual_ = nullptr;
  void* x_ = nullptr;
  void* activation_ = nullptr;
};

double best_seconds(int passes, const auto& pass) {
  double best = 1e9;
  for (int i = 0; i < passes; ++i) {
    const std::int64_t start = now_ns();
    pass();
    best = std::min(best, static_cast<double>(now_ns() - start) * 1e-9);
  }
  return best;
}

/// Decode figures are bytes of weights a second; their unit names the bound that binds. `demanded`: figures
/// have to reach a share of their bounds.
void measure(Report& report, const Shape& shape, Isa isa, const WeightFormat& format, bool demanded) {
  Cpu device({.isa = isa});
  const std::string suffix = std::string(shape.suffix) + "." + name_of(format) + "." + to_string(isa);
  Layers model(device, shape, format);
  // Figure and bound in turn, the best of each: a neighbour on the machine then disturbs both alike.
  double bandwidth = 0, peak = 0, prefill = 1e9;
  const int groups = model.groups;
  std::vector<std::vector<double>> decode(std::size(kDecodeRows),
                                          std::vector<double>(static_cast<std::size_t>(groups), 1e9));
  for (int round = 0; round < kRounds; ++round) {
    bandwidth = std::max(bandwidth, read_bandwidth(device));
    for (int i = 0; i < 4 * groups; ++i) {  // each group's weights were evicted by the others'
      for (std::size_t j = 0; j < std::size(kDecodeRows); ++j) {
        const int group = (i + static_cast<int>(j)) % groups;
        double& best = decode[j][static_cast<std::size_t>(group)];
        best = std::min(best, best_seconds(1, [&] {
                          model.pass(kDecodeRows[j], group * shape.layers_timed, shape.layers_timed);
                        }));
      }
    }
    peak = std::max(peak, format.quantised() ? int8_dot_peak(device) : dot_peak(device));
    prefill = std::min(prefill, best_seconds(2, [&] { model.pass(kMostRows, 0, kPrefillLayers); }));
  }
  const double layers = double(groups) * shape.layers_timed;
  const double bytes = model.layer_bytes * layers, operations = model.layer_operations * layers;
  for (std::size_t j = 0; j < std::size(kDecodeRows); ++j) {
    const int rows = kDecodeRows[j];
    double seconds = 0;
    for (const double group : decode[j]) seconds += group;
    const double by_bandwidth = bytes / bandwidth, by_peak = operations * rows / peak;
    const double bound = bytes / std::max(by_bandwidth, by_peak) * 1e-9;
    const double share = !demanded ? 0 : rows == 1 ? 0.7 : rows == 16 && !format.quantised() ? 0.75 : 0;
    report.row({"linear.decode.rows_" + std::to_string(rows) + suffix, bytes / seconds * 1e-9,
                by_peak > by_bandwidth ? "GB/s dot" : "GB/s read", bound, share * bound});
  }
  const double done = model.layer_operations * kMostRows * kPrefillLayers * 1e-9;
  report.row({"linear.prefill.rows_512" + suffix, done / prefill, format.quantised() ? "GOP/s" : "GFLOP/s",
              peak * 1e-9, demanded ? 0.4 * peak * 1e-9 : 0});
}

/// What loading a checkpoint takes: random weights, and a matrix brought into the order of the kernels.
void measure_loading(Report& report, Isa isa, const WeightFormat& format) {
  Cpu device({.isa = isa});
  const std::string suffix = "." + name_of(format) + "." + to_string(isa);
  const int outputs = gate_up_outputs(kErnie03b.intermediate), inputs = kErnie03b.hidden;
  const DType dtype = format.activations;
  const Matrix source = make_weight(device, dtype, outputs, inputs),
               into = make_weight(device, format, outputs, inputs);
  const double fill =
      best_seconds(3, [&] { run(device, FillRandom{.into = into, .outputs = outputs, .seed = 2}); });
  report.row({"fill_random" + suffix, double(outputs) * inputs / fill * 1e-9, "G/s"});
  const Pack pack{.into = into, .source = source.data, .source_dtype = dtype, .outputs = outputs};
  const double packing = best_seconds(3, [&] { run(device, pack); });
  report.row(
      {"pack" + suffix, double(matrix_bytes(dtype, outputs, inputs)) / packing * 1e-9, "GB/s"});  // of source
}

}  // namespace
}  // namespace troupe::bench

// --best: the fastest instruction set alone. --experts: what experts are stored in, on every set.
int main(int argc, char** argv) {
  using namespace troupe;
  bench::Report report(argc, argv);
  const Isa best = kernels::best_isa().isa;
  if (const std::string& why = kernels::best_isa().why_not_amx; !why.empty())
    std::fprintf(stderr, "%s\n", why.c_str());
  const bool demanded = best != Isa::amx;  // the bounds below are of other sets
  const auto given = [&](const char* flag) {
    return std::any_of(argv + 1, argv + argc, [&](const char* word) { return std::strcmp(word, flag) == 0; });
  };
  if (given("--experts")) {
    for (const Isa isa : usable_isas()) {
      if (isa == Isa::baseline) continue;
      for (const kernels::WeightKind kind : {kernels::WeightKind::int4, kernels::WeightKind::wint2})
        bench::measure(report, bench::kExpert21b, isa, kernels::WeightFormat(kind, DType::bf16), false);
    }
    return 0;
  }
  bench::measure(report, bench::kErnie03b, best, DType::bf16, demanded);
  bench::measure(report, bench::kDemo, best, DType::bf16, demanded);
  const kernels::WeightFormat int8{kernels::WeightKind::int8, DType::bf16};
  const kernels::WeightFormat int4{kernels::WeightKind::int4, DType::bf16, 64};
  for (const auto& format : {int8, int4}) {
    bench::measure(report, bench::kErnie03b, best, format, demanded);
    bench::measure(report, bench::kDemo, best, format, demanded);
  }
  if (given("--best")) return 0;
  bench::measure_loading(report, best, DType::bf16);
  bench::measure_loading(report, best, int8);
  bench::measure_loading(report, best, int4);
  bench::measure(report, bench::kErnie03b, best,
                 kernels::WeightFormat(kernels::WeightKind::int4, DType::bf16), false);
  bench::measure(report, bench::kErnie03b, best, DType::f16, false);
  bench::measure_loading(report, best, DType::f16);
  for (const Isa isa : usable_isas()) {
    if (isa == best || isa == Isa::baseline) continue;
    if (isa == Isa::avx512) bench::measure(report, bench::kDemo, isa, DType::bf16, true);
    for (const auto& format : {kernels::WeightFormat(DType::bf16), int8, int4}) {
      bench::measure(report, bench::kErnie03b, isa, format, false);
    }
  }
  return 0;
}
