#pragma once
// The connection of a client to its server, on Beast and Asio: requests out, their answers in, over TLS or
// not. `Client` waits for each operation; the load generator runs many connections on one thread. Private to
// those two.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/server/tls_session.h"

namespace troupe::http {

struct ServerAddress {
  std::string host;  ///< a name or an address, without brackets; what the certificate has to be made out to
  int port = 0;
  TlsContext tls;  ///< of make_client_tls(); null: plain HTTP

  std::string text() const { return host + ":" + std::to_string(port); }
};

struct ClientRequest {
  std::string method;
  std::string target;
  std::string body;     ///< of content_type
  std::string api_key;  ///< sent as a bearer key when not empty
  bool keep_alive = false;
  std::string content_type = "application/json";
};

/// One operation at a time, on one thread. An operation calls `done` from the io_context, never before it
/// returns; `done` may destroy the connection. Errors: unavailable when the connection breaks, unauthorized
/// when TLS is not agreed on, internal for an answer that is not HTTP.
class ClientConnection {
 public:
  using Places = boost::asio::ip::tcp::resolver::results_type;
  using Done = std::function<void(const Status&)>;
  using BodySink = std::function<void(std::string_view bytes)>;

  ClientConnection(boost::asio::io_context& context, ServerAddress server);
  /// The server is told at once, even if another process holds a duplicate of the descriptor. An operation
  /// under way is not reported any more.
  ~ClientConnection();

  /// Connects to the first of `places` that accepts, and agrees on TLS.
  void connect(const Places& places, Done done);
  /// Sends a request. `sink` gets the body of its answer, without framing, while read() runs.
  void send(ClientRequest request, BodySink sink, Done done);
  /// Reads at least one byte more of the answer. Not to be called when answered().
  void read(Done done);
  /// Ends the operation under way, which reports an error.
  void close();

  bool begun() const;       ///< a byte of the answer has come
  bool head_done() const;   ///< status() and headers() are there; interim answers (1xx) are skipped
  bool answered() const;    ///< the answer is complete
  bool keep_alive() const;  ///< by the answer's head, the connection outlives the answer
  int status() const;
  std::map<std::string, std::string> headers() const;  ///< names in lower case

  /// True when another request can be sent: the answer to the last one is complete, perhaps with what has
  /// arrived meanwhile, and the server has not hung up. Does not wait.
  bool reusable();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::http
