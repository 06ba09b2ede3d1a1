#include "config/address.h"

#include <charconv>

namespace troupe::config {

Result<Address> read_address(std::string_view text) {
  const Status bad = invalid("got \"" + std::string(text.substr(0, 100)) +
                             "\", expected HOST:PORT, with [ ] around an IPv6 address");
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return bad;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != host.npos) {
    return bad;
  }
  Address out{std::string(host)};
  const auto read = std::from_chars(port.data(), port.data() + port.size(), out.port);
  const bool whole = read.ec == std::errc() && read.ptr == port.data() + port.size();
  if (!whole || out.port < 1 || out.port > 65535 || host.empty() || host.find_first_of(" \t/@") != host.npos)
    return bad;
  return out;
}

std::string to_string(const Address& address) {
  const std::string host =
      address.host.find(':') == std::string::npos ? address.host : "[" + address.host + "]";
  return host + ":" + std::to_string(address.port);
}

}  // namespace troupe::config
