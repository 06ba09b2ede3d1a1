// `troupe bench load` asks a running server; `troupe bench serve` starts one of its own for it.
#include <cstdio>
#include <memory>

#include "cli/bench/arguments.h"
#include "cli/bench/load_plan.h"
#include "cli/bench/server_process.h"
#include "cli/server_flags.h"

namespace troupe::bench {
namespace {

std::vector<config::Field> plan_fields(LoadPlan& plan, bool& json) {
  return {
      {.name = "requests", .slot = &plan.requests, .help = "how many in all", .min = 1, .max = 1'000'000},
      {.name = "concurrency",
       .slot = &plan.concurrency,
       .help = "closed loop: requests inside at once; with --rate the most that may be",
       .min = 0,
       .max = 100'000,
       .when_unset = "16; with --rate any number"},
      {.name = "rate",
       .slot = &plan.rate,
       .help = "open loop: requests a second, at random distances; 0 is a closed loop",
       .unit = "requests/s",
       .min = 0,
       .max = 1e6},
      {.name = "input",
       .slot = &plan.input,
       .help = "length of a prompt",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 20},
      {.name = "output",
       .slot = &plan.output,
       .help = "length of an answer",
       .unit = "tokens",
       .min = 1,
       .max = 1 << 20},
      {.name = "spread",
       .slot = &plan.spread,
       .help = "lengths vary uniformly by this share to both sides",
       .min = 0,
       .max = 1},
      {.name = "prefix",
       .slot = &plan.prefix,
       .help = "tokens that prompts have in common at their beginning",
       .unit = "tokens",
       .min = 0,
       .max = 1 << 20},
      {.name = "prefixes",
       .slot = &plan.prefixes,
       .help = "number of different common beginnings",
       .min = 1,
       .max = 1 << 20},
      {.name = "vocab",
       .slot = &plan.vocab,
       .help = "ids of prompts are drawn below this",
       .min = 11,
       .max = 1 << 22},
      {.name = "json", .slot = &json, .help = "print one JSON object instead of a table"},
  };
}

config::Field limit_field(http::LoadOptions& options) {
  return {.name = "limit",
          .slot = &options.limit_s,
          .help = "given up after so long",
          .unit = "seconds",
          .min = 1,
          .max = 86400};
}

/// Runs the plan and prints its summary; the exit code.
int run_plan(const LoadPlan& plan, http::LoadOptions options, bool json) {
  options.concurrency = concurrency_of(plan);
  const http::LoadRun run = http::run_load(options, make_requests(plan));
  std::fputs(load_summary(plan, run, json).c_str(), stdout);
  for (const http::LoadAnswer& answer : run.answers) {
    if (answer.ok) continue;
    std::fprintf(stderr, "troupe bench: a request failed; HTTP status %d (0: no answer)\n", answer.status);
    return 1;
  }
  return 0;
}

}  // namespace

int load_main(int argc, char** argv) {
  const cli::Synopsis synopsis{
      "bench load", "load on a running server", "troupe bench load [--port N] [OPTION…]",
      "  troupe bench load --port 8180 --concurrency 64 --input 1024 --output 256\n"
      "  troupe bench load --rate 10 --requests 500 --spread 0.5 --prefix 512 --prefixes 4\n"};
  LoadPlan plan;
  http::LoadOptions options;
  bool json = false;
  cli::ServerFlags flags;
  std::vector<config::Field> fields = cli::server_fields(flags);
  fields.push_back(
      {.name = "api-key", .slot = &options.api_key, .help = "sent as a bearer key", .secret = true});
  fields.push_back(limit_field(options));
  for (config::Field& field : plan_fields(plan, json)) fields.push_back(std::move(field));
  std::vector<std::string> of_serve;
  if (const auto code = read_own_flags(argc, argv, synopsis, fields, of_serve)) return *code;
  const auto chosen = cli::choose_server(flags);
  if (!chosen.ok()) return cli::fail(synopsis, chosen.status());
  options.host = chosen->host;
  options.port = chosen->port;
  options.tls = chosen->tls;
  if (!http::has_address(options.host)) {
    return cli::fail(synopsis, invalid("\"" + options.host + "\" is no address, and no name of one"));
  }
  if (!of_serve.empty()) {
    return cli::fail(synopsis, invalid("unexpected \"" + of_serve.front() + "\": the server runs already"));
  }
  return run_plan(plan, options, json);
}

int serve_main(int argc, char** argv) {
  const cli::Synopsis synopsis{
      "bench serve", "starts a server, puts load on it, stops it",
      "troupe bench serve [OPTION…] [-- SERVE FLAGS]",
      "  troupe bench serve --concurrency 4 --requests 32\n"
      "  troupe bench serve --concurrency 64 --input 2048 -- --model DIR --device cuda\n"};
  LoadPlan plan;
  bool json = false;
  int ready_within = 600;
  http::LoadOptions options;
  std::vector<config::Field> fields = plan_fields(plan, json);
  fields.push_back({.name = "ready-within",
                    .slot = &ready_within,
                    .help = "given up when the server takes longer to start",
                    .unit = "seconds",
                    .min = 1,
                    .max = 86400});
  fields.push_back(limit_field(options));
  std::vector<std::string> of_serve;
  if (const auto code = read_own_flags(argc, argv, synopsis, fields, of_serve)) return *code;
  const auto server = ServerProcess::start(of_serve, ready_within);
  if (!server.ok()) return cli::fail(synopsis, server.status());
  if (!json) std::printf("exec to ready: %.2f s\n", (*server)->start_s());
  options.port = (*server)->port();
  return run_plan(plan, options, json);
}

}  // namespace troupe::bench
