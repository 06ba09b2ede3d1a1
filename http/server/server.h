#pragma once
// The HTTP/1.1 front end: sockets in, Calls to a Backend; batches of Outputs back, bytes out. A few I/O
// threads, each with its own event loop and its own connections; a connection never changes threads and
// they share only the counters of open connections. The listening socket is inherited, already bound and
// listening; the supervisor keeps it open when this process ends.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/pulse.h"
#include "base/status.h"
#include "config/options.h"
#include "http/api/openai_request.h"
#include "http/server/backend.h"

namespace troupe::http {

/// Threads that parse bodies, by index: their names.
inline constexpr std::size_t kParsers = 2;
inline constexpr std::array<const char*, kParsers> kParserNames{"http-parser", "http-parser-big"};

struct ServerSetup {
  config::HttpOptions http;
  config::LimitOptions limits;
  ModelFacts model;
  int listen_fd = -1;   ///< bound and listening; the server owns this descriptor from start() on
  int metrics_fd = -1;  ///< a second listener for /metrics, /config-info and health, without keys and without
                        ///< TLS; -1: none, then the first one serves those pages too, behind the key
  std::string owner_salt{};               ///< of ApiKeys::owner()
  std::vector<ModelFacts> more_models{};  ///< behind `model`, which answers requests that name none
};

class Server {
 public:
  /// `backend` outlives the server. No thread runs before start().
  Server(ServerSetup setup, Backend& backend);
  ~Server();  ///< stops

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Starts the I/O threads and accepts.
  /// Not ok when a listening socket, the certificate or the key cannot be used.
  Status start();

  /// Takes keys, certificate and private key from `http`: API keys count for every request from now on, the
  /// certificate for new connections. Not ok when they cannot be used; nothing has changed then. Any thread,
  /// between start() and stop().
  Status renew(const config::HttpOptions& http);

  /// How many I/O threads a server with these options has.
  static std::uint32_t io_threads_of(const config::HttpOptions& http);
  /// How many I/O threads there are: Exchange::io is below it. Fixed at construction.
  std::uint32_t io_threads() const;

  /// Hands outputs to the I/O thread `io`, in order. Any thread; never blocks on a socket. One call wakes
  /// that thread at most once, so pass everything that one step produced together. Outputs whose exchange is
  /// closed are dropped. After stop() it does nothing.
  void deliver(std::uint32_t io, std::vector<Output>&& outputs);

  /// Asks the I/O thread `io` to beat the pulse when it gets round to it. Any thread; does not wait.
  void ask_for_beat(std::uint32_t io, std::shared_ptr<Pulse> pulse);

  /// The sign of life of a thread that parses bodies, the one for middling or the one for large ones: rises
  /// with every body, and is 0 while there is none. Any thread.
  std::uint64_t parser_beats(std::size_t parser) const;

  /// From now on: no keep-alive, idle connections are closed, new generation requests get 503 "draining";
  /// running ones finish. Health is still answered. Returns at once.
  void drain();

  /// Requests handed to the backend whose answer has not been sent to its end. 0 after drain(): all done.
  std::size_t active() const;
  /// Exceptions in the HTTP threads, most likely for want of memory; each has ended one connection at most.
  std::uint64_t faults() const;
  /// Open client sockets.
  std::size_t connections() const;

  /// Closes everything, cancelling what is still active, and joins the threads. Idempotent.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::http
