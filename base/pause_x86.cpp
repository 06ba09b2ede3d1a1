#include "base/pause.h"

namespace troupe {

void pause_cpu() { __builtin_ia32_pause(); }

}  // namespace troupe
