#include "model/ranks/sum_times.h"

namespace troupe::model {
namespace {

/// What a measurement may be wrong by: between equals the one step is taken, which waits once.
constexpr double kClearlyFaster = 0.95;

}  // namespace

std::size_t two_steps_from(std::span<const SumTimes> times) {
  std::size_t from = kernels::kNeverInTwoSteps;
  for (std::size_t i = times.size(); i-- > 0;) {
    if (times[i].two_steps > kClearlyFaster * times[i].one_step) break;
    from = times[i].numbers;
  }
  return from;
}

}  // namespace troupe::model
