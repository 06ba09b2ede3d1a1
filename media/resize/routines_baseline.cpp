#include "media/resize/passes_of.h"
#include "media/resize/simd_baseline.h"

namespace troupe::media {

const Passes kPassesBaseline = passes_of<SimdBaseline>("baseline");

}  // namespace troupe::media
