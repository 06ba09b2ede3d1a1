#pragma once
#include "base/owned_fd.h"

namespace troupe::ipc {

using Fd = OwnedFd;

}  // namespace troupe::ipc
