#pragma once
// How a process ends that can get no more memory or threads.
#include <string>

namespace troupe {

/// One sentence on what is used up, with the limits of this process that may be the reason (ulimit -v, -u).
/// `what` is "memory" or "threads".
std::string exhaustion_message(const char* what);

/// A remark on the limit of this process's address space, for errors whose cause it may be; empty without
/// one.
std::string address_space_remark();

/// From now on an exception that nobody catches ends the process with such a sentence on standard error and
/// exit code 1, if it tells of a lack of memory or threads; every other one aborts, as without this call.
void explain_exhaustion();

}  // namespace troupe
