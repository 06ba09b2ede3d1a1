#pragma once
// Starts a program in a child process. The child has the descriptors and the environment that it is given,
// and no others: a socket that a child holds would keep a connection open that its owner has closed, and an
// environment may hold keys.
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace troupe {

struct SpawnOrder {
  std::string executable;                ///< a path; PATH is not searched
  std::vector<std::string> arguments;    ///< argv, the program's name first
  std::vector<std::string> environment;  ///< "NAME=value"; the child has these alone
  std::vector<int> keep;  ///< descriptors that the child has under the same numbers, besides 0, 1 and 2
  int input = -1;         ///< becomes the child's standard input; -1: /dev/null
  int output = -1;        ///< becomes its standard output and error; -1: the caller's
  int death_signal = 0;   ///< sent to the child when the calling thread ends; 0: none
  bool own_group =
      false;  ///< in a process group of its own, which Ctrl-C in the caller's terminal does not reach
  std::vector<int> ignored_signals;  ///< all others have their default action in the child
};

/// The child's pid; the caller waits for it. Code::internal when no process can be started. A child that
/// cannot run the executable exits with 127.
Result<pid_t> spawn(const SpawnOrder& order);

/// Closes every descriptor of this process from 3 on but those in `kept`, which is sorted. Async-signal-safe,
/// for a process that has just been forked.
void close_all_but(std::span<const int> kept);

/// The same for a kernel without close_range(2): closes what /proc/self/fd lists from `first` to `last`.
void close_listed(unsigned first, unsigned last);

}  // namespace troupe
