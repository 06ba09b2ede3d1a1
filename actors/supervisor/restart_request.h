#pragma once
// A restart of one child that somebody has asked for (local_requests.h): while the others go on, without
// counting as a death, with the program that is installed now.
#include <string>

#include "actors/supervisor/children.h"
#include "actors/supervisor/local_requests.h"
#include "base/clock.h"
#include "base/status.h"

namespace troupe::supervisor {

struct RestartTerms {
  Duration drain{};       ///< how long a front may finish its requests
  Duration slack{};       ///< how much later a front is killed
  Duration grace{};       ///< how long the others may take to end
  std::string installed;  ///< the program to run, if it can be executed
  std::string running;    ///< the server's
};

/// Asks the child to end. Not ok, and nothing has changed: the caller's program speaks other versions, there
/// is no such child, it does not run, or it is one of several ranks and the installed program is another one.
Status begin_restart(Children& children, const LocalRequest& request, const RestartTerms& terms,
                     TimePoint now);

/// The answer to the caller, one line.
std::string restart_answer(const Status& status);

}  // namespace troupe::supervisor
