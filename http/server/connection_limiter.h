#pragma once
// Who may come in: counts of open connections, in all and for each address; of IPv6 for each network of 64
// bits. Behind a trusted proxy the address is the client's, as X-Forwarded-For names it, and what is counted
// is its requests in progress.
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/address_set.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe::http {

/// Where a connection comes from.
struct Peer {
  std::string address;
  std::string network;  ///< that it is counted under: client_network() of the address
  bool loopback = false;
  bool trusted_proxy = false;  ///< X-Forwarded-For is taken from it
};

/// Any thread.
class ConnectionLimiter {
 public:
  ConnectionLimiter(const config::LimitOptions& limits, AddressSet trusted_proxies)
      : limits_(limits), trusted_proxies_(std::move(trusted_proxies)) {}

  Peer recognise(std::string address) const;

  /// Counts one more connection. Not ok, and not counted, when that would exceed a limit; the Status says
  /// which, with the reason "too_many_connections".
  Status enter(const Peer& peer);
  void leave(const Peer& peer);

  /// As enter() and leave(), for a request of a client behind a trusted proxy. `client` is of client_of().
  Status begin_request(const std::string& client);
  void end_request(const std::string& client);

  /// The client of a request that a trusted proxy passes on: in X-Forwarded-For, given as one line, the last
  /// address that is not a trusted proxy's itself. Empty when it names none.
  std::string client_of(std::string_view forwarded_for) const;

  /// Connections that are counted now.
  std::size_t inside() const;

 private:
  int limit_of(bool loopback) const;
  Status count(const std::string& network, int limit);
  void forget(const std::string& network);

  const config::LimitOptions& limits_;
  const AddressSet trusted_proxies_;
  mutable std::mutex mutex_;
  std::size_t total_ = 0;
  std::unordered_map<std::string, int> per_network_;
};

}  // namespace troupe::http
