#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace troupe {

// On Linux a thread has a nice value of its own. 10 is a tenth of the weight of 0.
void lower_thread_priority() { (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10); }

}  // namespace troupe
