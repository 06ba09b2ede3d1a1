// Scheduling policies compared on synthetic traces by a simulator over the product's Scheduler and
// CacheManager (bench/README.md).
//
//   scheduler_sim_bench                      a table: seven loads of 20,000 requests under each policy
//   scheduler_sim_bench --requests N         N requests for each policy instead of 140,000
//   scheduler_sim_bench --sweep FILE         also replays other arrival rates and writes all points as lines
//                                            of JSON, for tools/generate/draw_scheduling.py
//   scheduler_sim_bench --json               for tools/bench: 14,000 requests, ours beside the best other
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cpu_clock.h"
#include "bench/report.h"
#include "bench/scheduler_sim/scenarios.h"
#include "bench/scheduler_sim/summary.h"

namespace troupe::bench {
namespace {

constexpr std::uint32_t kLoads = 7;
constexpr std::uint32_t kRequests = kLoads * 20'000;
constexpr std::uint32_t kRequestsOfAShortRun = kLoads * 2'000;

struct SimArguments {
  bool json = false;
  std::uint32_t requests = kRequests;
  std::string sweep;
};

struct Measured {
  std::string policy;
  ReplaySummary summary;
};

void print_heading(const Scenario& s) {
  std::printf("\n%s: ", s.trace.name.c_str());
  if (s.trace.clients > 0) {
    std::printf("%u clients", s.trace.clients);
  } else {
    std::printf("%.3g requests/s", s.trace.rate);
  }
  std::printf(", %u requests, %d KV blocks\n", s.trace.requests, s.device.kv_blocks);
  std::printf("%-11s %9s %6s %8s  %18s  %15s  %9s %8s %6s %9s %5s %6s\n", "policy", "goodput/s", "good",
              "tok/s", "TTFT p50 p99 ms", "TPOT p50 p99 ms", "short p99", "fairness", "hits", "preempted",
              "busy", "CPU s");
}

void print_line(const Measured& m, double cpu_s) {
  const ReplaySummary& s = m.summary;
  std::printf(
      "%-11s %9.2f %5.1f%% %8.0f  %8.0f %9.0f  %7.1f %7.1f  %9.0f %8.3f %5.1f%% %9llu %4.0f%% %6.1f\n",
      m.policy.c_str(), s.goodput, 100 * s.good_share, s.tokens_per_s, s.ttft_p50, s.ttft_p99, s.tpot_p50,
      s.tpot_p99, s.short_ttft_p99, s.fairness, 100 * s.hit_rate,
      static_cast<unsigned long long>(s.preempted), 100 * s.busy, cpu_s);
  std::fflush(stdout);
}

void write_point(std::FILE* file, const Scenario& s, const Measured& m) {
  const ReplaySummary& v = m.summary;
  std::fprintf(file,
               "{\"scenario\":\"%s\",\"rate\":%g,\"policy\":\"%s\",\"goodput\":%.4f,\"good_share\":%.4f,"
               "\"ttft_p50\":%.1f,\"ttft_p99\":%.1f,\"tpot_p50\":%.2f,\"tpot_p99\":%.2f,"
               "\"short_ttft_p99\":%.1f,\"fairness\":%.4f,\"hit_rate\":%.4f,\"preempted\":%llu}\n",
               s.trace.name.c_str(), s.trace.rate, m.policy.c_str(), v.goodput, v.good_share, v.ttft_p50,
               v.ttft_p99, v.tpot_p50, v.tpot_p99, v.short_ttft_p99, v.fairness, v.hit_rate,
               static_cast<unsigned long long>(v.preempted));
}

std::vector<Measured> compare(const Scenario& s, bool prints) {
  const Trace trace = make_trace(s.trace);
  std::vector<Measured> all;
  for (const ReplayPolicy& policy : compared_policies()) {
    const double begin = cpu_us();
    const ReplayResult result = replay(trace, policy, s.device);
    all.push_back({policy.name, summarise(trace, result, s.device)});
    if (prints) print_line(all.back(), 1e-6 * (cpu_us() - begin));
  }
  return all;
}

/// Rows of ours (the last policy) whose bound is the best of the others.
void report_ours(Report& report, const Scenario& s, const std::vector<Measured>& all) {
  const auto row = [&](const char* name, double ReplaySummary::*value, const char* unit, Better better,
                       double slack) {
    double best = all.front().summary.*value;
    for (std::size_t i = 1; i + 1 < all.size(); ++i) {
      const double other = all[i].summary.*value;
      best = better == Better::higher ? std::max(best, other) : std::min(best, other);
    }
    report.row({"scheduler_sim." + s.trace.name + "." + name, all.back().summary.*value, unit, best,
                slack > 0 ? slack * best : 0, better});
  };
  if (s.rates.empty()) {
    row("throughput", &ReplaySummary::tokens_per_s, "tok/s", Better::higher, 0.95);
    return;
  }
  row("goodput", &ReplaySummary::goodput, "req/s", Better::higher, 0.95);
  row("short_ttft_p99", &ReplaySummary::short_ttft_p99, "ms", Better::lower, 1.1);
  row("tpot_p99", &ReplaySummary::tpot_p99, "ms", Better::lower, 0);
  row("fairness", &ReplaySummary::fairness, "Jain", Better::higher, 0);
  if (s.trace.systems > 0) row("hit_rate", &ReplaySummary::hit_rate, "share", Better::higher, 0);
}

/// False when an argument is wrong.
bool read(int argc, char** argv, SimArguments& out) {
  bool given = false;
  for (int i = 1; i < argc; ++i) {
    const bool value_follows = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      out.json = true;
    } else if (std::strcmp(argv[i], "--requests") == 0 && value_follows) {
      const long n = std::strtol(argv[++i], nullptr, 10);
      if (n < 100 || n > 100'000'000) {
        std::fprintf(stderr, "--requests is %s; it must be 100 to 100000000\n", argv[i]);
        return false;
      }
      out.requests = static_cast<std::uint32_t>(n);
      given = true;
    } else if (std::strcmp(argv[i], "--sweep") == 0 && value_follows) {
      out.sweep = argv[++i];
    } else {
      std::fprintf(stderr, "%s: expected --json, --requests N or --sweep FILE\n", argv[i]);
      return false;
    }
  }
  if (out.json && !given) out.requests = kRequestsOfAShortRun;
  return true;
}

int run(int argc, char** argv) {
  SimArguments arguments;
  if (!read(argc, argv, arguments)) return 2;
  std::FILE* points = nullptr;
  if (!arguments.sweep.empty()) {
    points = std::fopen(arguments.sweep.c_str(), "w");
    if (points == nullptr) {
      std::fprintf(stderr, "--sweep: %s cannot be written\n", arguments.sweep.c_str());
      return 2;
    }
  }
  Report report(argc, argv);
  for (const Scenario& scenario : scenarios(arguments.requests / kLoads)) {
    if (!arguments.json) print_heading(scenario);
    const std::vector<Measured> all = compare(scenario, !arguments.json);
    if (arguments.json) report_ours(report, scenario, all);
    if (points == nullptr) continue;
    for (const double rate : scenario.rates) {
      Scenario other = scenario;
      other.trace.rate = rate;
      for (const Measured& m : rate == scenario.trace.rate ? all : compare(other, false)) {
        write_point(points, other, m);
      }
    }
  }
  if (points != nullptr) std::fclose(points);
  return report.all_met() ? 0 : 1;
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) { return troupe::bench::run(argc, argv); }
