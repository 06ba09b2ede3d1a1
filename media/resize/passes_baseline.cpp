#include "media/resize/passes_of.h"

namespace troupe::media {

const Passes kPassesBaseline = passes_of<4>("baseline");

}  // namespace troupe::media
