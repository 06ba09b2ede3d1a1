// Exchanges over ranks on GPUs, in graphs, our own in one step and in two and NCCL's: sums, the norm behind a
// sum in the same kernel and in one of its own, logits gathered. First what the ranks themselves choose at
// start.
//
//   cuda_exchange_bench [--json] [--ranks N] [--ranks-per-gpu N] [--rows N]… [--cols N]…
//
// Two ranks by default, each on a GPU of its own. The bound: what a rank sends at least, that is 4 bytes a
// number to every other rank in one step and 8 (R - 1) / R bytes in two, at the rate of a copy into the next
// rank's memory, measured first. Ranks that share a GPU take turns on it; their figures only show that the
// exchanges end.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/gpu_bench.h"
#include "bench/peer_bandwidth.h"
#include "bench/rank_group.h"
#include "bench/report.h"
#include "gpu/nccl.h"
#include "kernels/add_rms_norm.h"
#include "model/ranks/collective.h"

namespace troupe::bench {
namespace {

constexpr int kSums = 32;  // of a graph
constexpr int kLaunches = 50;

struct Arguments {
  int ranks = 2, ranks_per_gpu = 1;
  std::vector<int> rows, cols;
};

Arguments parse(int argc, char** argv) {
  Arguments got;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") continue;
    const int value = std::atoi(argv[++i]);
    if (flag == "--ranks") got.ranks = value;
    if (flag == "--ranks-per-gpu") got.ranks_per_gpu = value;
    if (flag == "--rows") got.rows.push_back(value);
    if (flag == "--cols") got.cols.push_back(value);
  }
  if (got.rows.empty()) got.rows = {1, 8, 64, 2048};
  if (got.cols.empty()) got.cols = {2560, 8192};
  return got;
}

struct Bench {
  const Arguments& arguments;
  RankGroup& group;
  Cuda& device;
  Report& report;
  double peer_bytes_per_s = 0;

