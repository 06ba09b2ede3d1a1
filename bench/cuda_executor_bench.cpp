// Steps of a whole model on a GPU through the executor: decode and prefill compared with their bound, the
// share of time in which the GPU was idle during decode, and the host's time per step.
//
//   cuda_executor_bench [--json] [--dir MODELS] [--model NAME]… [--batch N]… [--context N]… [--prompt N]…
//   [--gated N]… [--mask-us US] [--steps N] [--quantization NAME]
//   [--tensor-parallel-size N] [--expert-parallel 1] [--ranks-per-gpu N --blocks KV_BLOCKS]
//
// --gated: batches whose rows all wait for masks, beside the same batch without. The masks of a step come
// when the tokens before are known and --mask-us microseconds a row have passed, as long as GRAMMAR takes.
//
// Several ranks are a process each. Their bound is that of rank 0's part, and the sums of a step at the rate
// of a copy into the next rank's memory. Ranks that share a GPU take turns on it, far from any bound.
//
// Without --model the two models of bench/models that fit one GPU; dummy weights.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/gpu_bench.h"
#include "bench/peer_bandwidth.h"
#include "bench/rank_group.h"
#include "bench/report.h"
#include "cli/bench/ceilings_of.h"
#include "cli/bench/step_feed.h"
#include "gpu/cuda.h"
#include "http/client/load_client.h"
#include "model/checkpoint/model_files.h"
#include "model/cuda/executor.h"
#include "model/ranks/part.h"

namespace troupe::bench {
namespace {

using http::percentile;

struct Arguments {
  std::string directory = TROUPE_BENCH_MODELS;
  std::vector<std::string> models;
  std::vector<int> batches, contexts, prompts, gated;
  double mask_us = 12;
  int steps = 64;
  int blocks = 0;  // 0: what fits
  std::string quantization;
  config::ParallelOptions parallel;
};

Arguments parse(int argc, char** argv) {
  Arguments got;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") continue;
    const char* value = argv[++i];
    if (flag == "--dir") got.directory = value;
    if (flag == "--model") got.models.push_back(value);
    if (flag == "--batch") got.batches.push_back(std::atoi(value));
    if (flag == "--context") got.contexts.push_back(std::atoi(value));
    if (flag == "--prompt") got.prompts.push_back(std::atoi(value));
    if (flag == "--gated") got.gated.push_back(std::atoi(value));
    if (flag == "--mask-us") got.mask_us = std::atof(value);
    if (flag == "--steps") got.steps = std::atoi(value);
    if (flag == "--blocks") got.blocks = std::atoi(value);
    if (flag == "--quantization") got.quantization = value;
    if (flag == "--tensor-parallel-size") got.parallel.tensor_parallel_size = std::atoi(value);
    if (flag == "--expert-parallel") got.parallel.enable_expert_parallel = std::atoi(value) != 0;
    if (flag == "--ranks-per-gpu") got.parallel.ranks_per_gpu = std::max(1, std::atoi(value));
  }
  if (got.models.empty()) got.models = {"ERNIE-4.5-0.3B", "ERNIE-4.5-21B-A3B"};
  if (got.batches.empty()) got.batches = {1, 8, 32, 128, 256};
  if (got.contexts.empty()) got.contexts = {2048};
  if (got.prompts.empty()) got.prompts = {8192};
  if (got.gated.empty()) got.gated = {64};
  return got;
}

// Floors of a sound design: tokens per second at 2,048 tokens of context, milliseconds of an 8,192-token
// prompt.
double decode_floor(const std::string& model, int batch, int context) {
  if (context != 2048) return 0;
  if (model == "ERNIE-4.5-0.3B") return batch == 1 ? 1100 : 0;
  if (model != "ERNIE-4.5-21B-A3B") return 0;
  return batch == 1 ? 330 : batch == 32 ? 2000 : batch == 128 ? 6000 : batch == 256 ? 9500 : 0;
}

double prefill_ceiling_ms(const std::string& model, int tokens) {
  if (tokens != 8192) return 0;
  return model == "ERNIE-4.5-0.3B" ? 30 : model == "ERNIE-4.5-21B-A3B" ? 200 : 0;
}

struct Machine {
  model::Ceilings ceilings;
  double peer_bytes_per_s = 0;  // 0: one rank
};

struct Bench {
  std::string name;
  RankGroup& group;
  Machine machine;
  bool plain = true;      // one rank, not quantised: the floors are for that
  model::ModelSpec part;  // of this rank
  model::WeightFormats formats;
  std::unique_ptr<Executor> executor;

