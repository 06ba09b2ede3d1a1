#pragma once
// How long a step of more ranks would take, from one that was measured with fewer.
//
//   step(R) = bound(R) + exchanges(R) + rest
//
// bound      of model/roofline.h, of a rank's part, at the rate that a copy reaches on the card
// exchanges  two sums of a layer and one of the embedding. One takes as long as between two GPUs: a time for
//            its beginning, and a rate. In one step every rank writes all numbers to all others, so they
//            count once for each of them; in two steps, which begin twice, its share of them
//            (kernels/exchange.h). The faster way counts.
// rest       what the measured step takes beyond its own bound and exchanges: gaps between kernels, and what
//            kernels miss of the bound. It is taken to stay the same, so for many ranks this says too much
//            rather than too little.
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/documented/measured_speeds.h"
#include "model/roofline.h"

namespace troupe::model {

/// A step in which each of `sequences` decodes one token behind kMeasuredContext tokens. Times in ms.
struct RankStep {
  int ranks = 1;
  int sequences = 1;
  std::uint64_t weight_bytes = 0;  ///< that the rank reads in the step
  std::uint64_t kv_bytes = 0;      ///< likewise
  double bound = 0;
  double exchanges = 0;
  double rest = 0;
  const MeasuredStep* measured = nullptr;  ///< null: never measured

  double estimate() const { return bound + exchanges + rest; }
};

inline constexpr int kMeasuredContext = 2048;

/// Between GPUs of the kind that was measured, in ms: one sum of `numbers` floats, of so many ranks.
double exchange_ms(int ranks, double numbers);

/// For 1, 2, 4 and 8 ranks that divide the model, from the measured step of the fewest of them on; empty if
/// none of that shape, quantisation, card and number of sequences was measured. `ceilings`: of the card's
/// data sheet.
std::vector<RankStep> rank_steps(const ModelSpec& spec, const WeightFormats& formats, std::string_view shape,
                                 std::string_view quantization, std::string_view card,
                                 const Ceilings& ceilings, int sequences);

/// Numbers of sequences for which rank_steps() has something to say, in order.
std::vector<int> measured_sequences(std::string_view shape, std::string_view quantization,
                                    std::string_view card);

}  // namespace troupe::model
