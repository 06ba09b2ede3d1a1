// The whole server as a client sees it: start, memory, streams of the demo model, the front end without a
// model, and the 0.3B shape with random weights. Each figure beside the bound of the same run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "bench/started_server.h"
#include "gpu/ceilings.h"
#include "gpu/cpu.h"
#include "http/client/load_client.h"

namespace {

using namespace troupe;
using namespace troupe::bench;
using http::LoadAnswer;
using http::LoadRun;
using http::percentile;
using http::run_at_once;

std::unique_ptr<ServerProcess> started(const std::vector<std::string>& flags = {}) {
  return started_server("serve_bench", flags);
}

std::string body(int tokens, const std::string& prompt, bool stream = true) {
  return "{\"prompt\":" + prompt + ",\"max_tokens\":" + std::to_string(tokens) +
         ",\"temperature\":0,\"ignore_eos\":true" +
         (stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}" : "}");
}

/// Bytes a second that all cores together can read, measured now, before a server runs.
double bandwidth() {
  Cpu device;
  return read_bandwidth(device);
}

/// Output tokens a second of `streams` equal streams, after their first token.
double stream_rate(const ServerProcess& server, int streams, int tokens) {
  std::vector<std::string> bodies;
  for (int i = 0; i < streams; ++i) {
    bodies.push_back(body(tokens, "\"Story number " + std::to_string(i) + ": Once upon a time\""));
  }
  const LoadRun result = run_at_once(server.port(), "/v1/completions", bodies, 120);
  double rate = 0;
  for (const LoadAnswer& s : result.answers) {
    if (!s.ok || s.tokens != tokens || s.last_ns <= s.first_ns) return 0;
    rate += (tokens - 1) / (static_cast<double>(s.last_ns - s.first_ns) * 1e-9);
  }
  return rate;
}

void demo(Report& report) {
  std::vector<double> starts;
  for (int i = 0; i < 3; ++i) starts.push_back(started()->start_s());
  report.row({"demo.start", percentile(starts, 50), "s", 0, 1.5, Better::lower});

  const auto owner = started();
  const ServerProcess& server = *owner;
  const double bound = bandwidth() / server.weight_bytes();
  stream_rate(server, 1, 32);
  const auto best = [&](int streams) {
    return std::max(stream_rate(server, streams, 128), stream_rate(server, streams, 128));
  };
  const double one = best(1);
  report.row({"demo.http.1_stream", one, "tok/s", bound, 0.6 * bound});
  report.row({"demo.http.4_streams", best(4), "tok/s", 4 * bound, 2 * one});
  report.row({"demo.http.16_streams", best(16), "tok/s", 16 * bound, 3.5 * one});

  const ServerMemory memory = server.memory();
  std::fprintf(stderr, "memory: %.0f MB in all, %.0f MB of it weights and activation arena\n", memory.pss_mb,
               memory.counted_mb);
  report.row({"demo.memory_beyond_model", memory.pss_mb - memory.counted_mb, "MB", 0, 115, Better::lower});
}

void front_end(Report& report) {
  const auto owner = started({"--device", "echo", "--max-num-seqs", "64"});
  const ServerProcess& server = *owner;
  std::vector<double> ttft;
  for (int i = 0; i < 100; ++i) {
    const LoadRun one = run_at_once(server.port(), "/v1/completions", {body(2, "\"hello there\"")}, 10);
    if (one.all_ok())
      ttft.push_back(static_cast<double>(one.answers[0].first_ns - one.answers[0].sent_ns) * 1e-6);
  }
  report.row({"echo.ttft_p50", percentile(ttft, 50), "ms", 0, 1.0, Better::lower});
  report.row({"echo.ttft_p99", percentile(ttft, 99), "ms", 0, 0, Better::lower});

  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const std::vector<std::string> bodies(64, body(1500, "\"one two three four five six seven eight\""));
    const LoadRun result = run_at_once(server.port(), "/v1/completions", bodies, 60);
    // One token a chunk: as many events as tokens, or the figure does not count.
    if (result.all_ok() && result.events == 64 * 1500) best = std::max(best, 64 * 1500 / result.seconds);
  }
  report.row({"echo.sse_64_streams", best, "tok/s", 0, 75e3});
}

/// Seconds of a whole answer of so many tokens.
double answer_s(const ServerProcess& server, int tokens) {
  const std::string prompt = "[" + std::string("1,2,3,4,5,6,7,8") + "]";
  const std::int64_t start = now_ns();
  run_at_once(server.port(), "/v1/completions", {body(tokens, prompt, false)}, 120);
  return static_cast<double>(now_ns() - start) * 1e-9;
}

void shape_03b(Report& report, const std::string& models) {
  const std::string tokenizer = binary_directory() + "/models/SmolLM2-135M-Instruct";
  const auto owner = started({"--model", models + "/ERNIE-4.5-0.3B", "--load-choices", "dummy", "--tokenizer",
                              tokenizer, "--dtype", "bfloat16", "--max-model-len", "4096"});
  const ServerProcess& server = *owner;
  answer_s(server, 8);
  double best = 0;
  for (int round = 0; round < 3; ++round)
    best = std::max(best, 64 / (answer_s(server, 72) - answer_s(server, 8)));
  const double bound = bandwidth() / server.weight_bytes();
  report.row({"ernie_0.3b.decode_batch1", best, "tok/s", bound, 0.7 * bound});
}

}  // namespace

int main(int argc, char** argv) {
  Report report(argc, argv);
  demo(report);
  front_end(report);
  shape_03b(report, std::string(TROUPE_SOURCE_DIR) + "/bench/models");
  return 0;
}
