#pragma once
// What a process of the same user asks the supervisor, at the unix socket of its HTTP port or of an
// engine-worker-queue port: one line, answered by one line.
//
//   status                               the status page, as JSON
//   restart NAME WIRE MESSAGES           replaces the child NAME; the numbers are the versions of the wire
//   format and of
//                                        the link's messages that the caller was built with: those of the
//                                        program that will run. Answered by {"ok":true} or {"error":"…"}
//   join                                 a decode instance, with one end of a control channel (control.h)
//                                        attached; answered there
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct LocalRequest {
  enum class Kind { status, restart, join };
  Kind kind = Kind::status;
  std::string child;  ///< of a restart
  std::uint32_t wire = 0;
  std::uint32_t messages = 0;
};

/// A request that has come.
struct ReceivedRequest {
  LocalRequest request;
  ipc::Fd client;
  ipc::Fd attached;  ///< the descriptor that came with it: valid for a join, and for no other
};

/// invalid_argument for a line that is no request.
Result<LocalRequest> parse_local_request(const std::string& line);
std::string to_line(const LocalRequest& request);

/// Connections whose request has not come yet. They are few, and wait for a second at most.
class LocalRequests {
 public:
  static constexpr std::size_t kMost = 32;
  static constexpr Duration kPatience = std::chrono::seconds(1);
  static constexpr std::size_t kLongest = 256;  ///< bytes of a line

  /// Refused by closing it when there are kMost already.
  void add(ipc::Fd client, TimePoint now);
  /// Their descriptors, to be polled.
  std::vector<int> descriptors() const;
  /// Reads what has come on this descriptor. The request and its connection, when the line is complete; a
  /// connection that sends no request is closed.
  std::optional<ReceivedRequest> read(int fd);
  /// Closes those that have waited for too long.
  void expire(TimePoint now);
  std::optional<TimePoint> deadline() const;

 private:
  struct Waiting {
    ipc::Fd client;
    TimePoint until;
    std::string text;
    ipc::Fd attached;
  };
  std::vector<Waiting> waiting_;
};

/// Sends one line and closes the connection when it goes out of scope. A client that does not read gets a
/// part of it.
void answer(const ipc::Fd& client, const std::string& line);

/// Sends a request to the instance that has `port` and returns its answer, without the end of the line.
/// Errors: not_found when none has it, timeout.
Result<std::string> ask_supervisor(const std::string& runtime_dir, int port, const LocalRequest& request,
                                   Duration patience);

}  // namespace troupe::supervisor
