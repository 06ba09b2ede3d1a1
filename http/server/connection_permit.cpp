#include "http/server/connection_permit.h"

#include <utility>

namespace troupe::http {

ConnectionPermit::ConnectionPermit(ConnectionLimiter& limiter, Peer peer, Entrance entrance)
    : limiter_(&limiter),
      peer_(std::move(peer)),
      entrance_(std::move(entrance)),
      refusal_(limiter.enter(peer_)) {}

ConnectionPermit::ConnectionPermit(ConnectionPermit&& other) noexcept
    : limiter_(std::exchange(other.limiter_, nullptr)),
      peer_(std::move(other.peer_)),
      entrance_(std::move(other.entrance_)),
      refusal_(std::move(other.refusal_)),
      client_(std::move(other.client_)) {}

ConnectionPermit::~ConnectionPermit() {
  if (limiter_ == nullptr) return;
  end_request();
  if (refusal_.ok()) limiter_->leave(peer_);
}

Status ConnectionPermit::begin_request(std::string_view forwarded_for) {
  std::string client = limiter_->client_of(forwarded_for);
  Status status = client.empty() ? Status() : limiter_->begin_request(client);
  if (status.ok()) client_ = std::move(client);
  return status;
}

void ConnectionPermit::end_request() {
  if (!client_.empty()) limiter_->end_request(std::exchange(client_, {}));
}

}  // namespace troupe::http
