#include "bench/cluster_sim/choice_cost.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/session/engine_router.h"
#include "base/check.h"
#include "bench/cluster_sim/workload.h"

namespace troupe::bench {
namespace {

constexpr std::uint32_t kOpenAtEach = 64;
constexpr Duration kLong = std::chrono::seconds(1);  // more than a table may be old

/// The engine has the prefixes first, first + step, …, as many as its blocks hold.
std::shared_ptr<const ipc::BlockNames> table(const ClusterTrace& trace, std::int32_t blocks,
                                             std::uint32_t first, std::uint32_t step) {
  const auto file = ipc::BlockNames::create(static_cast<std::uint64_t>(blocks), kNamesKey);
  TROUPE_CHECK(file.ok());
  auto names = ipc::BlockNames::attach(file->get());
  TROUPE_CHECK(names.ok());
  names->begin(1);
  const BlockHasher hasher({kNamesKey.low, kNamesKey.high});
  const std::int32_t each = trace.load.prefix_tokens / kBlockTokens;
  std::uint32_t request = first;
  for (std::int32_t block = 0; block + each <= blocks; request += step) {
    const std::vector<TokenId> ids =
        trace.prompt(request % static_cast<std::uint32_t>(trace.arrivals.size()));
    BlockHash name = hasher.root({});
    for (std::int32_t i = 0; i < each; ++i) {
      name =
          hasher.next(name, std::span(ids).subspan(static_cast<std::size_t>(i) * kBlockTokens, kBlockTokens));
      names->set(block++, {name, i});
    }
  }
  return std::make_shared<ipc::BlockNames>(*std::move(names));
}

}  // namespace

ChoiceCost measure_choices(std::uint32_t engines, std::int32_t blocks, std::uint32_t choices) {
  ClusterTrace trace;
  const ZipfRanks ranks(trace.load.prefixes, trace.load.exponent);
  for (std::uint32_t prefix = 0; prefix < trace.load.prefixes; ++prefix)
    trace.arrivals.push_back({0, prefix});
  EngineRouter::Setup setup;
  TimePoint now = TimePoint() + kLong;
  setup.now = [&now] { return now; };
  for (std::uint32_t engine = 0; engine < engines; ++engine)
    setup.names.push_back(table(trace, blocks, engine, engines));
  const auto router = std::make_shared<EngineRouter>(std::move(setup));
  std::vector<std::uint32_t> all(engines);
  std::iota(all.begin(), all.end(), 0u);

  ClusterRandom random(1);
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint32_t i = 0; i < 256; ++i) {
    prompts.push_back(trace.prompt(ranks.draw(random)));
    for (std::size_t at = static_cast<std::size_t>(trace.load.prefix_tokens); at < prompts.back().size();
         ++at)
      prompts.back()[at] = static_cast<TokenId>(random.next() % 100'000);
  }
  const PrefixUse prefix;
  std::deque<EngineRouter::Place> open;
  std::size_t asked = 0;
  const auto choose = [&] {
    const std::vector<TokenId>& ids = prompts[asked++ % prompts.size()];
    const EngineRouter::Request request{.prompt = ids,
                                        .prompt_tokens = std::ssize(ids),
                                        .answers = 1,
                                        .answer_tokens = trace.load.answer_tokens,
                                        .prefix = &prefix};
    router->choose(request, all, open.emplace_back());
    if (open.size() > std::size_t{kOpenAtEach} * engines) open.pop_front();
  };
  for (std::uint32_t i = 0; i <= kOpenAtEach * std::min(engines, 64u); ++i) choose();

  ChoiceCost cost;
  std::int64_t begin = thread_cpu_ns();
  for (std::uint32_t i = 0; i < choices; ++i) choose();
  cost.choose_ns = static_cast<double>(thread_cpu_ns() - begin) / choices;
  constexpr int kRefreshes = 20;
  begin = thread_cpu_ns();
  for (int i = 0; i < kRefreshes; ++i) {
    now += kLong;
    choose();
  }
  cost.refresh_us = 1e-3 * static_cast<double>(thread_cpu_ns() - begin) / kRefreshes;
  return cost;
}

}  // namespace troupe::bench
