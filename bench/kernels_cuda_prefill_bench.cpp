// Prefill attention on the GPU in the shapes of the 0.3B and 21B models: floating-point operations per second
// (only those below the diagonal count), compared with the tensor cores' peak in this run.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/cuda_event.h"
#include "kernels/attention.h"
#include "kernels/fill_random.h"
#include "kernels/matrix_peak.h"

namespace troupe::bench {
namespace {

using namespace kernels;

struct Model {
  const char* name;
  int heads, kv_heads, head_dim;
};

/// `count` sequences, each with a chunk of `tokens` at `position`.
struct Chunks {
  int count, tokens, position;
  double must;  ///< TFLOP/s
};

constexpr Model kModels[] = {{"0.3b", 16, 2, 128}, {"21b", 20, 4, 128}, {"demo", 9, 3, 64}};
constexpr Chunks kChunks[] = {{1, 512, 0, 0},     {1, 2048, 0, 0},       {4, 2048, 0, 0},
                              {1, 8192, 0, 450},  {1, 8192, 57344, 450}, {1, 8192, 122880, 450},
                              {1, 512, 57344, 0}, {1, 64, 4096, 0},      {1, 64, 122880, 0}};

double operations(const Model& model, const Chunks& c) {
  const double pairs = double(c.tokens) * c.position + double(c.tokens) * (c.tokens + 1) / 2;
  return 4.0 * model.head_dim * model.heads * c.count * pairs;
}

/// Draws from N(0, 1), which is close to real activations; zeros would draw less power and run faster.
void* random(Cuda& device, std::size_t bytes) {
  constexpr int kInputs = 1024;
  static std::uint64_t seed = 0;
  const auto outputs = static_cast<int>((bytes / 2 + kInputs - 1) / kInputs);
  const Matrix m{device.alloc(matrix_bytes(DType::bf16, outputs, kInputs)), DType::bf16, outputs, kInputs};
  if (m.data == nullptr) throw CudaError("no memory for the prompts that are timed");
  run(device, FillRandom{.into = m, .outputs = outputs, .seed = ++seed, .deviation = 1});
  return m.data;
}

template <class T>
T* put(Cuda& device, const std::vector<T>& values) {
  auto* memory = static_cast<T*>(device.alloc(values.size() * sizeof(T)));
  if (memory == nullptr) throw CudaError("no memory for the batch that is timed");
  device.upload(memory, values.data(), values.size() * sizeof(T));
  device.sync();
  return memory;
}

/// The median of a few passes; a pass runs enough ops to take a few milliseconds.
double seconds_of(Cuda& device, const Attention& op) {
  const auto pass = [&](int ops) {
    CudaEvent from(CudaEvent::Timing::on), to(CudaEvent::Timing::on);
    from.record(device);
    for (int i = 0; i < ops; ++i) run(device, op);
    to.record(device);
    to.wait();
    return to.milliseconds_since(from) * 1e-3 / ops;
  };
  pass(3);
  const int ops = std::clamp(static_cast<int>(5e-3 / pass(3)), 2, 200);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(pass(ops));
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

double seconds_of(Cuda& device, const Model& model, const Chunks& c) {
  const int blocks_each = (c.position + c.tokens + kBlockTokens - 1) / kBlockTokens;
  std::vector<BlockId> blocks(static_cast<std::size_t>(blocks_each * c.count));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  BlockId* table = put(device, blocks);
  std::vector<SequenceRows> sequences;
  for (int i = 0; i < c.count; ++i) {
    sequences.push_back({table + i * blocks_each, c.position, c.tokens, i * c.tokens});
  }
  SequenceRows* on_device = put(device, sequences);
  const int rows = c.count * c.tokens;
  const std::size_t row_bytes = static_cast<std::size_t>(padded(model.heads * model.head_dim)) * 2;
  Attention op{.out = random(device, static_cast<std::size_t>(rows) * row_bytes),
               .q = random(device, static_cast<std::size_t>(rows) * row_bytes),
               .kv = {.layers = 1, .kv_heads = model.kv_heads, .head_dim = model.head_dim},
               .heads = model.heads,
               .scale = 0.1f,
               .batch = {on_device, nullptr, c.count, rows}};
  op.kv.data = random(device, blocks.size() * op.kv.block_bytes());
  const double seconds = seconds_of(device, op);
  device.free(op.out);
  device.free(const_cast<void*>(op.q));
  device.free(op.kv.data);
  device.free(table);
  device.free(on_device);
  return seconds;
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  using namespace troupe::bench;
  if (!bench::gpu_is_there("kernels_cuda_prefill")) return 0;
  Report report(argc, argv);
  Cuda device;
  const double peak = kernels::matrix_peak(device) * 1e-12;
  report.row({"gpu.matrix_peak", peak, "TFLOP/s"});
  for (const Model& model : kModels) {
    for (const Chunks& c : kChunks) {
      const double seconds = seconds_of(device, model, c);
      const std::string name = std::string("cuda.attention.prefill.") + model.name + ".sequences_" +
                               std::to_string(c.count) + ".tokens_" + std::to_string(c.tokens) + ".past_" +
                               std::to_string(c.position);
      report.row({name, operations(model, c) / seconds * 1e-12, "TFLOP/s", peak,
                  model.head_dim == 128 ? c.must : 0});
      report.row({name + ".time", seconds * 1e6, "us", operations(model, c) / peak * 1e-6, 0, Better::lower});
    }
  }
  return 0;
}
