// `troupe bench decode` and `troupe bench prefill`: steps of the model alone, without engine and HTTP, each
// beside the bound that bytes and arithmetic set at the ceilings measured in the same run.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "cli/bench/arguments.h"
#include "cli/bench/ceilings_of.h"
#include "cli/bench/explain.h"
#include "cli/bench/step_feed.h"
#include "http/client/load_client.h"
#include "model/make_executor.h"
#include "model/preflight.h"

namespace troupe::bench {
namespace {

/// A loaded model and what its device can do at most.
struct OfflineBench {
  model::ModelSpec spec;
  model::WeightFormats formats;
  model::Ceilings ceilings;
  std::unique_ptr<Executor> executor;
  bool synthetic = false;  ///< draft tokens are accepted by the toss of a coin
};

Result<OfflineBench> open_bench(config::Options options) {
  auto found = model::preflight(options);
  if (!found.ok()) return found.status();
  if (!found->spec) return invalid("--device echo runs no model; there is nothing to measure", "device");
  options.device.device = found->device;
  OfflineBench bench;
  bench.synthetic = options.speculation.synthetic_acceptance >= 0;
  if (bench.synthetic && found->device != config::Device::cuda)
    return invalid("--draft-acceptance is offered on a GPU alone", "draft-acceptance");
  bench.spec = *found->spec;
  bench.formats = found->formats;
  auto ceilings = measure_ceilings(options.device);
  if (!ceilings.ok()) return ceilings.status();
  bench.ceilings = *ceilings;
  auto executor = model::make_executor(options);
  if (!executor.ok()) return executor.status();
  bench.executor = std::move(*executor);
  return bench;
}

void print_head(const OfflineBench& bench, const std::string& model) {
  std::printf("%s, %s; %s\nceilings of this run: %.1f GB/s, %.2f TFLOP/s\n", model.c_str(),
              to_string(bench.formats, bench.spec).c_str(), bench.executor->device().c_str(),
              bench.ceilings.bytes_per_s * 1e-9, bench.ceilings.flops_per_s * 1e-12);
}

/// One row of the output.
struct Figure {
  const char* bench;   // "decode" or "prefill"
  const char* length;  // what `tokens` is: "context" or "prompt"
  int batch, tokens;
  std::vector<double> times_s;  // of single steps or prompts
  double tokens_per_s;
  model::StepWork work;
};

void print(const Figure& f, const model::Ceilings& ceilings, bool json) {
  const double p50 = http::percentile(f.times_s, 50), p99 = http::percentile(f.times_s, 99);
  const double bound = model::bound_s(f.work, ceilings);
  if (json) {
    std::printf(
        "{\"bench\":\"%s\",\"batch\":%d,\"tokens\":%d,\"p50_ms\":%.5g,\"p99_ms\":%.5g,\"tok_s\":%.6g,"
        "\"bound_ms\":%.5g,\"ratio\":%.4g}\n",
        f.bench, f.batch, f.tokens, p50 * 1e3, p99 * 1e3, f.tokens_per_s, bound * 1e3, bound / p50);
  } else {
    std::printf(
        "%-8s batch %4d  %-7s %6d  p50 %9.3f ms  p99 %9.3f ms  %9.1f tok/s   bound %9.3f ms  ratio %.3f   "
        "weights %.2f GB, KV %.2f GB, %.2f TFLOP\n",
        f.bench, f.batch, f.length, f.tokens, p50 * 1e3, p99 * 1e3, f.tokens_per_s, bound * 1e3, bound / p50,
        f.work.weight_bytes * 1e-9, f.work.kv_bytes * 1e-9, (f.work.flops + f.work.attention_flops) * 1e-12);
  }
  std::fflush(stdout);
}

/// `drafts`: draft tokens of each row; below 0: rows do not draft, as without speculation.
Status decode_row(OfflineBench& bench, int batch, int context, int output, int drafts, bool json) {
  constexpr int kWarmUp = 5;
  StepFeed feed(*bench.executor);
  const int yields = std::max(0, drafts) + 1;
  if (Status placed = feed.place(batch, context, (output + kWarmUp + 2) * yields); !placed.ok())
    return placed;
  if (auto warm = feed.decode(kWarmUp); !warm.ok()) return warm.status();
  if (drafts >= 0) {
    if (auto warm = feed.decode_drafting(kWarmUp, drafts); !warm.ok()) return warm.status();
  }
  auto times = drafts < 0 ? feed.decode(output) : feed.decode_drafting(output, drafts);
  if (!times.ok()) return times.status();
  const double all = std::accumulate(times->begin(), times->end(), 0.0);
  const double tokens_per_s = static_cast<double>(feed.yielded()) / all;
  print({"decode", "context", batch, context, std::move(*times), tokens_per_s,
         model::decode_work(bench.spec, bench.formats, batch, context + output / 2)},
        bench.ceilings, json);
  if (drafts >= 0 && !json) {
    const double steps = batch * static_cast<double>(output - 1);
    std::printf("         %d draft tokens a row, %s: %.2f verified and %.2f tokens yielded a row\n", drafts,
                bench.synthetic ? "synthetic acceptance" : "compared",
                static_cast<double>(feed.drafted()) / steps, static_cast<double>(feed.yielded()) / steps);
  }
  if (!json) {
    std::printf("         host time of a submit: p50 %.1f us, p99 %.1f us\n",
                http::percentile(feed.submit_s(), 50) * 1e6, http::percentile(feed.submit_s(), 99) * 1e6);
  }
  return {};
}

Status prefill_row(OfflineBench& bench, int tokens, int repeat, bool json) {
  StepFeed feed(*bench.executor);
  if (auto warm = feed.prefill(tokens); !warm.ok()) return warm.status();
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    auto time = feed.prefill(tokens);
    if (!time.ok()) return time.status();
    times.push_back(*time);
  }
  const double tokens_per_s = tokens / http::percentile(times, 50);
  print({"prefill", "prompt", 1, tokens, std::move(times), tokens_per_s,
         model::prefill_work(bench.spec, bench.formats, tokens)},
        bench.ceilings, json);
  return {};
}

config::Field json_field(bool& json) {
  return {.name = "json", .slot = &json, .help = "one JSON object a line instead of a table"};
}

/// Opens the bench and makes its rows; the exit code.
template <class Rows>
int run(const cli::Synopsis& synopsis, const config::Options& options, bool json, Rows&& rows) {
  auto bench = open_bench(options);
  if (!bench.ok()) return cli::fail(synopsis, bench.status());
  if (!json) print_head(*bench, options.model.directory);
  const Status status = rows(*bench);
  return status.ok() ? 0 : cli::fail(synopsis, status);
}

}  // namespace

