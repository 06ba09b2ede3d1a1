// Sockets of connections and processes that are started meanwhile.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "http/server/server.h"
#include "http/support.h"

namespace troupe::http::test {
namespace {

// A process that was forked without closing what it inherits: the client must learn of the end nevertheless.
TEST_F(ServerTest, AnIdleConnectionEndsEvenIfAnotherProcessHoldsADuplicate) {
  setup.limits.idle_timeout_s = 1;
  start();
  RawClient client(port);
  client.get("/health");
  EXPECT_EQ(client.receive().status, 200);
  const pid_t holder = fork();
  if (holder == 0) {
    pause();
    _exit(0);
  }
  EXPECT_TRUE(client.closed());
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
}

TEST_F(ServerTest, ConnectionsAreClosedByExec) {
  start();
  RawClient client(port);
  client.get("/health");
  EXPECT_EQ(client.receive().status, 200);
  int sockets = 0;
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in local{};
    socklen_t size = sizeof local;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0 || local.sin_family != AF_INET)
      continue;
    sockaddr_in peer{};
    size = sizeof peer;
    if (ntohs(local.sin_port) != port || ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0)
      continue;
    ++sockets;
    EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_EQ(sockets, 1);
}

}  // namespace
}  // namespace troupe::http::test
