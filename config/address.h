#pragma once
// HOST:PORT, as flags name the place of another process.
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::config {

struct Address {
  std::string host;  ///< a name or a numeric address, without brackets
  int port = 0;

  bool operator==(const Address&) const = default;
};

/// Reads "HOST:PORT"; an IPv6 address stands in brackets. The Status names no flag.
Result<Address> read_address(std::string_view text);

/// The text form, with brackets around an IPv6 address.
std::string to_string(const Address& address);

}  // namespace troupe::config
