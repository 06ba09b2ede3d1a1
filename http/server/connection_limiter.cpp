#include "http/server/connection_limiter.h"

#include <utility>

namespace troupe::http {
namespace {

constexpr int kUsualPerAddress = 256;  // without --max-connections-per-address

Status too_many(const std::string& whose, const char* flag, int limit) {
  return {Code::overloaded,
          "Too many connections " + whose + ": at most " + std::to_string(limit) + " are served at once (" +
              flag + "); try again later",
          {},
          "too_many_connections"};
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// "1.2.3.4", "1.2.3.4:80", "[::1]", "[::1]:80" or "::1" without what is not the address.
std::string_view without_port(std::string_view text) {
  if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
  const std::size_t colon = text.find(':');
  const bool only_one = colon != text.npos && text.find(':', colon + 1) == text.npos;
  return only_one ? text.substr(0, colon) : text;
}

}  // namespace

Peer ConnectionLimiter::recognise(std::string address) const {
  const auto parsed = parse_address(address);
  std::string network = client_network(address);
  Peer peer{.address = std::move(address), .network = std::move(network)};
  peer.loopback = parsed && is_loopback(*parsed);
  peer.trusted_proxy = parsed && trusted_proxies_.contains(*parsed);
  return peer;
}

int ConnectionLimiter::limit_of(bool loopback) const {
  if (limits_.max_connections_per_address > 0) return limits_.max_connections_per_address;
  return loopback ? limits_.max_connections : kUsualPerAddress;
}

Status ConnectionLimiter::count(const std::string& network, int limit) {
  const auto found = per_network_.find(network);
  if ((found == per_network_.end() ? 0 : found->second) >= limit) {
    return too_many("from " + network, "--max-connections-per-address", limit);
  }
  ++per_network_[network];
  return {};
}

void ConnectionLimiter::forget(const std::string& network) {
  const auto found = per_network_.find(network);
  if (--found->second == 0) per_network_.erase(found);
}

Status ConnectionLimiter::enter(const Peer& peer) {
  const std::lock_guard lock(mutex_);
  if (total_ >= static_cast<std::size_t>(limits_.max_connections)) {
    return too_many("in all", "--max-connections", limits_.max_connections);
  }
  if (!peer.trusted_proxy) {
    if (Status status = count(peer.network, limit_of(peer.loopback)); !status.ok()) return status;
  }
  ++total_;
  return {};
}

void ConnectionLimiter::leave(const Peer& peer) {
  const std::lock_guard lock(mutex_);
  --total_;
  if (!peer.trusted_proxy) forget(peer.network);
}

Status ConnectionLimiter::begin_request(const std::string& client) {
  const std::lock_guard lock(mutex_);
  return count(client_network(client), limit_of(false));
}

void ConnectionLimiter::end_request(const std::string& client) {
  const std::lock_guard lock(mutex_);
  forget(client_network(client));
}

std::string ConnectionLimiter::client_of(std::string_view forwarded_for) const {
  while (!forwarded_for.empty()) {
    const std::size_t comma = forwarded_for.rfind(',');
    const std::size_t begin = comma == forwarded_for.npos ? 0 : comma + 1;
    const std::string_view name = without_port(without_blanks(forwarded_for.substr(begin)));
    forwarded_for = forwarded_for.substr(0, comma == forwarded_for.npos ? 0 : comma);
    const auto address = parse_address(name);
    if (!address) return {};  // what stands before it was not written by a proxy that is trusted
    if (!trusted_proxies_.contains(*address)) return std::string(name);
  }
  return {};
}

std::size_t ConnectionLimiter::inside() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

}  // namespace troupe::http
