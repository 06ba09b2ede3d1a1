#pragma once
// One child process: started by fork and exec, watched through a pidfd, waited for exactly once.
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct ChildExit {
  int code = 0;    ///< exit code, when signal is 0
  int signal = 0;  ///< that killed it
};
/// "exited with code 1", "was killed by signal 9 (Killed)".
std::string to_string(const ChildExit& exit);

/// Whether the process of a pidfd has ended, or does within `patience`.
bool has_ended(int pidfd, std::chrono::milliseconds patience = {});

class ChildProcess {
 public:
  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  /// Kills and waits for a child that still runs.
  ~ChildProcess();

  /// Starts `executable` with argv = {"troupe", words…} and this environment alone ("NAME=value";
  /// config::child_environment() makes it). The child has the given descriptors, stdout and stderr, and no
  /// others; stdin is /dev/null; its signals are the default ones, except SIGHUP and SIGPIPE, which are
  /// ignored; it has a process group of its own, so that Ctrl-C reaches the supervisor alone; and it
  /// is killed when the calling thread ends, whatever ended it. `output` becomes its stdout and stderr; -1:
  /// they are the caller's.
  static Result<ChildProcess> start(const std::string& executable, const std::vector<std::string>& words,
                                    const std::vector<int>& keep_fds, std::vector<std::string> environment,
                                    int output = -1);

  /// The same for a child that is spoken to over a socket: it gets one end of a new pair
  /// (SOCK_STREAM), as --fd=N behind the words, and no other descriptor. `socket` becomes
  /// the other end, which the child's end closes.
  static Result<ChildProcess> start_with_socket(const std::string& executable, std::vector<std::string> words,
                                                std::vector<std::string> environment, ipc::Fd& socket);

  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  /// Readable when the child has ended.
  int pidfd() const { return pidfd_.get(); }
  /// Whether it has ended, or does within `patience`.
  bool has_ended(std::chrono::milliseconds patience = {}) const {
    return supervisor::has_ended(pidfd_.get(), patience);
  }
  /// Of the processor, used so far; zero when it has gone.
  Duration processor_time() const;

  /// How it has ended, while it waits for reap(). Waits for its end.
  ChildExit look() const;

  /// No effect when it has ended already: until reap() the pid is not reused.
  void kill(int signal) const;

  /// After pidfd() became readable (else it waits). Afterwards there is no child.
  ChildExit reap();

 private:
  pid_t pid_ = 0;
  ipc::Fd pidfd_;
};

}  // namespace troupe::supervisor