  double bound_s(const model::StepWork& work, int rows) const {
    return model::bound_s(work, machine.ceilings) + exchange_s(rows);
  }

 private:
  // Two sums a layer and that of the embedding; the logits' way is left out.
  double exchange_s(int rows) const {
    if (group.ranks() == 1) return 0;
    const double numbers = static_cast<double>(rows) * kernels::padded(part.hidden) * (2 * part.layers + 1);
    return 4 * numbers * (group.ranks() - 1) / machine.peer_bytes_per_s;
  }
};

Status decode(Bench& bench, int batch, int context, int steps, Report& report) {
  StepFeed feed(*bench.executor, bench.group.next_epoch());
  if (Status s = feed.meet_ranks(); !s.ok()) return s;
  constexpr int kWarmUp = 8;
  if (Status s = feed.place(batch, context, steps + kWarmUp); !s.ok()) return s;
  if (auto warm = feed.decode(kWarmUp); !warm.ok()) return warm.status();
  const auto times = feed.decode(steps);
  if (!times.ok()) return times.status();

  const std::string at = bench.name + ".decode.b" + std::to_string(batch) + ".c" + std::to_string(context);
  const double all = std::accumulate(times->begin(), times->end(), 0.0);
  const double rate = batch * static_cast<double>(times->size()) / all;
  const model::StepWork work = model::decode_work(bench.part, bench.formats, batch, context + steps / 2);
  const double bound = bench.bound_s(work, batch);
  report.row({at, rate, "tok/s", batch / bound, bench.plain ? decode_floor(bench.name, batch, context) : 0});
  report.row({at + ".step_p50", 1e3 * percentile(*times, 50), "ms", 1e3 * bound, 0, Better::lower});

  double idle = 0;
  for (std::size_t i = 1; i < feed.spans().size(); ++i) {
    idle += static_cast<double>(feed.spans()[i].started_ns - feed.spans()[i - 1].finished_ns);
  }
  const double run = static_cast<double>(feed.spans().back().finished_ns - feed.spans().front().started_ns);
  report.row({at + ".gpu_idle", 100 * idle / run, "%", 0, 2, Better::lower});
  report.row({at + ".submit_p50", 1e6 * percentile(feed.submit_s(), 50), "us", 0, 50, Better::lower});
  report.row({at + ".submit_p99", 1e6 * percentile(feed.submit_s(), 99), "us", 0, 0, Better::lower});
  return {};
}

/// Tokens per second with every row gated, against the same batch without masks: must be 0.9 of it.
Status gated(Bench& bench, int batch, int context, const Arguments& arguments, Report& report) {
  constexpr int kWarmUp = 8;
  double rates[2];
  for (const bool waits : {false, true}) {
    StepFeed feed(*bench.executor, bench.group.next_epoch());
    if (Status s = feed.meet_ranks(); !s.ok()) return s;
    if (Status s = feed.place(batch, context, arguments.steps + kWarmUp); !s.ok()) return s;
    feed.gate(waits ? 1e-6 * arguments.mask_us : -1);
    if (auto warm = feed.decode(kWarmUp); !warm.ok()) return warm.status();
    const auto times = feed.decode(arguments.steps);
    if (!times.ok()) return times.status();
    rates[waits] =
        batch * static_cast<double>(times->size()) / std::accumulate(times->begin(), times->end(), 0.0);
  }
  report.row({bench.name + ".gated.b" + std::to_string(batch) + ".c" + std::to_string(context), rates[true],
              "tok/s", rates[false], 0.9 * rates[false]});
  return {};
}

Status prefill(Bench& bench, int tokens, Report& report) {
  StepFeed feed(*bench.executor, bench.group.next_epoch());
  if (Status s = feed.meet_ranks(); !s.ok()) return s;
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    const auto time = feed.prefill(tokens);
    if (!time.ok()) return time.status();
    if (i > 0) times.push_back(*time);
  }
  const model::StepWork work = model::prefill_work(bench.part, bench.formats, tokens);
  report.row({bench.name + ".prefill.t" + std::to_string(tokens), 1e3 * percentile(times, 50), "ms",
              1e3 * bench.bound_s(work, tokens), bench.plain ? prefill_ceiling_ms(bench.name, tokens) : 0,
              Better::lower});
  return {};
}

