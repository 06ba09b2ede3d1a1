#include "media/resize/passes_of.h"

namespace troupe::media {

const Passes kPassesAvx2 = passes_of<8>("avx2");

}  // namespace troupe::media
