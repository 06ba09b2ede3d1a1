// Attention of the 0.3B shape (16 heads, 2 KV heads of 128): decode beside the read bandwidth, prefill
// beside the dot-product peak of this run. And what sampling costs a step.
#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "kernels/attention.h"
#include "kernels/best_isa.h"
#include "kernels/sample.h"

namespace troupe::bench {
namespace {

using namespace kernels;

constexpr int kHeads = 16, kKvHeads = 2, kHeadDim = 128, kLayers = 4;

double best_seconds(int passes, const auto& pass) {
  double best = 1e9;
  for (int i = 0; i < passes; ++i) {
    const std::int64_t start = now_ns();
    pass();
    best = std::min(best, static_cast<double>(now_ns() - start) * 1e-9);
  }
  return best;
}

/// Seconds of all layers for `count` sequences of `tokens` rows that end at position `end`.
double attention_seconds(Cpu& device, KvFormat format, int count, int tokens, int end) {
  const int blocks_each = (end + kBlockTokens - 1) / kBlockTokens;
  KvCache kv{
      .dtype = DType::bf16, .layers = kLayers, .kv_heads = kKvHeads, .head_dim = kHeadDim, .format = format};
  const std::size_t bytes = kv.block_bytes() * static_cast<std::size_t>(count * blocks_each);
  kv.data = device.alloc(bytes);
  for (std::size_t i = 0; i < bytes / 2; ++i) store_element(kv.data, DType::bf16, i, 0.01f * float(i % 13));
  std::vector<BlockId> blocks;
  std::vector<SequenceRows> sequences;
  for (int i = 0; i < count * blocks_each; ++i) blocks.push_back(i);
  for (int i = 0; i < count; ++i) {
    sequences.push_back({blocks.data() + i * blocks_each, end - tokens, tokens, i * tokens});
  }
  const int rows = count * tokens;
  auto* q = device.alloc(std::size_t(rows) * kHeads * kHeadDim * 2);
  auto* out = device.alloc(std::size_t(rows) * kHeads * kHeadDim * 2);
  for (int i = 0; i < rows * kHeads * kHeadDim; ++i) store_element(q, DType::bf16, std::size_t(i), 0.1f);
  const double seconds = best_seconds(8, [&] {
    for (int layer = 0; layer < kLayers; ++layer) {
      run(device, Attention{.out = out,
                            .q = q,
                            .kv = kv,
                            .layer = layer,
                            .heads = kHeads,
                            .scale = 0.088388f,
                            .batch = {sequences.data(), nullptr, count, rows}});
    }
  });
  device.free(kv.data);
  device.free(q);
  device.free(out);
  return seconds;
}

double sample_seconds(Cpu& device, int rows, int vocab, SampleRow row) {
  std::vector<float> logits(std::size_t(rows) * std::size_t(vocab));
  std::vector<SampleRow> asked(std::size_t(rows), row);
  std::vector<SampleResult> results(static_cast<std::size_t>(rows));
  for (int i = 0; i < rows; ++i) asked[std::size_t(i)].logits_row = i;
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = float((i * 2654435761u) % 10007) * 1e-3f;
  return best_seconds(8, [&] {
    run(device, Sample{.results = results.data(),
                       .rows = asked.data(),
                       .logits = logits.data(),
                       .count = rows,
                       .vocab = vocab,
                       .stride = vocab});
  });
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  using namespace troupe::bench;
  Report report(argc, argv);
  Cpu device({.isa = kernels::best_isa().isa});
  const double bandwidth = read_bandwidth(device) * 1e-9, peak = dot_peak(device) * 1e-9;
  for (const auto format : {kernels::KvFormat::plain, kernels::KvFormat::int8, kernels::KvFormat::fp8}) {
    const bool plain = format == kernels::KvFormat::plain;
    const std::string way = plain ? "" : std::string(".") + to_string(format);
    const int head_bytes = plain ? 2 * kHeadDim : kHeadDim + 4;
    const double kv_bytes = 2.0 * kKvHeads * head_bytes * kLayers * 1e-9;  // of one position, in GB
    for (const auto& [count, end] : {std::pair{16, 4096}, std::pair{1, 65536}}) {
      report.row(
          {"attention.decode" + way + ".sequences_" + std::to_string(count) + ".past_" + std::to_string(end),
           kv_bytes * count * end / attention_seconds(device, format, count, 1, end), "GB/s", bandwidth});
    }
    for (const int start : {0, 3584}) {
      const double pairs = 512.0 * start + 512.0 * 513 / 2;  // query, key positions a head looks at
      const double operations = 4.0 * kHeadDim * kHeads * kLayers * pairs * 1e-9;
      report.row({"attention.prefill" + way + ".rows_512.past_" + std::to_string(start),
                  operations / attention_seconds(device, format, 1, 512, start + 512), "GFLOP/s", peak});
    }
  }
  for (const auto& [name, row] :
       {std::pair{"greedy", kernels::SampleRow{.temperature = 0}},
        std::pair{"temperature", kernels::SampleRow{}}, std::pair{"top_p", kernels::SampleRow{.top_p = 0.9f}},
        std::pair{"top_k_top_p_logprobs", kernels::SampleRow{.top_p = 0.9f, .top_k = 50, .logprobs = 5}}}) {
    report.row({std::string("sample.rows_16.vocab_49152.") + name,
                sample_seconds(device, 16, 49152, row) * 1e6, "us", 0, 0, Better::lower});
  }
  return 0;
}
