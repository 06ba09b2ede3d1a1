#pragma once
// A small blocking HTTP/1.1 client for this server's own API, for `troupe chat`. One connection per request.
// Not for the open Internet.
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/server/tls_session.h"

namespace troupe::http {

struct ClientOptions {
  std::string host = "127.0.0.1";
  int port = 8180;
  std::string api_key;  ///< sent as a bearer key when not empty
  TlsContext tls;       ///< of make_client_tls(); null: plain HTTP
  int connect_timeout_ms = 5000;
  int read_timeout_ms = 600'000;  ///< silence of the server after which the request is given up
  std::function<bool()>
      interrupted;  ///< asked ten times a second while waiting; true: give up with `cancelled`
};

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< at most 64 MiB; empty after a stream of events
};

/// The message of an OpenAI error body; of any other body its status and beginning.
std::string error_message(const ClientResponse& response);

/// Usable from several threads at once: it holds no connection.
class Client {
 public:
  explicit Client(ClientOptions options) : options_(std::move(options)) {}

  /// The answer, whatever its HTTP status. unavailable when no server listens there or the connection breaks,
  /// unauthorized when TLS is not agreed on (an untrusted certificate), timeout, cancelled by
  /// ClientOptions::interrupted, internal for an answer that is not HTTP.
  Result<ClientResponse> request(const std::string& method, const std::string& target,
                                 const std::string& body = {}) const;

  /// POSTs `body` and calls `each` with the data of every server-sent event but "[DONE]", as it arrives.
  /// `each` returns false to hang up, which cancels the request on the server. An answer that is no event
  /// stream, for example an error, is returned with its body. A stream without "[DONE]" at its end is
  /// `internal`.
  Result<ClientResponse> stream(const std::string& target, const std::string& body,
                                const std::function<bool(std::string_view data)>& each) const;

 private:
  ClientOptions options_;
};

}  // namespace troupe::http
