#pragma once
// A blocking HTTP/1.1 client for this server's own API: `troupe chat`, the benches and tests. It follows no
// redirect and knows no proxy: not for the open Internet.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/server/tls_session.h"

namespace troupe::http {

struct ClientOptions {
  std::string host = "127.0.0.1";
  int port = 8180;
  std::string api_key;                  ///< sent as a bearer key when not empty
  TlsContext tls;                       ///< of make_client_tls(); null: plain HTTP
  int connect_timeout_ms = 5000;        ///< until the server has accepted and TLS is agreed on
  int first_byte_timeout_ms = 600'000;  ///< from the request's last byte to the end of the answer's head
  int idle_timeout_ms = 600'000;        ///< silence of the server within an answer
  /// Asked ten times a second while waiting; true: give up with `cancelled`.
  std::function<bool()> interrupted;
};

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< at most 64 MiB; empty after a stream of events
};

/// The message of an OpenAI error body; of any other body its status and beginning.
std::string error_message(const ClientResponse& response);

/// Keeps its connection for the next request if the server does. Of one thread at a time.
class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(Client&&) noexcept;

  /// The answer, whatever its HTTP status. unavailable when no server listens there or the connection breaks,
  /// unauthorized when TLS is not agreed on (an untrusted certificate), timeout, cancelled by
  /// ClientOptions::interrupted, internal for an answer that is not HTTP, too_large.
  Result<ClientResponse> request(const std::string& method, const std::string& target,
                                 const std::string& body = {});

  /// POSTs a body that is not JSON.
  Result<ClientResponse> post(const std::string& target, const std::string& content_type,
                              const std::string& body);

  /// GETs `target` and gives the body of an answer of 200 to `each` as it arrives, however large it is; any
  /// other answer is returned with its body. What `each` returns other than ok ends it.
  Result<ClientResponse> download(const std::string& target,
                                  const std::function<Status(std::string_view bytes)>& each);

  /// POSTs `body` and calls `each` with the data of every server-sent event but "[DONE]", as it arrives.
  /// `each` returns false to hang up, which cancels the request on the server. An answer that is no event
  /// stream, for example an error, is returned with its body. A stream without "[DONE]" at its end is
  /// `internal`.
  Result<ClientResponse> stream(const std::string& target, const std::string& body,
                                const std::function<bool(std::string_view data)>& each);

 private:
  class Exchange;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace troupe::http
