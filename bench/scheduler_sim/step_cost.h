#pragma once
// How long a step takes on the device, from its rows: a model of the measured figures of docs/performance.md.
#include <cstdint>
#include <span>

#include "ipc/wire.h"

namespace troupe::bench {

/// ERNIE-4.5-21B-A3B in BF16 on one H200. A step's time is the sum of what its tokens cost in the layers
/// (read from measured steps, between them linear), of the KV that decoding rows read, and of the products of
/// prompt rows' attention. Within 5 % of each measured step it was made from (tests/scheduler_sim).
struct StepCost {
  double context_s = 13.0e-9;  ///< per token of context of a row that runs one token
  double pair_s = 4.55e-10;    ///< per pair of a query and a key of other rows: 286,720 flop at 630 TFLOP/s

  double seconds(std::span<const wire::PlanRow> rows) const;

  /// What `tokens` tokens of a step cost in the layers.
  static double layers_s(std::int64_t tokens);

  /// A request alone on the device: its prompt in steps of `budget` tokens, then one token a step.
  double alone_s(std::int32_t prompt_tokens, std::int32_t output_tokens, std::int32_t budget) const;
};

}  // namespace troupe::bench
