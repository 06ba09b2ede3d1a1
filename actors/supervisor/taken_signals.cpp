#include "actors/supervisor/taken_signals.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>

namespace troupe::supervisor {

TakenSignals TakenSignals::take() {
  TakenSignals taken;
  signal(SIGPIPE, SIG_IGN);
  taken.from_terminal = ipc::Fd(open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC)).valid();
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  taken.fd.reset(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  return taken;
}

}  // namespace troupe::supervisor
