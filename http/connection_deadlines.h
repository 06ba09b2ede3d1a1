#pragma once
// How long a connection may stay in each of its phases. A pure function of what the connection has seen.
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe::http {

/// What a connection is doing.
enum class Phase {
  idle,       ///< between two requests
  head,       ///< reading a request's head; the first one from the moment the connection is open
  body,       ///< reading its body
  waiting,    ///< the backend has the request and nothing was sent
  streaming,  ///< the answer has begun
  lingering,  ///< the last answer is written; input is read and dropped until the client closes
  closed,
};

/// What the deadlines depend on.
struct ConnectionProgress {
  Phase phase = Phase::idle;
  Duration in_phase{};              ///< time since the phase began
  Duration blocked{};               ///< time for which the socket has taken nothing; 0 when it takes bytes
  bool unsent = false;              ///< bytes of an answer are waiting
  bool input = false;               ///< bytes of a request are buffered
  std::size_t body_received = 0;    ///< in Phase::body
};

enum class Overdue {
  no,
  abort,   ///< the client does not read: cancel and close
  close,   ///< nothing is in progress: close
  refuse,  ///< answer with `status`, then close
};

struct DeadlineVerdict {
  Overdue overdue = Overdue::no;
  Status status;
};

DeadlineVerdict check_deadlines(const ConnectionProgress& progress, const config::LimitOptions& limits);

}  // namespace troupe::http