  bool shares() const { return arguments.ranks_per_gpu > 1; }
};

/// One sum's share of a graph's time in seconds; `work` launches one.
template <class Work>
double seconds_of(Bench& bench, const Work& work) {
  const CudaGraph graph = CudaGraph::capture(bench.device, [&] {
    for (int i = 0; i < kSums; ++i) work();
  });
  bench.group.meet();
  median_seconds(bench.device, graph, 5);
  const double seconds = median_seconds(bench.device, graph, kLaunches) / kSums;
  bench.group.meet();
  return seconds;
}

enum class Way { one_step, two_steps, nccl };

const char* name_of(Way way) {
  return way == Way::one_step ? "own" : way == Way::two_steps ? "two_steps" : "nccl";
}

void measure(Bench& bench, model::Collective<Cuda>& ranks, Way way, int rows, int cols) {
  const std::size_t stride = static_cast<std::size_t>(kernels::padded(cols));
  const std::size_t count = static_cast<std::size_t>(rows) * stride;
  const auto floats = [&](std::size_t n) {
    return static_cast<float*>(bench.device.alloc(n * sizeof(float)));
  };
  float* const part = floats(count);
  float* const residual = floats(count);
  float* const weight = floats(stride);
  float* const out = floats(count);
  if (out == nullptr) throw CudaError("no memory for " + std::to_string(rows) + " rows");

  const std::string at =
      std::string("exchange.") + name_of(way) + "." + std::to_string(rows) + "x" + std::to_string(cols);
  const double copies =  // of all numbers, that a rank sends
      (bench.group.ranks() - 1) * (way == Way::one_step ? 1.0 : 2.0 / bench.group.ranks());
  const double bound = 4.0 * static_cast<double>(count) * copies / bench.peer_bytes_per_s;
  const bool demanded = way == Way::one_step && rows == 8 && cols == 2560 && bench.group.ranks() == 2;
  const double sum = seconds_of(bench, [&] { ranks.all_reduce(bench.device, part, residual, count); });
  bench.report.row({at, 1e6 * sum, "us", 1e6 * bound, demanded && !bench.shares() ? 6.0 : 0, Better::lower});

  const kernels::AddRmsNorm norm{.out = out,
                                 .residual = residual,
                                 .weight = weight,
                                 .dtype = DType::bf16,
                                 .rows = rows,
                                 .cols = cols,
                                 .eps = 1e-5f};
  bool one_kernel = true;
  const double together = seconds_of(bench, [&] {
    one_kernel = ranks.all_reduce(bench.device, part, norm);
    if (!one_kernel) kernels::run(bench.device, norm);
  });
  const double apart = seconds_of(bench, [&] {
    ranks.all_reduce(bench.device, part, residual, count);
    kernels::run(bench.device, norm);
  });
  bench.report.row({at + ".then_norm", 1e6 * apart, "us", 1e6 * bound, 0, Better::lower});
  if (one_kernel) bench.report.row({at + ".with_norm", 1e6 * together, "us", 1e6 * bound, 0, Better::lower});
  for (float* const memory : {part, residual, weight, out}) bench.device.free(memory);
}

void measure_gather(Bench& bench, model::Collective<Cuda>& ranks, Way way, int rows) {
  constexpr int kVocabulary = 103424;
  const int held = kVocabulary / bench.group.ranks() / 32 * 32;
  std::vector<int> first;
  for (int rank = 0; rank < bench.group.ranks(); ++rank) first.push_back(rank * held);
  first.push_back(kVocabulary);
  const auto floats = [&](std::size_t columns) {
    auto* const memory =
        static_cast<float*>(bench.device.alloc(static_cast<std::size_t>(rows) * columns * sizeof(float)));
    if (memory == nullptr) throw CudaError("no memory for " + std::to_string(rows) + " rows of logits");
    return memory;
  };
  constexpr std::size_t kStride = kVocabulary;
  float* const part = floats(kStride);
  float* const all = floats(kStride);
  const double seconds =
      seconds_of(bench, [&] { ranks.all_gather(bench.device, part, kStride, all, kStride, rows, first); });
  const double bound = 4.0 * rows * held * (bench.group.ranks() - 1) / bench.peer_bytes_per_s;
  bench.report.row({std::string("exchange.") + name_of(way) + ".logits." + std::to_string(rows),
                    1e6 * seconds, "us", 1e6 * bound, 0, Better::lower});
  bench.device.free(part);
  bench.device.free(all);
}

void measure_way(Bench& bench, bool nccl) {
  bench.group.next_epoch();
  auto ranks = model::Collective<Cuda>::attach(bench.group.place().memory_fd, bench.group.place().shard,
                                               bench.device, nccl, bench.shares());
  if (!ranks.ok()) throw CudaError(ranks.status().message);
  const TimePoint begin = Clock::now();
  while (!(*ranks)->join()) {
  }
  if (!nccl) {
    bench.report.row(
        {"exchange.join", 1e3 * std::chrono::duration<double>(Clock::now() - begin).count(), "ms"});
    if (const std::size_t from = (*ranks)->two_steps_from(); from != kernels::kNeverInTwoSteps)
      bench.report.row({"exchange.two_steps_from", static_cast<double>(from), "numbers"});
  }
  for (const Way way : {Way::one_step, Way::two_steps, Way::nccl}) {
    if ((way == Way::nccl) != nccl) continue;
    if (!nccl) (*ranks)->set_two_steps_from(way == Way::two_steps ? 0 : kernels::kNeverInTwoSteps);
    for (const int cols : bench.arguments.cols) {
      for (const int rows : bench.arguments.rows) measure(bench, **ranks, way, rows, cols);
    }
  }
  for (const int rows : {1, 32, 128}) measure_gather(bench, **ranks, nccl ? Way::nccl : Way::one_step, rows);
  bench.group.meet();
}

void run(const Arguments& arguments, RankGroup& group, Report& report) {
  Cuda device({.ordinal = group.place().shard.rank / arguments.ranks_per_gpu});
  Bench bench{arguments, group, device, report};
  bench.peer_bytes_per_s = peer_bandwidth(group, device);
  report.row({"exchange.peer_copy", 1e-9 * bench.peer_bytes_per_s, "GB/s"});
  measure_way(bench, false);
  if (const Result<std::string> there = nccl_version(); there.ok())
    measure_way(bench, true);
  else if (group.first())
    std::fprintf(stderr, "cuda_exchange: without NCCL: %s\n", there.status().message.c_str());
}

/// Why the bench cannot run with these ranks; empty: it can.
std::string hindrance(const Arguments& arguments) {
  if (const Status usable = cuda_usable(); !usable.ok()) return usable.message;
  const int needed = (arguments.ranks + arguments.ranks_per_gpu - 1) / arguments.ranks_per_gpu;
  if (const int there = cuda_devices(); there < needed) {
    return std::to_string(needed) + " GPUs are needed, there is " + std::to_string(there) +
           "; --ranks-per-gpu lets ranks share one";
  }
  return {};
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  const bench::Arguments arguments = bench::parse(argc, argv);
  if (arguments.ranks < 2 || arguments.ranks > kernels::kMostPeers || arguments.ranks_per_gpu < 1) {
    std::fprintf(stderr, "cuda_exchange_bench: --ranks has to be from 2 to %d, --ranks-per-gpu 1 or more\n",
                 kernels::kMostPeers);
    return 2;
  }
  bench::RankGroup group = bench::RankGroup::start(arguments.ranks);
  if (const std::string why = bench::hindrance(arguments); !why.empty()) {
    if (group.first()) std::fprintf(stderr, "cuda_exchange: skipped: %s\n", why.c_str());
    return 0;
  }
  bench::Report report(argc, argv);
  try {
    bench::run(arguments, group, report);
    return 0;
  } catch (const CudaError& error) {
    std::fprintf(stderr, "cuda_exchange_bench: %s\n", error.what());
    return 1;
  }
}
