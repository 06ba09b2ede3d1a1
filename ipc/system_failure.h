#pragma once
// Failures of system calls as Status.
#include <cerrno>
#include <cstring>
#include <string>

#include "base/status.h"

namespace troupe::ipc {

/// "what: text of errno". Call it before anything else can change errno.
inline Status system_failure(const std::string& what) {
  return failure(Code::internal, what + ": " + std::strerror(errno));
}

}  // namespace troupe::ipc
