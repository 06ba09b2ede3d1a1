#pragma once
// The flags by which a subcommand that is a client finds its server: --host and --port, or --url, and whom
// TLS trusts.
#include <string>
#include <vector>

#include "base/status.h"
#include "config/field.h"
#include "http/tls_client.h"

namespace troupe::cli {

struct ServerFlags {
  std::string host = "127.0.0.1";
  int port = 8180;
  std::string url;  ///< takes the place of both; https:// means TLS
  http::TlsTrust trust;
};

/// They point into `flags`.
std::vector<config::Field> server_fields(ServerFlags& flags);

struct ChosenServer {
  std::string host;
  int port = 0;
  http::TlsContext tls;  ///< null: plain HTTP
};

/// The errors name the flag: a malformed --url, a --ca-file that cannot be used.
Result<ChosenServer> choose_server(const ServerFlags& flags);

}  // namespace troupe::cli
