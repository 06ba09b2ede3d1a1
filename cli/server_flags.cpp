#include "cli/server_flags.h"

#include <utility>

namespace troupe::cli {

std::vector<config::Field> server_fields(ServerFlags& flags) {
  return {
      {.name = "host", .slot = &flags.host, .help = "where the server is"},
      port_field(flags.which),
      {.name = "url",
       .slot = &flags.url,
       .help = "http://HOST:PORT or https://HOST:PORT, in place of --host and --port",
       .when_unset = "that of the running server; plain HTTP to --host"},
      runtime_dir_field(flags.which),
      {.name = "ca-file",
       .slot = &flags.trust.ca_file,
       .help = "PEM file of the authorities whose certificates are trusted, or the server's own certificate",
       .when_unset = "those of the system"},
      {.name = "insecure", .slot = &flags.trust.insecure, .help = "takes any certificate; for tests only"},
  };
}

namespace {

Result<http::ServerPlace> place_of(const ServerFlags& flags) {
  constexpr int kUsualPort = 8180;
  if (!flags.url.empty()) return http::parse_server_url(flags.url);
  if (flags.host == kThisMachine) {
    const auto running = find_running_server(flags.which);
    if (running.ok() && running->url.empty()) {
      return invalid("the instance at port " + std::to_string(running->port) +
                     " is an engine, which answers no HTTP; name a server with --port or --url");
    }
    if (running.ok()) return http::parse_server_url(running->url);
    if (running.status().code == Code::invalid_argument) return running.status();
  }
  return http::ServerPlace{false, flags.host, flags.which.port.value_or(kUsualPort)};
}

}  // namespace

Result<ChosenServer> choose_server(const ServerFlags& flags) {
  const auto found = place_of(flags);
  if (!found.ok()) return found.status();
  const http::ServerPlace& place = *found;
  ChosenServer chosen{place.host, place.port, nullptr};
  if (!place.tls) return chosen;
  auto tls = http::make_client_tls(flags.trust);
  if (!tls.ok()) return tls.status();
  chosen.tls = *std::move(tls);
  return chosen;
}

}  // namespace troupe::cli
