#include "cli/server_flags.h"

#include <utility>

namespace troupe::cli {

std::vector<config::Field> server_fields(ServerFlags& flags, std::string_view unset_port) {
  return {
      {.name = "host", .slot = &flags.host, .help = "where the server is"},
      {.name = "port", .slot = &flags.port, .help = "its HTTP port", .min = 1, .max = 65535, .when_unset = unset_port},
      {.name = "url",
       .slot = &flags.url,
       .help = "http://HOST:PORT or https://HOST:PORT, in place of --host and --port",
       .when_unset = "plain HTTP to --host and --port"},
      {.name = "ca-file",
       .slot = &flags.trust.ca_file,
       .help = "PEM file of the authorities whose certificates are trusted, or the server's own certificate",
       .when_unset = "those of the system"},
      {.name = "insecure", .slot = &flags.trust.insecure, .help = "takes any certificate; for tests only"},
  };
}

Result<ChosenServer> choose_server(const ServerFlags& flags) {
  http::ServerPlace place{false, flags.host, flags.port.value_or(kDefaultPort)};
  if (!flags.url.empty()) {
    auto named = http::parse_server_url(flags.url);
    if (!named.ok()) return named.status();
    place = *std::move(named);
  }
  ChosenServer chosen{place.host, place.port, nullptr};
  if (!place.tls) return chosen;
  auto tls = http::make_client_tls(flags.trust);
  if (!tls.ok()) return tls.status();
  chosen.tls = *std::move(tls);
  return chosen;
}

}  // namespace troupe::cli
