#pragma once
// IP addresses and networks as text and as a set. An IPv4 address is the same as its IPv6 form,
// ::ffff:a.b.c.d: a socket that listens on :: sees the latter.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe {

/// An IPv6 address in network order; IPv4 ones in their IPv6 form.
using IpAddress = std::array<std::uint8_t, 16>;

/// "10.0.0.7" or "2001:db8::7", without port, brackets and zone. Empty for anything else.
std::optional<IpAddress> parse_address(std::string_view text);

class AddressSet {
 public:
  AddressSet() = default;

  /// Adds an address or a network in CIDR form: "10.0.0.7", "10.0.0.0/8", "fd00::/8". invalid_argument for
  /// other text.
  Status add(std::string_view network);
  bool contains(const IpAddress& address) const;
  bool empty() const { return networks_.empty(); }

 private:
  struct Network {
    IpAddress address;
    int bits;  // that an address has in common with it
  };
  std::vector<Network> networks_;
};

/// True for 127.0.0.0/8 and ::1.
bool is_loopback(const IpAddress& address);

/// The name under which limits count the client at `address`: an IPv4 address by itself, also in its IPv6
/// form; another IPv6 address as its network of 64 bits ("2001:db8:0:7::/64"), all of which one client
/// usually has; ::1 and text that is no address as they are.
std::string client_network(std::string_view address);

}  // namespace troupe
