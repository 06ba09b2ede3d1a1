#include "media/resize/passes_of.h"
#include "media/resize/simd_avx2.h"

namespace troupe::media {

const Passes kPassesAvx2 = passes_of<SimdAvx2>("avx2");

}  // namespace troupe::media
