// Decode attention of the 0.3B and 21B models on the GPU, with plain, int8 and fp8 KV memory: bytes of keys
// and values (each counted once, with scales) per second, compared with the copy bandwidth of this run. A
// single sequence is bound by latency and reported in microseconds. A graph runs the layers of a step in
// order, with more KV memory than the L2 cache holds; the KV blocks of a sequence are scattered. The same for
// steps that verify drafts: a few tokens a sequence, whose keys and values count once.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_graph.h"
#include "kernels/attention.h"
#include "kernels/fill_random.h"

namespace troupe::bench {
namespace {

using namespace kernels;

struct Model {
  const char* name;
  int heads, kv_heads, head_dim, layers;
};

constexpr Model kModels[] = {{"0.3b", 16, 2, 128, 18}, {"21b", 20, 4, 128, 28}};
constexpr int kBatches[] = {1, 8, 32, 128, 256};
constexpr int kPasts[] = {512, 2048, 8192, 32768};
constexpr int kVerified[] = {2, 3, 5, 9};  // tokens of each sequence
constexpr int kVerifiedBatches[] = {1, 8, 32, 64, 256};
constexpr int kVerifiedPasts[] = {1024, 2048};
constexpr int kMostRows = 256 * 9;
constexpr std::size_t kPoolBytes = std::size_t{60} << 30;
constexpr std::size_t kLeastFree = std::size_t{4} << 30;
/// Layers that read less are bound by latency, not by bandwidth.
constexpr double kDemandedBytes = 100e6;
constexpr double kOneRowMicroseconds = 6;  // one sequence of 2,048 tokens

class Setting {
 public:
  explicit Setting(Cuda& device) : device_(device) {
    pool_bytes_ = std::min(kPoolBytes, device.memory().free - kLeastFree);
    pool_ = random(pool_bytes_);
    const std::size_t row_bytes = std::size_t{64} * 128 * 2;
    q_ = random(kMostRows * row_bytes);
    out_ = random(kMostRows * row_bytes);
  }

  /// The number of the model's layers that fit in the pool with this many blocks; may be 0.
  int layers(const Model& model, KvFormat format, std::size_t blocks) const {
    const KvCache kv{.kv_heads = model.kv_heads, .head_dim = model.head_dim, .format = format};
    return static_cast<int>(
        std::min(static_cast<std::size_t>(model.layers), pool_bytes_ / (blocks * kv.layer_bytes())));
  }

  /// Seconds of one layer for `count` sequences of `tokens` rows, the last of which sees `past` tokens, its
  /// own included.
  double decode_seconds(const Model& model, KvFormat format, int count, int past, int tokens = 1) {
    const std::size_t each = static_cast<std::size_t>((past + kBlockTokens - 1) / kBlockTokens);
    const std::size_t blocks = each * static_cast<std::size_t>(count);
    std::vector<BlockId> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    auto* table = static_cast<BlockId*>(put(order));
    std::vector<SequenceRows> sequences;
    for (int i = 0; i < count; ++i) {
      sequences.push_back({table + each * static_cast<std::size_t>(i), past - tokens, tokens, i * tokens});
    }
    auto* on_device = static_cast<SequenceRows*>(put(sequences));
    Attention op{.out = out_,
                 .q = q_,
                 .kv = {.data = pool_,
                        .layers = layers(model, format, blocks),
                        .kv_heads = model.kv_heads,
                        .head_dim = model.head_dim,
                        .format = format},
                 .heads = model.heads,
                 .scale = 0.1f,
                 .batch = {on_device, nullptr, count, count * tokens, tokens},
                 .settled = true};
    const double seconds = layer_seconds(op);
    device_.free(table);
    device_.free(on_device);
    return seconds;
  }

 private:
  /// The median of a few launches of a graph of all layers.
  double layer_seconds(Attention op) {
    constexpr int kLaunches = 7, kLeastOps = 16;
    const int ops = std::max(op.kv.layers, kLeastOps);
    const auto all = [&] {
      for (int i = 0; i < ops; ++i) {
        op.layer = i % op.kv.layers;
        run(device_, op);
      }
    };
    all();
    const CudaGraph graph = CudaGraph::capture(device_, all);
    return median_seconds(device_, graph, kLaunches) / ops;
  }

