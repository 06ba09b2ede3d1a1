#include "actors/supervisor/activity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "base/counted.h"

namespace troupe::supervisor {
namespace {

constexpr Duration kWindow = std::chrono::seconds(5);
constexpr int kBarWidth = 20;

std::int64_t depth_of(const StatusPage& page, std::string_view name) {
  const auto queue = std::ranges::find(page.queues, name, &QueueRow::name);
  return queue == page.queues.end() ? 0 : queue->depth;
}

std::string rounded(double value) { return std::to_string(std::llround(value)); }

std::string percent(std::int64_t part, std::int64_t whole) {
  return rounded(100.0 * static_cast<double>(part) / static_cast<double>(whole)) + " %";
}

}  // namespace

void TokenRates::sample(TimePoint now, const TokenTotals& totals) {
  const bool restarted = !samples_.empty() && (totals.prompt < samples_.back().totals.prompt ||
                                               totals.generated < samples_.back().totals.generated);
  if (restarted) samples_.clear();
  samples_.push_back({now, totals});
  while (samples_.size() > 2 && now - samples_[1].at >= kWindow) samples_.pop_front();
}

TokenTotals::Rates TokenRates::rates() const {
  if (samples_.size() < 2) return {};
  const Sample &first = samples_.front(), &last = samples_.back();
  const double seconds = std::chrono::duration<double>(last.at - first.at).count();
  if (seconds <= 0) return {};
  return {static_cast<double>(last.totals.prompt - first.totals.prompt) / seconds,
          static_cast<double>(last.totals.generated - first.totals.generated) / seconds};
}

std::vector<std::string> loading_parts(const Loading& loading) {
  if (loading.total_bytes <= 0) return {"starting"};
  if (loading.done_bytes >= loading.total_bytes) return {"memory and warm-up"};
  const double share = static_cast<double>(loading.done_bytes) / static_cast<double>(loading.total_bytes);
  std::string bar(kBarWidth, '.');
  std::fill_n(bar.begin(), static_cast<int>(share * kBarWidth), '#');
  std::vector<std::string> parts = {"weights " + percent(loading.done_bytes, loading.total_bytes),
                                    "[" + bar + "]"};
  if (loading.seconds > 0 && loading.done_bytes > 0) {
    const double rate = static_cast<double>(loading.done_bytes) / loading.seconds;
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GB/s", rate * 1e-9);
    parts.emplace_back(text);
    parts.push_back(rounded(std::ceil(static_cast<double>(loading.total_bytes - loading.done_bytes) / rate)) +
                    " s left");
  }
  return parts;
}

std::vector<std::string> load_parts(const StatusPage& page) {
  std::vector<std::string> parts = {std::to_string(depth_of(page, "running")) + " running",
                                    std::to_string(depth_of(page, "waiting")) + " waiting",
                                    rounded(page.rates.prompt_per_s) + " prompt tokens/s",
                                    rounded(page.rates.generated_per_s) + " output tokens/s"};
  const KvBlocks& kv = page.kv_blocks;
  if (kv.total > 0) parts.push_back("KV " + percent(kv.leased, kv.total));
  const PrefixCacheTotals& prefix = page.prefix_cache;
  if (prefix.prompt_tokens > 0)
    parts.push_back("hits " + percent(prefix.cached_tokens, prefix.prompt_tokens));
  int restarts = 0;
  for (const ProcessRow& row : page.processes) restarts += row.restarts;
  parts.push_back(counted(restarts, "restart"));
  return parts;
}

bool is_busy(const StatusPage& page) {
  return depth_of(page, "running") + depth_of(page, "waiting") > 0 || page.rates.generated_per_s > 0;
}

}  // namespace troupe::supervisor
