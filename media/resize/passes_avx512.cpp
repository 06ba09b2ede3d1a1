#include "media/resize/passes_of.h"

namespace troupe::media {

const Passes kPassesAvx512 = passes_of<16>("avx512");

}  // namespace troupe::media
