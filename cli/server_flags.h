#pragma once
// The flags by which a subcommand that is a client finds its server: none for the one that runs on this
// machine, --host and --port, or --url; and whom TLS trusts.
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/running_server.h"
#include "config/field.h"
#include "http/client/tls_client.h"

namespace troupe::cli {

inline constexpr const char* kThisMachine = "127.0.0.1";

struct ServerFlags {
  std::string host = kThisMachine;
  WhichServer which;  ///< on this machine
  std::string url;    ///< takes the place of both; https:// means TLS
  http::TlsTrust trust;
};

/// They point into `flags`.
std::vector<config::Field> server_fields(ServerFlags& flags);

struct ChosenServer {
  std::string host;
  int port = 0;
  http::TlsContext tls;  ///< null: plain HTTP
};

/// Where a server of this machine is not known under this user, it is looked for at 127.0.0.1, at port 8180
/// if none is given. Errors: a malformed --url, a --ca-file that cannot be used, several servers without a
/// terminal to ask at.
Result<ChosenServer> choose_server(const ServerFlags& flags);

}  // namespace troupe::cli