  void* random(std::size_t bytes) {
    constexpr int kInputs = 1024;
    const auto outputs = static_cast<int>(bytes / 2 / kInputs);
    const Matrix m{device_.alloc(matrix_bytes(DType::bf16, outputs, kInputs)), DType::bf16, outputs, kInputs};
    if (m.data == nullptr) throw CudaError("no memory for the keys and values that are timed");
    run(device_, FillRandom{.into = m, .outputs = outputs, .seed = ++seed_, .deviation = 1});
    return m.data;
  }

  template <class T>
  void* put(const std::vector<T>& values) {
    void* memory = device_.alloc(values.size() * sizeof(T));
    if (memory == nullptr) throw CudaError("no memory for the batch that is timed");
    device_.upload(memory, values.data(), values.size() * sizeof(T));
    device_.sync();
    return memory;
  }

  Cuda& device_;
  std::size_t pool_bytes_ = 0;
  std::uint64_t seed_ = 0;
  void *pool_ = nullptr, *q_ = nullptr, *out_ = nullptr;
};

/// Of the keys and values of `count` sequences in one layer, scales included.
double bytes_of(const Model& model, KvFormat format, int count, int past) {
  return 2.0 * model.kv_heads * (format == KvFormat::plain ? 2 * model.head_dim : model.head_dim + 4) *
         count * past;
}

void measure_decode(Report& report, Setting& setting, KvFormat format, double bandwidth, bool quick) {
  const bool plain = format == KvFormat::plain;
  for (const Model& model : kModels) {
    for (const int count : kBatches) {
      for (const int past : kPasts) {
        if (quick && (past != 2048 || count == 8)) continue;
        const auto blocks = static_cast<std::size_t>(count) * static_cast<std::size_t>(past / kBlockTokens);
        if (setting.layers(model, format, blocks) == 0) continue;
        const double seconds = setting.decode_seconds(model, format, count, past);
        const double bytes = bytes_of(model, format, count, past);
        const std::string name = std::string("cuda.attention.decode.") +
                                 (plain ? "" : std::string(to_string(format)) + ".") + model.name +
                                 ".batch_" + std::to_string(count) + ".past_" + std::to_string(past);
        const bool demanded = count >= 32 && bytes >= kDemandedBytes;
        report.row({name, bytes / seconds * 1e-9, "GB/s", bandwidth,
                    demanded ? (plain ? 0.85 : 0.75) * bandwidth : 0});
        if (count == 1) {
          report.row({name + ".time", seconds * 1e6, "us", bytes / bandwidth * 1e-3,
                      past == 2048 ? kOneRowMicroseconds : 0, Better::lower});
        }
      }
    }
  }
}

void measure_verification(Report& report, Setting& setting, KvFormat format, double bandwidth, bool quick) {
  const std::string kv = format == KvFormat::plain ? "" : std::string(to_string(format)) + ".";
  for (const Model& model : kModels) {
    for (const int count : kVerifiedBatches) {
      for (const int past : kVerifiedPasts) {
        const auto blocks = static_cast<std::size_t>(count) * static_cast<std::size_t>(past / kBlockTokens);
        if (setting.layers(model, format, blocks) == 0) continue;
        if (quick && (past != 2048 || (format != KvFormat::plain && count != 8))) continue;
        for (const int tokens : kVerified) {
          const double seconds = setting.decode_seconds(model, format, count, past, tokens);
          const double bytes = bytes_of(model, format, count, past);
          const std::string name = "cuda.attention.verify." + kv + model.name + ".batch_" +
                                   std::to_string(count) + ".past_" + std::to_string(past) + ".tokens_" +
                                   std::to_string(tokens);
          report.row({name, bytes / seconds * 1e-9, "GB/s", bandwidth});
          report.row({name + ".time", seconds * 1e6, "us", bytes / bandwidth * 1e-3, 0, Better::lower});
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::bench

// --quick: a past of 2,048 tokens and few batch sizes.
int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("kernels_cuda_attention")) return 0;
  bench::Report report(argc, argv);
  const bool quick = bench::is_quick(argc, argv);
  Cuda device;
  const double bandwidth = copy_bandwidth(device) * 1e-9;
  report.row({"gpu.copy", bandwidth, "GB/s"});
  bench::Setting setting(device);
  for (const auto format : {kernels::KvFormat::plain, kernels::KvFormat::int8, kernels::KvFormat::fp8}) {
    bench::measure_decode(report, setting, format, bandwidth, quick);
    bench::measure_verification(report, setting, format, bandwidth, quick);
  }
  return 0;
}
