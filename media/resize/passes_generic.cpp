#include "media/resize/passes.h"

namespace troupe::media {

const Passes& passes() { return kPassesBaseline; }

}  // namespace troupe::media
