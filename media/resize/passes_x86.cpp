#include "media/resize/passes.h"

namespace troupe::media {

const Passes& passes() {
  static const Passes& chosen = [] () -> const Passes& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      return kPassesAvx512;
    return __builtin_cpu_supports("avx2") ? kPassesAvx2 : kPassesBaseline;
  }();
  return chosen;
}

}  // namespace troupe::media
