#pragma once
// The flags by which a subcommand that is a client finds its server: --host and --port, or --url, and whom
// TLS trusts.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/field.h"
#include "http/tls_client.h"

namespace troupe::cli {

inline constexpr int kDefaultPort = 8180;

struct ServerFlags {
  std::string host = "127.0.0.1";
  std::optional<int> port;  ///< unset: kDefaultPort
  std::string url;          ///< takes the place of both; https:// means TLS
  http::TlsTrust trust;
};

/// They point into `flags`. `unset_port` says which port is taken without one.
std::vector<config::Field> server_fields(ServerFlags& flags, std::string_view unset_port = "8180");

struct ChosenServer {
  std::string host;
  int port = 0;
  http::TlsContext tls;  ///< null: plain HTTP
};

/// The errors name the flag: a malformed --url, a --ca-file that cannot be used.
Result<ChosenServer> choose_server(const ServerFlags& flags);

}  // namespace troupe::cli
