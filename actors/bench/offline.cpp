// `troupe bench decode` and `troupe bench prefill`: steps of the model alone, without engine and HTTP, each
// beside the bound that bytes and arithmetic set at the ceilings measured in the same run.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "actors/bench/arguments.h"
#include "actors/bench/ceilings_of.h"
#include "actors/bench/step_feed.h"
#include "http/load_client.h"
#include "model/make_executor.h"
#include "model/preflight.h"

namespace troupe::bench {
namespace {

/// A loaded model and what its device can do at most.
struct Bench {
  model::ModelSpec spec;
  DType dtype{};
  model::Ceilings ceilings;
  std::unique_ptr<Executor> executor;
};

Result<Bench> open_bench(config::Options& options) {
  auto found = model::preflight(options);
  if (!found.ok()) return found.status();
  if (!found->spec) return invalid("--device echo runs no model; there is nothing to measure", "device");
  options.device.device = found->device;
  Bench bench;
  bench.spec = *found->spec;
  bench.dtype = found->dtype;
  auto ceilings = measure_ceilings(found->device);
  if (!ceilings.ok()) return ceilings.status();
  bench.ceilings = *ceilings;
  auto executor = model::make_executor(options);
  if (!executor.ok()) return executor.status();
  bench.executor = std::move(*executor);
  return bench;
}

void print_head(const Bench& bench, const config::Options& options) {
  std::printf("%s, %s; %s\nceilings of this run: %.1f GB/s, %.2f TFLOP/s\n", options.model.directory.c_str(),
              to_string(bench.dtype), bench.executor->device().c_str(), bench.ceilings.bytes_per_s * 1e-9,
              bench.ceilings.flops_per_s * 1e-12);
}

struct Figure {
  const char* what;
  int batch, tokens;
  double p50_s, p99_s, bound_s;
  double per_s;  // tokens
  model::StepWork work;
};

void print(const Figure& f, bool json) {
  if (json) {
    std::printf(
        "{\"bench\":\"%s\",\"batch\":%d,\"tokens\":%d,\"p50_ms\":%.5g,\"p99_ms\":%.5g,\"tok_s\":%.6g,"
        "\"bound_ms\":%.5g,\"ratio\":%.4g}\n",
        f.what, f.batch, f.tokens, f.p50_s * 1e3, f.p99_s * 1e3, f.per_s, f.bound_s * 1e3,
        f.bound_s / f.p50_s);
  } else {
    std::printf(
        "%-8s batch %4d  %s %6d  step p50 %9.3f ms  p99 %9.3f ms  %9.1f tok/s   bound %9.3f ms  ratio %.3f   "
        "weights %.2f GB, KV %.2f GB, %.2f TFLOP\n",
        f.what, f.batch, f.batch > 0 && f.what[0] == 'd' ? "context" : "prompt ", f.tokens, f.p50_s * 1e3,
        f.p99_s * 1e3, f.per_s, f.bound_s * 1e3, f.bound_s / f.p50_s, f.work.weight_bytes * 1e-9,
        f.work.kv_bytes * 1e-9, (f.work.flops + f.work.attention_flops) * 1e-12);
  }
  std::fflush(stdout);
}

config::Field json_field(bool& json) {
  return {.name = "json", .slot = &json, .help = "one JSON object a line instead of a table"};
}

Status decode_row(Bench& bench, int batch, int context, int output, bool json) {
  constexpr int kWarmUp = 5;
  StepFeed feed(*bench.executor);
  if (Status placed = feed.place(batch, context, output + kWarmUp); !placed.ok()) return placed;
  auto warm = feed.decode(kWarmUp);
  if (!warm.ok()) return warm.status();
  auto times = feed.decode(output);
  if (!times.ok()) return times.status();
  const double all = std::accumulate(times->begin(), times->end(), 0.0);
  const model::StepWork work = model::decode_work(bench.spec, bench.dtype, batch, context + output / 2);
  print({"decode", batch, context, http::percentile(*times, 50), http::percentile(*times, 99),
         model::bound_s(work, bench.ceilings), batch * static_cast<double>(times->size()) / all, work},
        json);
  if (!json) {
    std::printf("         host time of a submit: p50 %.1f us, p99 %.1f us\n",
                http::percentile(feed.submit_s(), 50) * 1e6, http::percentile(feed.submit_s(), 99) * 1e6);
  }
  return {};
}

Status prefill_row(Bench& bench, int tokens, int repeat, bool json) {
  StepFeed feed(*bench.executor);
  std::vector<double> times;
  for (int i = 0; i <= repeat; ++i) {
    auto time = feed.prefill(tokens);
    if (!time.ok()) return time.status();
    if (i > 0) times.push_back(*time);  // the first warms up
  }
  const model::StepWork work = model::prefill_work(bench.spec, bench.dtype, tokens);
  const double p50 = http::percentile(times, 50);
  print({"prefill", 1, tokens, p50, http::percentile(times, 99), model::bound_s(work, bench.ceilings),
         tokens / p50, work},
        json);
  return {};
}

}  // namespace

int decode_main(int argc, char** argv) {
  const cli::Synopsis synopsis{
      "bench decode", "time of a decode step, beside its bound",
      "troupe bench decode [--batch N]… [--context N]… [--output N] [--json] [-- SERVE FLAGS]",
      "  troupe bench decode --batch 1 --batch 4 --context 512\n"
      "  troupe bench decode --batch 32 --context 2048 -- --model DIR --device cuda\n"
      "  troupe bench decode --batch 1 -- --model bench/models/ERNIE-4.5-0.3B --load-choices "
      "dummy --tokenizer DIR\n"};
  std::vector<int> batches, contexts;
  int output = 64;
  bool json = false;
  const std::vector<config::Field> fields = {
      {.name = "batch",
       .slot = &batches,
       .help = "sequences in a step",
       .min = 1,
       .max = 4096,
       .when_unset = "1"},
      {.name = "context",
       .slot = &contexts,
       .help = "tokens of each before the step",
       .unit = "tokens",
       .min = 0,
       .max = 1 << 24,
       .when_unset = "512"},
      {.name = "output", .slot = &output, .help = "steps that are timed", .min = 2, .max = 1 << 20},
      json_field(json),
  };
  Words words = split_words(argc, argv);
  std::vector<std::string> rest;
  if (const auto code = cli::read_command_line(static_cast<int>(words.own.size()), words.own.data(), synopsis,
                                               fields, rest)) {
    return *code;
  }
  if (!rest.empty()) return cli::fail(synopsis, invalid("unexpected \"" + rest.front() + "\""));
  config::Options options;
  if (const auto code = read_serve_flags(synopsis, words.of_serve, options)) return *code;
  if (batches.empty()) batches = {1};
  if (contexts.empty()) contexts = {512};
  if (options.scheduler.max_num_seqs == 0)
    options.scheduler.max_num_seqs = *std::max_element(batches.begin(), batches.end());
  auto bench = open_bench(options);
  if (!bench.ok()) return cli::fail(synopsis, bench.status());
  if (!json) print_head(*bench, options);
  for (const int context : contexts) {
    for (const int batch : batches) {
      if (Status status = decode_row(*bench, batch, context, output, json); !status.ok())
        return cli::fail(synopsis, status);
    }
  }
  return 0;
}

int prefill_main(int argc, char** argv) {
  const cli::Synopsis synopsis{
      "bench prefill", "time to the first token of one prompt, beside its bound",
      "troupe bench prefill [--tokens N]… [--repeat N] [--json] [-- SERVE FLAGS]",
      "  troupe bench prefill --tokens 512\n"
      "  troupe bench prefill --tokens 2048 --tokens 8192 -- --model DIR --device cuda\n"};
  std::vector<int> tokens;
  int repeat = 5;
  bool json = false;
  const std::vector<config::Field> fields = {
      {.name = "tokens",
       .slot = &tokens,
       .help = "length of the prompt",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 24,
       .when_unset = "512"},
      {.name = "repeat", .slot = &repeat, .help = "times each length is measured", .min = 1, .max = 10000},
      json_field(json),
  };
  Words words = split_words(argc, argv);
  std::vector<std::string> rest;
  if (const auto code = cli::read_command_line(static_cast<int>(words.own.size()), words.own.data(), synopsis,
                                               fields, rest)) {
    return *code;
  }
  if (!rest.empty()) return cli::fail(synopsis, invalid("unexpected \"" + rest.front() + "\""));
  config::Options options;
  if (const auto code = read_serve_flags(synopsis, words.of_serve, options)) return *code;
  if (tokens.empty()) tokens = {512};
  auto bench = open_bench(options);
  if (!bench.ok()) return cli::fail(synopsis, bench.status());
  if (!json) print_head(*bench, options);
  for (const int count : tokens) {
    if (Status status = prefill_row(*bench, count, repeat, json); !status.ok())
      return cli::fail(synopsis, status);
  }
  return 0;
}

}  // namespace troupe::bench
