#include "http/client/tls_client.h"

#include <openssl/ssl.h>

#include <charconv>
#include <string_view>

namespace troupe::http {

Result<TlsContext> make_client_tls(const TlsTrust& trust) {
  TlsContext context = make_tls_context();
  if (context == nullptr) return failure(Code::internal, "TLS cannot be set up: " + take_tls_error());
  if (trust.insecure) return context;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (trust.ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());
  } else if (SSL_CTX_load_verify_file(context.get(), trust.ca_file.c_str()) != 1) {
    return invalid("--ca-file " + trust.ca_file + ": holds no certificates in PEM form that can be read (" +
                   take_tls_error() + ")");
  }
  return context;
}

Result<ServerPlace> parse_server_url(const std::string& url) {
  const auto refuse = [&] {
    return invalid("--url: got \"" + url + "\", expected http://HOST[:PORT] or https://HOST[:PORT]");
  };
  ServerPlace place;
  std::string_view rest = url;
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  if (rest.starts_with(kTls)) {
    place = {true, {}, 443};
    rest.remove_prefix(kTls.size());
  } else if (rest.starts_with(kPlain)) {
    place = {false, {}, 80};
    rest.remove_prefix(kPlain.size());
  } else {
    return refuse();
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.ends_with("/v1")) rest.remove_suffix(3);
  const std::size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == rest.npos || rest.find_first_of("/?#@ ") != rest.npos) return refuse();
  const std::size_t colon = rest.find(':', bracket);
  const std::string_view host = rest.substr(0, colon);
  place.host = bracket > 0 ? host.substr(1, bracket - 1) : host;
  if (place.host.empty()) return refuse();
  if (colon != rest.npos) {
    const std::string_view port = rest.substr(colon + 1);
    const auto read = std::from_chars(port.data(), port.data() + port.size(), place.port);
    if (read.ec != std::errc{} || read.ptr != port.data() + port.size() || place.port < 1 ||
        place.port > 65535) {
      return refuse();
    }
  }
  return place;
}

}  // namespace troupe::http