int decode_main(int argc, char** argv) {
  const cli::Synopsis synopsis{
      "bench decode", "time of a decode step, beside its bound",
      "troupe bench decode [--batch N]… [--context N]… [--output N] [--drafts N]… "
      "[--draft-acceptance P] [--json] [--explain] [-- SERVE FLAGS]",
      "  troupe bench decode --batch 1 --batch 4 --context 512\n"
      "  troupe bench decode --batch 32 --context 2048 -- --model DIR --device cuda\n"
      "  troupe bench decode --batch 1 -- --model bench/models/ERNIE-4.5-0.3B --load-choices "
      "dummy --tokenizer DIR\n"
      "  troupe bench decode --explain -- --model bench/models/ERNIE-4.5-21B-A3B\n"};
  std::vector<int> batches, contexts, drafts;
  int output = 64;
  double acceptance = -1;
  bool json = false, explained = false;
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
      {.name = "drafts",
       .slot = &drafts,
       .help = "with --speculative-config: draft tokens of each row",
       .min = 0,
       .max = 8,
       .when_unset = "num_speculative_tokens"},
      {.name = "draft-acceptance",
       .slot = &acceptance,
       .help = "with --speculative-config, on a GPU: draft tokens are accepted with this probability, "
               "whatever they "
               "are. Synthetic: it says what a step costs, not what text is worth",
       .min = 0,
       .max = 1,
       .when_unset = "compared"},
      json_field(json),
      {.name = "explain",
       .slot = &explained,
       .help =
           "time nothing; print which kernel runs each op on a GPU, and why, at 1, 8, 64 and 512 rows (or "
           "--batch), from config.json alone"},
  };
  std::vector<std::string> of_serve;
  config::Options options;
  if (const auto code = read_own_flags(argc, argv, synopsis, fields, of_serve)) return *code;
  if (const auto code = read_serve_flags(synopsis, of_serve, options)) return *code;
  if (explained) {
    if (batches.empty()) batches = {1, 8, 64, 512};
    const auto text = explain_model(options, batches);
    if (!text.ok()) return cli::fail(synopsis, text.status());
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  if (batches.empty()) batches = {1};
  if (contexts.empty()) contexts = {512};
  const bool speculates = options.speculation.method != config::DraftMethod::none;
  if (!speculates && (acceptance >= 0 || !drafts.empty()))
    return cli::fail(synopsis,
                     invalid("--drafts and --draft-acceptance need --speculative-config", "drafts"));
  options.speculation.synthetic_acceptance = acceptance;
  if (drafts.empty()) drafts = {speculates ? options.speculation.tokens : -1};
  if (options.scheduler.max_num_seqs == 0) {
    options.scheduler.max_num_seqs = *std::max_element(batches.begin(), batches.end());
  }
  return run(synopsis, options, json, [&](OfflineBench& bench) -> Status {
    for (const int context : contexts) {
      for (const int batch : batches) {
        for (const int most : drafts) {
          if (Status status = decode_row(bench, batch, context, output, most, json); !status.ok())
            return status;
        }
      }
    }
    return {};
  });
}

int prefill_main(int argc, char** argv) {
  const cli::Synopsis synopsis{
      "bench prefill", "time to the first token of one prompt, beside its bound",
      "troupe bench prefill [--tokens N]… [--repeat N] [--json] [-- SERVE FLAGS]",
      "  troupe bench prefill --tokens 512\n"
      "  troupe bench prefill --tokens 2048 --tokens 8192 -- --model DIR --device cuda\n"};
  std::vector<int> lengths;
  int repeat = 5;
  bool json = false;
  const std::vector<config::Field> fields = {
      {.name = "tokens",
       .slot = &lengths,
       .help = "length of the prompt",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 24,
       .when_unset = "512"},
      {.name = "repeat", .slot = &repeat, .help = "times each length is measured", .min = 1, .max = 10000},
      json_field(json),
  };
  std::vector<std::string> of_serve;
  config::Options options;
  if (const auto code = read_own_flags(argc, argv, synopsis, fields, of_serve)) return *code;
  if (const auto code = read_serve_flags(synopsis, of_serve, options)) return *code;
  if (lengths.empty()) lengths = {512};
  return run(synopsis, options, json, [&](OfflineBench& bench) -> Status {
    for (const int tokens : lengths) {
      if (Status status = prefill_row(bench, tokens, repeat, json); !status.ok()) return status;
    }
    return {};
  });
}

}  // namespace troupe::bench
