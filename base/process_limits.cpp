#include "base/process_limits.h"

#include <sys/resource.h>

namespace troupe {

void limit_process(std::uint64_t private_bytes) {
  const rlimit data{private_bytes, private_bytes}, core{0, 0};
  setrlimit(RLIMIT_DATA, &data);
  setrlimit(RLIMIT_CORE, &core);
}

}  // namespace troupe
