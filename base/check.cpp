#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace troupe {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "troupe: broken invariant: %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace troupe
