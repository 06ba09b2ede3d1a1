#include "media/resize/passes.h"

namespace troupe::media {

std::span<const Passes* const> usable_passes() {
  static constexpr const Passes* kAll[] = {&kPassesBaseline};
  return kAll;
}

}  // namespace troupe::media
