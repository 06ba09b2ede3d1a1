#pragma once
// The place of one connection within the limits on connections and on the requests of a client.
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/server/connection_limiter.h"
#include "http/server/request_handler.h"

namespace troupe::http {

/// A connection against the limits: who has connected, and to which listener. The limiter counts it until it
/// is destroyed.
class ConnectionPermit {
 public:
  /// `limiter` outlives it.
  ConnectionPermit(ConnectionLimiter& limiter, Peer peer, Entrance entrance);
  ~ConnectionPermit();
  ConnectionPermit(ConnectionPermit&& other) noexcept;
  ConnectionPermit& operator=(ConnectionPermit&&) = delete;

  const Peer& peer() const { return peer_; }
  const Entrance& entrance() const { return entrance_; }
  /// Not ok: beyond a limit. Such a connection may ask for health alone; on an open listener for all its
  /// pages.
  const Status& refusal() const { return refusal_; }

  /// Counts the request that begins to the client behind a trusted proxy; not ok beyond its limit.
  Status begin_request(std::string_view forwarded_for);
  void end_request();
  /// The address that the request in progress comes from.
  const std::string& client() const { return client_.empty() ? peer_.address : client_; }

 private:
  ConnectionLimiter* limiter_;  // null: moved from
  Peer peer_;
  Entrance entrance_;
  Status refusal_;
  std::string client_;  // of the request in progress, when it is counted
};

}  // namespace troupe::http
