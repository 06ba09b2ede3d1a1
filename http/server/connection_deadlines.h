#pragma once
// How long a connection may stay in each of its phases. A pure function of what the connection has seen.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

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
  Duration in_phase{};   ///< time since the phase began
  Duration blocked{};    ///< time for which the socket has taken nothing; 0 when it takes bytes
  bool unsent = false;   ///< bytes of an answer are waiting
  bool input = false;    ///< bytes of a request are buffered
  bool parsing = false;  ///< while waiting: the body is parsed on another thread
  std::optional<std::uint64_t> received_lately = {};  ///< of a body, within the last body_timeout_s
  std::optional<std::uint64_t> taken_lately = {};  ///< of an answer, while more than its buffer waits, within
                                                   ///< the last kCatchUpTime of a stream or write_timeout_s
};

/// A client whose stream has more waiting than its buffer holds may lag for so long.
inline constexpr auto kCatchUpTime = std::chrono::seconds(2);

/// How many bytes have moved within a sliding window, from notes of their total.
class Pace {
 public:
  /// `total` bytes have moved until `now`. Returns how many of them within the last `window`, to an eighth of
  /// it; nothing while the notes reach less far back.
  std::optional<std::uint64_t> note(TimePoint now, std::uint64_t total, Duration window);
  void forget() { count_ = 0; }

 private:
  struct Note {
    TimePoint time;
    std::uint64_t total;
  };
  std::array<Note, 10> notes_;  // a ring; the oldest is number count_ - size
  std::size_t count_ = 0;
};

enum class Overdue {
  no,
  abort,   ///< the client does not read: cancel and close
  cut,     ///< the client reads too slowly: cancel, tell it, close
  close,   ///< nothing is in progress: close
  refuse,  ///< answer with `status`, then close
};

struct DeadlineVerdict {
  Overdue overdue = Overdue::no;
  Status status;
};

/// How long a large body may take to be parsed once it is read. A legal one takes less than a second of the
/// processor for each 8 MiB; the thread that parses has low priority.
Duration parse_time(const config::LimitOptions& limits);

DeadlineVerdict check_deadlines(const ConnectionProgress& progress, const config::LimitOptions& limits);

}  // namespace troupe::http
