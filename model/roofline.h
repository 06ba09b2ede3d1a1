#pragma once
// The roofline of a step: a lower bound of its time, from the model's shape alone. Measured steps are set
// beside it.
//
// A step has two parts, the matrices and the attention over the KV cache. Each part takes the longer of its
// memory time and its arithmetic time, and the parts do not overlap:
//
//   decode    max(weights / bandwidth, flops / peak) + max(kv / bandwidth, attention flops / peak)
//   prefill   the same with all tokens of the prompt; for the last token only lm_head and what the last layer
//             does but for queries, keys and values
//
// In a mixture of experts, the weights read are those of the experts that the step's tokens use when each
// token picks k of E experts uniformly: E (1 - (1 - k / E)^tokens). Activations, launches and norms are left
// out, so this is a bound, not a forecast. For a rank's part of a model (ranks/part.h) it is that of the rank
// alone, without exchanges.
#include "model/checkpoint/spec.h"
#include "model/weight_formats.h"

namespace troupe::model {

/// Bytes and floating-point operations of one step.
struct StepWork {
  double weight_bytes = 0;
  double kv_bytes = 0;
  double flops = 0;  ///< of the matrix products
  double attention_flops = 0;
};

/// What the hardware can do, as measured.
struct Ceilings {
  double bytes_per_s = 0;
  double flops_per_s = 0;
};

/// Distinct experts of one layer that `tokens` tokens use together, expected value; 0 without experts.
double distinct_experts(const ModelSpec& spec, double tokens);

/// One decode step: `batch` sequences, each with `context` tokens before its current one.
StepWork decode_work(const ModelSpec& spec, const WeightFormats& formats, int batch, int context);

/// One prefill step: one sequence's tokens [position, position + tokens); logits for the last token only.
StepWork prefill_work(const ModelSpec& spec, const WeightFormats& formats, int tokens, int position = 0);

/// Lower bound of the step's time, in seconds.
double bound_s(const StepWork& work, const Ceilings& ceilings);

}  // namespace troupe::model
