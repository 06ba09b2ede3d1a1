#pragma once
// The server's side of TLS: a context from the certificate and the key that the options hold.
#include "base/status.h"
#include "config/options.h"
#include "http/server/tls_session.h"

namespace troupe::http {

/// From http.certificate_pem and http.private_key_pem; null without a certificate: plain HTTP. Offers
/// HTTP/1.1 alone (ALPN). Errors name the flag and its file: no certificate in it, no key, an encrypted key,
/// a key of another certificate, a key that is too weak.
Result<TlsContext> make_server_tls(const config::HttpOptions& http);

}  // namespace troupe::http
