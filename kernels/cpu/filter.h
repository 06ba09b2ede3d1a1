#pragma once
// min_p, top_k and top_p over integer sampling weights, and the draw. All exact: see sample.h.
#include <cstdint>

#include "base/ids.h"
#include "kernels/cpu/routines.h"
#include "kernels/sampling_weight.h"

namespace troupe::kernels {

/// A kept token has weight > border, or weight == border and id < border_end.
struct Kept {
  std::uint32_t border = 1;
  TokenId border_end = 0;
};

/// What the filters leave of weights [0, vocab). Weights of 0 never stay. At least one token does.
/// `working` has room for vocab words.
Kept filter(const Routines& routines, const std::uint32_t* weights, int vocab, int top_k, float top_p,
            float min_p, std::uint32_t* working);

/// The first kept token whose cumulative weight exceeds bits / 2^32 of the kept sum.
TokenId draw(const Routines& routines, const std::uint32_t* weights, int vocab, Kept kept,
             std::uint32_t bits);

}  // namespace troupe::kernels
