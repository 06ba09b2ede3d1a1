#pragma once
// The interface between the HTTP threads and what answers requests. The server knows a Backend and nothing
// behind it; the backend knows exchanges and outputs and no socket. A request enters as a Call on an I/O
// thread; answers come back as batches of Outputs through Server::deliver (http/server/server.h) from any
// thread.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/owned_fd.h"
#include "base/status.h"
#include "http/api/request.h"
#include "http/server/body_sink.h"

namespace troupe::http {

/// Names one request on one connection of one I/O thread. An id is never used twice while a server runs, so
/// an output that arrives late is recognised and dropped.
struct Exchange {
  std::uint32_t io = 0;
  std::uint64_t id = 0;
  bool operator==(const Exchange&) const = default;
};

struct Call {
  Exchange exchange;
  std::string
      request_id;  ///< the client's x-request-id when it is well-formed, else a new one; for every log line
  TimePoint received{};  ///< when the last byte of the request had been read
  RequestBody body;
  std::size_t body_bytes = 0;               ///< of the request as it was sent
  std::size_t model = 0;                    ///< index of the model that is asked
  std::string client;                       ///< who asks, as limits count them: client_identity()
  std::vector<std::string> ignored_fields;  ///< of Parsed: what has no effect
};

/// A body that is read from a file while it is sent.
struct FileBody {
  OwnedFd fd;
  std::uint64_t bytes = 0;  ///< that are sent, from the file's beginning
};

/// What has to be written for one exchange. Allowed sequences: one `whole`; or `head`, any number of `data`,
/// one `end`. `head` may be left out: the server then sends the default one before the first `data`.
struct Output {
  enum class Kind : std::uint8_t {
    whole,  ///< a complete answer: status, content type, headers and body
    head,   ///< status line and headers of an event stream (always 200)
    data,   ///< bytes of whole SSE frames ("data: …\n\n"), one or several
    end,    ///< the stream is complete; the last frame ([DONE]) was in `data`
  };
  enum class Content : std::uint8_t { json, text, metrics, html, script, style, svg, events, lines };

  std::uint64_t exchange_id = 0;
  Kind kind = Kind::data;
  Content content = Content::json;                           ///< of a `whole`
  std::uint16_t status = 200;                                ///< of a `whole`
  bool failed = false;                                       ///< of an `end`: an error was among the events
  std::string body;                                          ///< of `whole` and `data`
  std::vector<std::string> more = {};                        ///< of a large `whole`: what follows `body`
  std::vector<std::pair<std::string, std::string>> headers;  ///< extra ones, of `whole` and `head`
  std::shared_ptr<const FileBody> file = {};                 ///< of a `whole`: instead of `body`
};

/// What the health routes say. Generation requests get through to submit() in `ready` and in `restarting`.
struct Health {
  enum class State : std::uint8_t { loading, ready, draining, restarting };
  bool live = true;  ///< every part of this process works
  State state = State::loading;
  std::string_view silent{};  ///< a part of the server, or a worker, that stands still; empty: none
  bool ready() const { return state == State::ready && silent.empty(); }
};

constexpr std::string_view to_string(Health::State state) {
  switch (state) {
    case Health::State::loading: return "loading";
    case Health::State::ready: return "ready";
    case Health::State::draining: return "draining";
    case Health::State::restarting: return "restarting";
  }
  return "unknown";
}

struct Route;

/// One HTTP request that was answered, or whose client left, for the access log and counters.
struct AccessRecord {
  std::string_view request_id;
  std::string_view method;
  std::string_view target;       ///< path only, cut to 256 bytes; no query, no prompt
  const Route* route = nullptr;  ///< that has the path, served or not; null: none
  std::uint16_t status = 0;      ///< 0: nothing could be sent; 499: the client left first
  bool failed = false;           ///< a stream, so 200, with an error among its events
  std::uint64_t bytes = 0;       ///< of the answer's body as handed to the kernel or buffered
  Duration duration{};           ///< from the first byte of the request to the end of the answer
};

/// What an exception in an HTTP thread has ended.
enum class FaultPlace : std::uint8_t {
  accepting,   ///< a connection that was new
  connection,  ///< a connection
  delivery,    ///< nothing: outputs wait for the thread's next round
  deadlines,   ///< one round of looking at deadlines
  parsing,     ///< the connection whose body was parsed
  loop,        ///< a handler of an event loop
};
inline constexpr std::size_t kFaultPlaces = 6;

constexpr std::string_view to_string(FaultPlace place) {
  switch (place) {
    case FaultPlace::accepting: return "accepting";
    case FaultPlace::connection: return "connection";
    case FaultPlace::delivery: return "delivery";
    case FaultPlace::deadlines: return "deadlines";
    case FaultPlace::parsing: return "parsing";
    case FaultPlace::loop: return "loop";
  }
  return "unknown";
}

/// Implemented by the gateway. Every call comes from an I/O thread, concurrently from several of them, and
/// must not block. None comes after Server::stop() has returned.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Accepts a request. Exactly one complete answer must follow through Server::deliver, unless cancel()
  /// comes first.
  virtual void submit(Call&& call) = 0;
  /// Takes the body of a file that a client begins to send; the Call that follows brings it as
  /// StoreRequest::upload. Not ok: the answer, and the body is not read.
  virtual Result<std::unique_ptr<BodySink>> receive(std::string_view /*content_type*/) {
    return Status{Code::unsupported, "This server keeps no files (--batch-dir is not set)", {}, "no_batches"};
  }
  /// The client left, or was disconnected, before its answer ended. Outputs for it are dropped from now on.
  virtual void cancel(Exchange exchange) = 0;
  /// A lock-free snapshot.
  virtual Health health() const = 0;
  /// Called once for each request whose head was begun, also for those that the server answered itself.
  virtual void answered(const AccessRecord&) {}
  /// A connection, or a request that a trusted proxy passed on, was beyond a limit; `why` names the limit.
  virtual void turned_away(std::string_view /*address*/, const Status& /*why*/) {}
  /// A connection ended before its TLS began.
  virtual void handshake_failed(std::string_view /*address*/, std::string_view /*why*/) {}
  /// An exception was caught; `faults`: how many since the last call that returned. Any thread of the server.
  virtual void faulted(FaultPlace /*place*/, std::string_view /*what*/, std::uint64_t /*faults*/) {}
};

}  // namespace troupe::http
