#pragma once
// From which size on a sum over ranks goes in two steps (kernels/exchange.h), from times of both ways.
#include <cstddef>
#include <span>

#include "kernels/exchange.h"

namespace troupe::model {

/// Numbers of the sums that are timed: below the first the second step costs more than it saves, above the
/// last the bytes alone decide.
inline constexpr std::size_t kTimedSums[] = {
    std::size_t{16} << 10,  std::size_t{32} << 10,  std::size_t{64} << 10, std::size_t{128} << 10,
    std::size_t{256} << 10, std::size_t{512} << 10, std::size_t{1} << 20};

/// Of one sum, in the same unit each.
struct SumTimes {
  std::size_t numbers = 0;
  double one_step = 0;
  double two_steps = 0;
};

/// The first of the sizes, which rise, from which on two steps take at most 0.95 of one step's time at every
/// size; kernels::kNeverInTwoSteps if they do not at the last.
std::size_t two_steps_from(std::span<const SumTimes> times);

}  // namespace troupe::model
