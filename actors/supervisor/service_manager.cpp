#include "actors/supervisor/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>

#include "ipc/fd.h"

namespace troupe::supervisor {

void notify_service_manager(const std::string& socket, const std::string& state) {
  sockaddr_un address{};
  if (socket.size() < 2 || socket.size() >= sizeof address.sun_path || (socket[0] != '/' && socket[0] != '@'))
    return;
  address.sun_family = AF_UNIX;
  socket.copy(address.sun_path, socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const ipc::Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  [[maybe_unused]] const ssize_t n =
      ::sendto(fd.get(), state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace troupe::supervisor
