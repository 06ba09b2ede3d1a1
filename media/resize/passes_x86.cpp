#include "media/resize/passes.h"

namespace troupe::media {

std::span<const Passes* const> usable_passes() {
  static constexpr const Passes* kAll[] = {&kPassesBaseline, &kPassesAvx2, &kPassesAvx512};
  static const std::size_t count = [] {
    if (!__builtin_cpu_supports("avx2")) return 1;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return avx512 ? 3 : 2;
  }();
  return std::span(kAll).first(count);
}

}  // namespace troupe::media
