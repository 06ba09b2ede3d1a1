#pragma once
// Who a request counts for where clients share a part of the server in turn.
#include <string>
#include <string_view>

#include "base/address_set.h"
#include "http/server/api_keys.h"

namespace troupe::http {

/// "key:…" with the fingerprint of the configured key that the request brings; without one "net:…" with the
/// network of `address` (client_network()): that of the connection or, behind a trusted proxy, of the client
/// that it names. `keys` null: none is looked for.
inline std::string client_identity(const ApiKeys* keys, std::string_view authorization,
                                   std::string_view x_api_key, std::string_view address) {
  if (keys != nullptr) {
    if (std::string name = keys->fingerprint(authorization, x_api_key); !name.empty()) return "key:" + name;
  }
  return "net:" + client_network(address);
}

}  // namespace troupe::http
