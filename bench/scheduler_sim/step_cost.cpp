#include "bench/scheduler_sim/step_cost.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::bench {
namespace {

/// Tokens of a step, and milliseconds in the layers: measured steps (decode at 2,048 tokens of context,
/// prompts from position 0) less what `seconds` adds for attention.
constexpr std::pair<double, double> kLayersMs[] = {
    {1, 2.28},    {2, 3.21},   {4, 4.65},   {8, 6.84},    {16, 9.27},   {32, 10.93},   {64, 11.82},
    {128, 12.77}, {256, 13.6}, {512, 15.5}, {1024, 20.0}, {2048, 33.1}, {8192, 105.7},
};

}  // namespace

double StepCost::layers_s(std::int64_t tokens) {
  const auto x = static_cast<double>(std::max<std::int64_t>(1, tokens));
  auto after = std::ranges::find_if(kLayersMs, [x](const auto& point) { return x <= point.first; });
  if (after == std::begin(kLayersMs)) return 1e-3 * after->second;
  if (after == std::end(kLayersMs)) --after;  // longer steps go on with the last slope
  const auto before = std::prev(after);
  const double slope = (after->second - before->second) / (after->first - before->first);
  return 1e-3 * (before->second + slope * (x - before->first));
}

double StepCost::seconds(std::span<const wire::PlanRow> rows) const {
  std::int64_t tokens = 0;
  double attention = 0;
  for (const wire::PlanRow& row : rows) {
    tokens += row.tokens;
    const double n = row.tokens;
    attention += row.tokens == 1 ? context_s * (row.position + 1) : pair_s * n * (row.position + n / 2);
  }
  return tokens == 0 ? 0 : layers_s(tokens) + attention;
}

double StepCost::alone_s(std::int32_t prompt, std::int32_t output, std::int32_t budget) const {
  double total = 0;
  for (std::int32_t at = 0; at < prompt; at += budget) {
    const wire::PlanRow row{{}, at, std::min(budget, prompt - at), 0, 0};
    total += seconds({&row, 1});
  }
  const wire::PlanRow middle{{}, prompt + output / 2, 1, 0, 0};
  return total + (output - 1) * seconds({&middle, 1});
}

}  // namespace troupe::bench
