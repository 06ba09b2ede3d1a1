#pragma once
#include <string>

namespace troupe::supervisor {

/// Tells a service manager about the process: sends `state` ("READY=1", "STOPPING=1", "STATUS=…", lines of
/// them) as a datagram to the socket that systemd names in NOTIFY_SOCKET. An empty name does nothing; nothing
/// waits or fails.
void notify_service_manager(const std::string& socket, const std::string& state);

}  // namespace troupe::supervisor