// Rank 0 measures alone, while nothing else is on the GPUs.
Result<Machine> measure(const Arguments& arguments, RankGroup& group, Report& report) {
  Machine machine;
  if (group.first()) {
    const auto ceilings = measure_cuda_ceilings();
    if (!ceilings.ok()) return ceilings.status();
    machine.ceilings = *ceilings;
    report.row({"copy_bandwidth", 1e-9 * ceilings->bytes_per_s, "GB/s"});
    report.row({"matrix_peak", 1e-12 * ceilings->flops_per_s, "TFLOP/s"});
  }
  group.meet();
  if (group.ranks() == 1) return machine;
  Cuda device({.ordinal = arguments.parallel.gpu_of(group.place().shard.rank)});
  machine.peer_bytes_per_s = peer_bandwidth(group, device);
  report.row({"peer_copy", 1e-9 * machine.peer_bytes_per_s, "GB/s"});
  return machine;
}

Status run(const Arguments& arguments, RankGroup& group, Report& report) {
  const auto machine = measure(arguments, group, report);
  if (!machine.ok()) return machine.status();
  const bool plain = group.ranks() == 1 && arguments.quantization.empty();
  for (const std::string& name : arguments.models) {
    config::Options options;
    options.model.directory = arguments.directory + "/" + name;
    options.model.load_choices = config::LoadChoice::dummy;
    options.quantization.method = arguments.quantization;
    options.parallel = arguments.parallel;
    options.device.num_gpu_blocks_override = arguments.blocks;
    auto files = model::open_model(options.model);
    if (!files.ok()) return files.status();
    if (Status s = files->choose(config::Device::cuda, options.quantization); !s.ok()) return s;
    if (Status s = model::check_ranks(*files, group.place().shard); !s.ok()) return s;
    const auto part = model::part_of(files->spec, group.place().shard);
    if (!part.ok()) return part.status();
    const TimePoint begin = Clock::now();
    auto executor = model::make_cuda_executor(*files, options, {}, group.place());
    if (!executor.ok()) return executor.status();
    report.row({name + ".start", std::chrono::duration<double>(Clock::now() - begin).count(), "s", 0,
                !plain                     ? 0
                : name == "ERNIE-4.5-0.3B" ? 3.0
                                           : 6.0,
                Better::lower});
    Bench bench{name, group, *machine, plain, *part, files->formats, std::move(*executor)};
    for (const int context : arguments.contexts) {
      for (const int batch : arguments.batches) {
        if (Status s = decode(bench, batch, context, arguments.steps, report); !s.ok()) return s;
      }
    }
    for (const int context : arguments.contexts) {
      for (const int batch : arguments.gated) {
        if (Status s = gated(bench, batch, context, arguments, report); !s.ok()) return s;
      }
    }
    for (const int tokens : arguments.prompts) {
      if (Status s = prefill(bench, tokens, report); !s.ok()) return s;
    }
  }
  group.meet();
  return {};
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  const bench::Arguments arguments = bench::parse(argc, argv);
  bench::RankGroup group = bench::RankGroup::start(arguments.parallel.tensor_parallel_size,
                                                   arguments.parallel.enable_expert_parallel);
  if (!bench::gpu_is_there("cuda_executor")) return 0;
  bench::Report report(argc, argv);
  try {
    const Status status = bench::run(arguments, group, report);
    if (status.ok()) return 0;
    std::fprintf(stderr, "cuda_executor_bench: %s\n", status.message.c_str());
  } catch (const CudaError& error) {
    std::fprintf(stderr, "cuda_executor_bench: %s\n", error.what());
  }
  return 1;
}
