#include "actors/supervisor/say.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace troupe::supervisor {

void say(int fd, const std::string& text) {
  pollfd ready{fd, POLLOUT, 0};
  if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    // At most PIPE_BUF bytes: a pipe that is ready takes that much without blocking.
    [[maybe_unused]] const ssize_t n = write(fd, text.data(), std::min<std::size_t>(text.size(), 4000));
  }
}

}  // namespace troupe::supervisor
