#include "model/documented/rank_steps.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "model/ranks/part.h"

namespace troupe::model {
namespace {

/// Of two H200s (docs/performance.md, "Ranks on GPUs"): 3.7 µs for one row of 2,560 numbers, 9.5 for 128.
constexpr double kExchangeMs = 3.7e-3, kNumberMs = 17.5e-9;
/// A copy on an H200 reaches 4.3 of 4.8 TB/s, on an H100 3.0 of 3.35.
constexpr double kReachedShare = 0.9;
constexpr int kRanks[] = {1, 2, 4, 8};

double ms_of(const MeasuredStep& step) { return std::strtod(std::string(step.ms).c_str(), nullptr); }

}  // namespace

double exchange_ms(int ranks, double numbers) {
  if (ranks == 1) return 0;
  const double one_step = kExchangeMs + numbers * kNumberMs * (ranks - 1);
  const double two_steps = 2 * (kExchangeMs + numbers / ranks * kNumberMs * (ranks - 1));
  return std::min(one_step, two_steps);
}

std::vector<RankStep> rank_steps(const ModelSpec& spec, const WeightFormats& formats, std::string_view shape,
                                 std::string_view quantization, std::string_view card,
                                 const Ceilings& ceilings, int sequences) {
  const Ceilings reached{ceilings.bytes_per_s * kReachedShare, ceilings.flops_per_s};
  std::vector<RankStep> steps;
  for (const int ranks : kRanks) {
    const Result<ModelSpec> part = part_of(spec, {0, ranks, false});
    const MeasuredStep* const measured = find_measured(shape, quantization, card, ranks, sequences);
    if (!part || (steps.empty() && measured == nullptr)) continue;
    const StepWork work = decode_work(*part, formats, sequences, kMeasuredContext);
    RankStep step{.ranks = ranks,
                  .sequences = sequences,
                  .weight_bytes = static_cast<std::uint64_t>(work.weight_bytes),
                  .kv_bytes = static_cast<std::uint64_t>(work.kv_bytes),
                  .bound = bound_s(work, reached) * 1e3,
                  .measured = measured};
    const double numbers = static_cast<double>(sequences) * spec.hidden;
    step.exchanges = (2 * spec.layers + 1) * exchange_ms(ranks, numbers);
    step.rest = steps.empty() ? ms_of(*measured) - step.bound - step.exchanges : steps.front().rest;
    steps.push_back(step);
  }
  return steps;
}

std::vector<int> measured_sequences(std::string_view shape, std::string_view quantization,
                                    std::string_view card) {
  std::set<int> found;
  for (const MeasuredStep& step : measured_steps()) {
    if (step.shape == shape && step.quantization == quantization && step.card == card)
      found.insert(step.sequences);
  }
  return {found.begin(), found.end()};
}

}  // namespace troupe::model
