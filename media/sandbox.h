#pragma once
// What a process that decodes pictures may still do. A fault in a decoder that a client's file exploits must
// not reach files, the network, other processes or their memory.
#include "base/status.h"

namespace troupe::media {

/// Limits the calling process for good; called before it has a second thread and before it reads what clients
/// sent. Memory: 2 GiB more than it has. No core file, no descriptors above a handful; in user and network
/// namespaces of its own where the kernel grants them. Afterwards a system call that is not in the list of
/// docs/media.md ends the process with SIGSYS. `unsupported` when the kernel takes no such list; the message
/// says why. Limits that were set before it failed stay.
Status enter_sandbox();

/// The limits of memory and core files alone.
void limit_memory();

/// Those of root, and of the owner of a user namespace: with them a process could tell another's pid as its
/// own.
void drop_capabilities();

}  // namespace troupe::media
