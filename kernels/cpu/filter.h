#pragma once
// The filters min_p, top_k and top_p over integer sampling weights, and the draw. Exact; see sample.h.
#include <cstdint>

#include "base/ids.h"
#include "kernels/cpu/routines.h"
#include "kernels/sampling_weight.h"

namespace troupe::kernels {

/// The tokens that the filters keep: those with weight > threshold, and those with weight == threshold and
/// id < ties_end.
struct Kept {
  std::uint32_t threshold = 1;
  TokenId ties_end = 0;
};

/// Applies the filters to weights[0 … vocab). Keeps at least one token and none of weight 0. `working` has
/// room for vocab words.
Kept filter(const Routines& routines, const std::uint32_t* weights, int vocab, int top_k, float top_p,
            float min_p, std::uint32_t* working);

/// The first kept token, by id, at which the sum of kept weights exceeds bits / 2^32 of their total.
TokenId draw(const Routines& routines, const std::uint32_t* weights, int vocab, Kept kept,
             std::uint32_t bits);

}  // namespace troupe::kernels
