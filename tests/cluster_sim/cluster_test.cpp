// The simulator of a cluster: it loses no request, deaths and slow engines are what they are said to be, and
// it gives the same result again; its program prints its rows.
#include "bench/cluster_sim/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::bench {
namespace {

constexpr Balancing kAll[] = {Balancing::product, Balancing::round_robin, Balancing::least_load,
                              Balancing::bounded_hashing};

ClusterLoad small() {
  ClusterLoad load;
  load.engines = 3;
  load.rate = 3;
  load.warm_up_s = 5;
  load.measured_s = 10;
  load.prefixes = 20;
  load.slow_share = 0;
  load.death_every_s = 0;
  return load;
}

ClusterResult run(const ClusterLoad& load, Balancing balancing) {
  return simulate(make_cluster_trace(load, {}), {}, cluster_device(), balancing);
}

TEST(Cluster, EveryRequestIsGoodWhereThereIsLittleToDo) {
  for (const Balancing balancing : kAll) {
    const ClusterResult r = run(small(), balancing);
    EXPECT_GT(r.requests, 50u);
    EXPECT_EQ(r.good_share, 1) << name_of(balancing);
    EXPECT_EQ(r.refused + r.moved + r.unanswered, 0u) << name_of(balancing);
  }
}

TEST(Cluster, TheSameAgain) {
  ClusterLoad load = small();
  load.rate = 9;
  load.death_every_s = 10;
  for (const Balancing balancing : kAll) {
    const ClusterResult a = run(load, balancing), b = run(load, balancing);
    EXPECT_EQ(a.goodput, b.goodput);
    EXPECT_EQ(a.ttft_p99_s, b.ttft_p99_s);
    EXPECT_EQ(a.tpot_p50_s, b.tpot_p50_s);
    EXPECT_EQ(a.hit_rate, b.hit_rate);
    EXPECT_EQ(a.moved, b.moved);
  }
}

TEST(Cluster, RequestsOfADeadEngineEndElsewhere) {
  ClusterLoad load = small();
  load.death_every_s = 14;  // once, at 7 s, and at 21 s
  const ClusterResult r = run(load, Balancing::round_robin);
  EXPECT_GT(r.moved, 5u);
  EXPECT_EQ(r.unanswered, 0u);
  EXPECT_LT(r.good_share, 1) << "some waited for their first token until the death was noticed";
  EXPECT_GT(r.good_share, 0.7);
  EXPECT_GT(r.ttft_p99_s, kSilence_s);
}

TEST(Cluster, RequestsWaitWhenTheOnlyEngineIsDead) {
  ClusterLoad load = small();
  load.engines = 1;
  load.death_every_s = 14;
  load.restart_s = 5;
  const ClusterResult r = run(load, Balancing::product);
  EXPECT_GT(r.moved, 0u);
  EXPECT_EQ(r.unanswered, 0u);
  EXPECT_GT(r.ttft_p99_s, 2);
}

TEST(Cluster, SlowEnginesTakeLonger) {
  ClusterLoad load = small();
  load.rate = 0.05;  // one request at a time: a slow engine has no more of them at once
  load.measured_s = 200;
  const double fast = run(load, Balancing::round_robin).tpot_p50_s;
  load.slow_share = 1;
  EXPECT_NEAR(run(load, Balancing::round_robin).tpot_p50_s / fast, 2, 0.3);
}

TEST(Cluster, TheProductFindsMoreCachedThanRoundRobin) {
  ClusterLoad load = small();
  load.prefixes = 200;
  load.rate = 8;
  EXPECT_GT(run(load, Balancing::product).hit_rate, 1.2 * run(load, Balancing::round_robin).hit_rate);
}

TEST(ClusterTrace, HasItsRatesAndShares) {
  ClusterLoad load;
  load.rate = 10;
  const ClusterTrace trace = make_cluster_trace(load, {});
  const double seconds = 40 + 120 + 1 + 15;
  EXPECT_DOUBLE_EQ(trace.end_s, seconds);
  EXPECT_NEAR(static_cast<double>(trace.arrivals.size()), 640 * seconds, 4 * std::sqrt(640 * seconds));
  EXPECT_EQ(trace.deaths.size(), 3u) << "at 30, 90 and 150 s";
  EXPECT_EQ(std::ranges::count(trace.slow, true), 6);
  std::map<std::uint32_t, double> of;
  for (const ClusterArrival& arrival : trace.arrivals) ++of[arrival.prefix];
  double harmonic = 0;
  for (int i = 1; i <= 10'000; ++i) harmonic += 1.0 / i;
  const auto all = static_cast<double>(trace.arrivals.size());
  EXPECT_NEAR(of[0] / all, 1 / harmonic, 0.005);
  EXPECT_NEAR(of[9] / all, 0.1 / harmonic, 0.002);
  EXPECT_EQ(trace.prompt(0).size(), 2500u);
}

TEST(BoundedHashing, KeepsABeginningAtOneEngineUpToItsBound) {
  BalancerParts parts;
  parts.engines = 8;
  parts.requests = 80;
  const auto balancer = make_balancer(Balancing::bounded_hashing, parts);
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<TokenId> ids(100, 7);
  std::vector<std::uint32_t> given(8);
  const std::uint32_t home = balancer->choose(0, ids, all);
  balancer->end(0);
  EXPECT_EQ(balancer->choose(0, ids, all), home);
  ++given[home];
  for (std::uint32_t i = 1; i < 80; ++i) ++given[balancer->choose(i, ids, all)];
  EXPECT_EQ(given[home], 13u) << "ceil(1.25 * 80 / 8)";
  EXPECT_EQ(std::ranges::max(given), 13u);
  std::vector<std::uint32_t> others = all;
  std::erase(others, home);
  balancer->end(79);
  EXPECT_NE(balancer->choose(79, ids, others), home);
}

constexpr std::string_view kProgram = TROUPE_CLUSTER_SIM_BENCH;  // empty: the build has no bench programs

/// What the program prints, line by line; its exit status is in `status`.
std::vector<std::string> printed(const std::string& arguments, int& status) {
  std::FILE* const pipe = ::popen((std::string(kProgram) + " " + arguments + " 2>&1").c_str(), "r");
  std::vector<std::string> lines;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) lines.emplace_back(line);
  status = ::pclose(pipe);
  return lines;
}

TEST(ClusterSimBench, PrintsItsRowsTheSameAgain) {
  if (kProgram.empty()) GTEST_SKIP() << "the build has no bench programs";
  const std::string arguments = "--json --engines 2,3 --rates 2,4 --seconds 4";
  std::vector<std::string> first, again;
  for (std::vector<std::string>* goodputs : {&first, &again}) {
    int status = 0;
    std::size_t costs = 0;
    for (const std::string& line : printed(arguments, status)) {
      if (line.find(".goodput") != std::string::npos) goodputs->push_back(line);
      costs += line.find(".choose") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(status, 0);
    EXPECT_EQ(costs, 4u);
  }
  ASSERT_EQ(first.size(), 8u);
  EXPECT_EQ(first[0].find("{\"name\":\"cluster_sim.2.goodput\",\"value\":"), 0u) << first[0];
  EXPECT_NE(first[7].find("cluster_sim.3.goodput_to_bounded_hashing"), std::string::npos) << first[7];
  EXPECT_EQ(first, again);
}

TEST(ClusterSimBench, RefusesArgumentsThatItDoesNotKnow) {
  if (kProgram.empty()) GTEST_SKIP() << "the build has no bench programs";
  int status = 0;
  for (const std::string arguments : {"--engines 2,x", "--engines", "--policy all", "--rates 0", "-v"}) {
    const std::vector<std::string> lines = printed(arguments, status);
    EXPECT_NE(status, 0) << arguments;
    EXPECT_EQ(lines.size(), 1u) << arguments;
  }
}

}  // namespace
}  // namespace troupe::bench
