#pragma once
// The softmax's denominator of a row of logits.
#include <cmath>

#include "kernels/cpu/routines.h"

namespace troupe::kernels {

/// The log of the sum of e^logit: subtracted from a logit, it gives the log-probability. `largest`: of the
/// logits, which are finite.
inline float log_sum_exp(const Routines& r, const float* logits, int vocab, float largest) {
  return static_cast<float>(largest + std::log(r.sum_exp(logits, vocab, largest)));
}

}  // namespace troupe::kernels
