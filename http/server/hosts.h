#pragma once
// Under which names a server may be asked. A web page can have its own name resolved to an address of this
// machine and then counts as of the same origin (DNS rebinding); the header Host still has the page's name,
// which is not served.
#include <string>
#include <string_view>
#include <vector>

#include "base/address_set.h"

namespace troupe::http {

/// The host of "name", "name:port", "[::1]" or "[::1]:port": without port and brackets. Empty when it is none
/// of these.
std::string_view host_of(std::string_view authority);

/// The authority of a request target in absolute form, "http://name:port/path"; empty for other targets.
std::string_view authority_of(std::string_view target);

/// Immutable; any thread.
class Hosts {
 public:
  /// `own`: names and addresses of this server beside localhost and the loopback addresses. `allowed`:
  /// --allowed-hosts, which may hold "*".
  Hosts(const std::vector<std::string>& own, const std::vector<std::string>& allowed);

  /// True when --allowed-hosts was given.
  bool listed() const { return listed_; }
  /// True when `authority` names this server, with any port. `address` is the one of this machine that the
  /// client has connected to; it counts as a name.
  bool serve(std::string_view authority, std::string_view address) const;

 private:
  void add(std::string_view name);

  bool listed_;
  bool all_ = false;
  std::vector<std::string> names_;
  std::vector<IpAddress> addresses_;
};

}  // namespace troupe::http
