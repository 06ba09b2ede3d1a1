#include "media/resize/passes_of.h"
#include "media/resize/simd_avx512.h"

namespace troupe::media {

const Passes kPassesAvx512 = passes_of<SimdAvx512>("avx512");

}  // namespace troupe::media
