// Ways to choose the engine of a request, compared by a simulator over the product's EngineRouter, Schedulers
// and CacheManagers; and what the choice costs the front (bench/README.md).
//
//   cluster_sim_bench                     a table: 2, 8, 64 and 512 engines, each policy at each rate
//   cluster_sim_bench --engines 2,8       only these numbers of engines
//   cluster_sim_bench --rates 6,8.5       only these rates, in requests a second for each engine
//   cluster_sim_bench --policy NAME       only this one: ours, round-robin, least-load or bounded-hashing
//   cluster_sim_bench --prefixes N        so many instead of 10,000
//   cluster_sim_bench --seconds N         the requests of N seconds are judged, not of 240 (64: 60, 512: 20)
//   cluster_sim_bench --json              for tools/bench: 64 engines at the rates where a policy is best
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/cluster_sim/choice_cost.h"
#include "bench/cluster_sim/cluster.h"
#include "bench/cpu_clock.h"
#include "bench/report.h"

namespace troupe::bench {
namespace {

constexpr Balancing kAll[] = {Balancing::round_robin, Balancing::least_load, Balancing::bounded_hashing,
                              Balancing::product};

struct SimArguments {
  bool json = false;
  std::vector<double> engines{2, 8, 64, 512};
  std::vector<double> costs_at{2, 8, 64, 512};  ///< engines: what a choice costs
  std::vector<double> rates{4, 6, 8, 10, 11, 12, 13, 14, 15, 16};
  std::string policy;  ///< empty: all
  std::uint32_t prefixes = ClusterLoad{}.prefixes;
  double seconds = 0;  ///< 0: as long as suits the number of engines
};

void print_heading(const ClusterLoad& load) {
  std::printf("\n%u engines, judged: %.0f s after %.0f s\n", load.engines, load.measured_s, load.warm_up_s);
  std::printf("%5s  %-15s %9s %9s %6s  %17s  %15s %6s %6s %9s %6s %8s %6s\n", "rate", "policy", "offered/s",
              "goodput/s", "good", "TTFT p50 p99 ms", "TPOT p50 p99 ms", "hits", "busy", "preempted", "moved",
              "refused", "CPU s");
}

void print_line(const ClusterLoad& load, Balancing balancing, const ClusterResult& r, double cpu_s) {
  std::printf(
      "%5.4g  %-15s %9.1f %9.2f %5.1f%%  %8.0f %8.0f  %7.1f %7.1f %5.1f%% %5.1f%% %9llu %6llu %8llu %6.1f\n",
      load.rate, name_of(balancing), static_cast<double>(r.requests) / load.measured_s, r.goodput,
      100 * r.good_share, 1e3 * r.ttft_p50_s, 1e3 * r.ttft_p99_s, 1e3 * r.tpot_p50_s, 1e3 * r.tpot_p99_s,
      100 * r.hit_rate, 100 * r.busy, static_cast<unsigned long long>(r.preempted),
      static_cast<unsigned long long>(r.moved), static_cast<unsigned long long>(r.refused), cpu_s);
  std::fflush(stdout);
}

/// Of each policy, in the order of kAll, the goodput at the rate where it is best.
std::vector<double> compare(const SimArguments& arguments, std::uint32_t engines) {
  std::vector<double> best(std::size(kAll));
  bool heading = !arguments.json;
  for (const double rate : arguments.rates) {
    ClusterLoad load;
    load.engines = engines;
    load.rate = rate;
    load.prefixes = arguments.prefixes;
    load.measured_s = engines <= 8 ? 240 : engines <= 100 ? 60 : 20;
    if (engines > 100) load.warm_up_s = 20;
    if (arguments.seconds > 0) {
      load.measured_s = arguments.seconds;
      load.warm_up_s = std::min(load.warm_up_s, arguments.seconds);
    }
    if (std::exchange(heading, false)) print_heading(load);
    const ClusterGoal goal;
    const ClusterTrace trace = make_cluster_trace(load, goal);
    for (std::size_t i = 0; i < std::size(kAll); ++i) {
      if (!arguments.policy.empty() && arguments.policy != name_of(kAll[i])) continue;
      const double begin = cpu_us();
      const ClusterResult result = simulate(trace, goal, cluster_device(), kAll[i]);
      best[i] = std::max(best[i], result.goodput);
      if (!arguments.json) print_line(load, kAll[i], result, 1e-6 * (cpu_us() - begin));
    }
  }
  return best;
}

void report_goodput(Report& report, std::uint32_t engines, const std::vector<double>& best) {
  const double ours = best.back();
  if (std::ranges::count(best, 0) > 0) return;  // there is nothing to compare
  const std::string prefix = "cluster_sim." + std::to_string(engines) + ".goodput";
  const bool demanded = engines == 64;
  // In multiples of the other's; the bound is what is aimed at.
  const auto row = [&](const char* name, std::size_t other, double must, double aim) {
    const double value = best[other] > 0 ? ours / best[other] : 0;
    report.row({prefix + name, value, "x", aim, demanded ? must : 0, Better::higher});
  };
  report.row({prefix, ours, "req/s", *std::max_element(best.begin(), best.end() - 1), 0, Better::higher});
  row("_to_round_robin", 0, 1.5, 2);
  row("_to_least_load", 1, 0, 0);
  row("_to_bounded_hashing", 2, 1, 1.1);
}

void report_choices(Report& report, std::uint32_t engines, bool quick) {
  const ChoiceCost cost = measure_choices(engines, cluster_device().device.kv_blocks, quick ? 500 : 5000);
  const std::string name = "cluster_sim." + std::to_string(engines);
  report.row({name + ".choose", cost.choose_ns, "ns", 0, 0, Better::lower});
  report.row({name + ".choose_and_read_tables", cost.refresh_us, "us", 0, 0, Better::lower});
}

/// Numbers between commas, each within [least, most].
bool read_numbers(const char* flag, const char* text, double least, double most, std::vector<double>& out) {
  out.clear();
  const char* const end = text + std::strlen(text);
  for (const char* at = text;; ++at) {
    double value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    const bool ends = next == end || *next == ',';
    if (error != std::errc() || !ends || !(value >= least && value <= most)) {
      std::fprintf(stderr, "%s is %s; it must be numbers from %g to %g, with commas between them\n", flag,
                   text, least, most);
      return false;
    }
    out.push_back(value);
    if (next == end) return true;
    at = next;
  }
}

/// False when an argument is wrong.
bool read(int argc, char** argv, SimArguments& out) {
  bool rates = false, engines = false;
  for (int i = 1; i < argc; ++i) {
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (std::strcmp(argv[i], "--json") == 0) {
      out.json = true;
    } else if (std::strcmp(argv[i], "--engines") == 0) {
      if (!read_numbers("--engines", value, 1, 4096, out.engines)) return false;
      engines = true, ++i;
    } else if (std::strcmp(argv[i], "--rates") == 0) {
      if (!read_numbers("--rates", value, 0.01, 1000, out.rates)) return false;
      rates = true, ++i;
    } else if (std::strcmp(argv[i], "--policy") == 0) {
      if (std::ranges::none_of(kAll,
                               [value](Balancing one) { return std::strcmp(name_of(one), value) == 0; })) {
        std::fprintf(stderr, "--policy is %s; it must be ours, round-robin, least-load or bounded-hashing\n",
                     value);
        return false;
      }
      out.policy = value;
      ++i;
    } else if (std::strcmp(argv[i], "--seconds") == 0) {
      std::vector<double> seconds;
      if (!read_numbers("--seconds", value, 1, 100'000, seconds)) return false;
      out.seconds = seconds.front();
      ++i;
    } else if (std::strcmp(argv[i], "--prefixes") == 0) {
      std::vector<double> prefixes;
      if (!read_numbers("--prefixes", value, 1, 1e6, prefixes)) return false;
      out.prefixes = static_cast<std::uint32_t>(prefixes.front());
      ++i;
    } else {
      std::fprintf(
          stderr,
          "%s: expected --engines N,…, --rates R,…, --policy NAME, --prefixes N, --seconds N or --json\n",
          argv[i]);
      return false;
    }
  }
  if (engines) out.costs_at = out.engines;
  if (out.json) {
    if (!engines) out.engines = {64};
    if (!rates) out.rates = {10, 12, 15};
    if (out.seconds == 0) out.seconds = 20;
  }
  return true;
}

int run(int argc, char** argv) {
  SimArguments arguments;
  if (!read(argc, argv, arguments)) return 2;
  Report report(argc, argv);
  std::vector<std::vector<double>> best;
  for (const double engines : arguments.engines)
    best.push_back(compare(arguments, static_cast<std::uint32_t>(engines)));
  if (!arguments.json) std::printf("\n");
  for (std::size_t i = 0; i < best.size(); ++i)
    report_goodput(report, static_cast<std::uint32_t>(arguments.engines[i]), best[i]);
  for (const double engines : arguments.costs_at)
    report_choices(report, static_cast<std::uint32_t>(engines), arguments.json);
  return report.all_met() ? 0 : 1;
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) { return troupe::bench::run(argc, argv); }
