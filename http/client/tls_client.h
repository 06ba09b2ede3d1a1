#pragma once
// The client's side of TLS: whom to trust, and the place of a server as a URL names it.
#include <string>

#include "base/status.h"
#include "http/server/tls_session.h"

namespace troupe::http {

/// How a client reaches its server over TLS.
struct TlsTrust {
  std::string ca_file;    ///< PEM file of the authorities to trust; empty: those of the system
  bool insecure = false;  ///< takes any certificate
};

/// The errors name --ca-file.
Result<TlsContext> make_client_tls(const TlsTrust& trust);

struct ServerPlace {
  bool tls = false;
  std::string host;  ///< a name or an address, without brackets
  int port = 0;
};

/// Reads "http://HOST[:PORT]" or "https://HOST[:PORT]", with or without a slash or "/v1" behind it. The usual
/// port is 80 or 443. The errors name --url.
Result<ServerPlace> parse_server_url(const std::string& url);

}  // namespace troupe::http
