// The cost of sampling per step on the GPU: a vocabulary of 103,424, logits like a model's (normal with
// deviation 2.5), a graph of twenty steps. The bound is reading the logits once at the copy bandwidth of this
// run, although with few rows they come from the cache.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_graph.h"
#include "kernels/matrix.h"
#include "kernels/sample.h"

namespace troupe::bench {
namespace {

using namespace kernels;

constexpr int kVocab = 103424;
constexpr int kMostRows = 256;
constexpr int kKnownTokens = 2048;

struct Request {
  const char* name;
  SampleRow row;
  double must_1 = 0, must_256 = 0;  ///< microseconds a step
  bool masked = false;              ///< half of the vocabulary is allowed
};

const Request kRequests[] = {
    {"padding", {.logits_row = -1}},
    {"greedy", {.temperature = 0}, 6, 60},
    {"temperature", {.temperature = 0.8f}, 0, 250},
    {"top_p", {.temperature = 0.8f, .top_p = 0.8f}, 0, 250},
    {"top_k", {.top_k = 50}, 0, 250},
    {"min_p", {.min_p = 0.05f}, 0, 250},
    {"penalties",
     {.temperature = 0,
      .repetition_penalty = 1.1f,
      .presence_penalty = 0.1f,
      .frequency_penalty = 0.1f,
      .prompt_tokens = kKnownTokens / 2,
      .known_tokens = kKnownTokens}},
    {"logprobs_20", {.temperature = 0, .logprobs = kMaxTopLogprobs}},
    {"mask", {.temperature = 0.8f}, 0, 250, true},
    {"everything",
     {.temperature = 0.8f,
      .top_p = 0.9f,
      .min_p = 0.01f,
      .top_k = 200,
      .repetition_penalty = 1.1f,
      .presence_penalty = 0.1f,
      .frequency_penalty = 0.1f,
      .prompt_tokens = kKnownTokens / 2,
      .known_tokens = kKnownTokens,
      .logprobs = kMaxTopLogprobs}},
};

template <class T>
T* room(Cuda& device, std::size_t count) {
  void* memory = device.alloc(count * sizeof(T));
  if (memory == nullptr) throw CudaError("no memory for the rows that are timed");
  return static_cast<T*>(memory);
}

class Setting {
 public:
  explicit Setting(Cuda& device) : device_(device) {
    logits_ = room<float>(device, std::size_t{kMostRows} * kVocab);
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0, 2.5f);
    std::vector<float> draws(std::size_t{1} << 21);
    for (float& z : draws) z = normal(random);
    for (std::size_t r = 0; r < kMostRows; ++r) {  // rows overlap in what they take
      device.upload(logits_ + r * kVocab, draws.data() + r * 7001, kVocab * sizeof(float));
    }
    std::vector<TokenId> tokens(std::size_t{kMostRows} * kKnownTokens);
    for (TokenId& id : tokens) id = static_cast<TokenId>(random() % kVocab);
    tokens_ = room<TokenId>(device, tokens.size());
    device.upload(tokens_, tokens.data(), tokens.size() * sizeof(TokenId));
    std::vector<std::uint32_t> masks(kMostRows * mask_words(kVocab));
    for (std::uint32_t& word : masks) word = random();
    masks_ = room<std::uint32_t>(device, masks.size());
    device.upload(masks_, masks.data(), masks.size() * sizeof(std::uint32_t));
    rows_ = room<SampleRow>(device, kMostRows);
    results_ = room<SampleResult>(device, kMostRows);
    device.sync();
  }

  /// The median of a few launches, microseconds a step.
  double microseconds(const Request& request, int count) {
    std::vector<SampleRow> rows(static_cast<std::size_t>(count), request.row);
    for (int i = 0; i < count; ++i) {
      SampleRow& row = rows[static_cast<std::size_t>(i)];
      if (row.logits_row >= 0) row.logits_row = i;
      row.seed = static_cast<std::uint64_t>(i);
      if (request.masked) row.mask = masks_ + mask_words(kVocab) * static_cast<std::size_t>(i);
      row.tokens = tokens_ + std::size_t{kKnownTokens} * static_cast<std::size_t>(i);
    }
    device_.upload(rows_, rows.data(), rows.size() * sizeof rows[0]);
    constexpr int kSteps = 20, kLaunches = 7;
    const CudaGraph graph = CudaGraph::capture(device_, [&] {
      for (int i = 0; i < kSteps; ++i) {
        kernels::run(device_, Sample{.results = results_,
                                     .rows = rows_,
                                     .logits = logits_,
                                     .count = count,
                                     .vocab = kVocab,
                                     .stride = padded(kVocab)});
      }
    });
    return median_seconds(device_, graph, kLaunches) * 1e6 / kSteps;
  }

 private:
  Cuda& device_;
  float* logits_ = nullptr;
  TokenId* tokens_ = nullptr;
  std::uint32_t* masks_ = nullptr;
  SampleRow* rows_ = nullptr;
  SampleResult* results_ = nullptr;
};

void measure(Report& report) {
  Cuda device;
  const double bandwidth = copy_bandwidth(device);
  report.row({"gpu.copy", bandwidth * 1e-9, "GB/s"});
  Setting setting(device);
  for (const Request& request : kRequests) {
    for (const int count : {1, 32, kMostRows}) {
      const double bound = request.row.logits_row < 0 ? 0 : 1e6 * 4.0 * kVocab * count / bandwidth;
      report.row({.name = std::string("cuda.sample.") + request.name + ".rows_" + std::to_string(count),
                  .value = setting.microseconds(request, count),
                  .unit = "us",
                  .bound = bound,
                  .must = count == 1           ? request.must_1
                          : count == kMostRows ? request.must_256
                                               : 0,
                  .better = Better::lower});
    }
  }
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("kernels_cuda_sample")) return 0;
  bench::Report report(argc, argv);
  bench::measure(report);
  return 0;
}
