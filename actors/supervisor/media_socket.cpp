#include "actors/supervisor/media_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "media/messages.h"

namespace troupe::supervisor {

namespace {

/// More than fit a socket; the other side cannot keep this one at it by sending.
constexpr int kMostDropped = 4096;

void drop_all(int socket) {
  char byte = 0;  // the rest of a message is dropped with it, and so are its descriptors
  for (int i = 0; i < kMostDropped; ++i) {
    if (::recv(socket, &byte, sizeof byte, MSG_DONTWAIT) < 0 && errno != EINTR) return;
  }
}

}  // namespace

Result<MediaSocket> MediaSocket::make() {
  int ends[2];
  constexpr int kOn = 1;
  MediaSocket made;
  const bool there = ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
  if (there) {
    made.front_.reset(ends[0]);
    made.process_.reset(ends[1]);
  }
  if (!there || ::setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &kOn, sizeof kOn) != 0)
    return failure(Code::internal,
                   std::string("no socket to a media process can be made: ") + std::strerror(errno));
  return made;
}

void MediaSocket::process_ended(const ChildExit& exit) const {
  drop_all(process_.get());
  if (media::send_end(process_.get(), exit.signal)) return;
  drop_all(front_.get());  // nobody reads: what it has said is of no use without its end
  media::send_end(process_.get(), exit.signal);
}

void MediaSocket::front_ended() const {
  drop_all(process_.get());
  drop_all(front_.get());
}

}  // namespace troupe::supervisor
