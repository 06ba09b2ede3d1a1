#pragma once
// What a step has to move and to compute at the least, from the model's shape alone: the bound that a
// measured step is set beside.
//
// A step has two parts, the matrices and the attention over the KV cache; each takes the longer of its bytes
// at the memory's bandwidth and its operations at the arithmetic's peak, and the parts do not overlap:
//
//   decode    max(weights / bandwidth, flops / peak) + max(kv / bandwidth, attention flops / peak)
//   prefill   the same with all tokens of the prompt; the head for the last alone
//
// Of a mixture, the weights are those of the experts that `tokens` tokens touch when each draws its experts
// uniformly: E (1 - (1 - k / E)^tokens). No activations, launches or norms: a bound, not a forecast.
#include "gpu/dtype.h"
#include "model/checkpoint/spec.h"

namespace troupe::model {

/// Bytes and floating-point operations of one step.
struct StepWork {
  double weight_bytes = 0;
  double kv_bytes = 0;
  double flops = 0;  ///< of the matrices
  double attention_flops = 0;
};

struct Ceilings {
  double bytes_per_s = 0;
  double flops_per_s = 0;
};

/// Experts of one layer that so many tokens touch together; 0 without experts.
double distinct_experts(const ModelSpec& spec, double tokens);

/// `batch` sequences, each with `context` tokens before the one that runs.
StepWork decode_work(const ModelSpec& spec, DType dtype, int batch, int context);

/// One sequence's tokens [position, position + tokens), all in one step; only the last one's logits.
StepWork prefill_work(const ModelSpec& spec, DType dtype, int tokens, int position = 0);

/// Seconds that the step takes at the least.
double bound_s(const StepWork& work, const Ceilings& ceilings);

}  // namespace troupe::model
