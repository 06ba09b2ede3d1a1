#include "base/address_set.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

namespace troupe {
namespace {

constexpr int kBits = 128;
constexpr int kIpv4Prefix = 96;  // bits of ::ffff:0:0
constexpr int kClientPrefix = 64;

bool agree(const IpAddress& a, const IpAddress& b, int bits) {
  const auto whole = static_cast<std::size_t>(bits / 8);
  if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(whole), b.begin())) return false;
  const int rest = bits % 8;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

}  // namespace

std::optional<IpAddress> parse_address(std::string_view text) {
  const std::string copy(text);
  if (copy.size() != std::strlen(copy.c_str())) return std::nullopt;
  IpAddress address{};
  if (::inet_pton(AF_INET6, copy.c_str(), address.data()) == 1) return address;
  address = {};
  address[10] = address[11] = 0xff;
  if (::inet_pton(AF_INET, copy.c_str(), address.data() + kIpv4Prefix / 8) == 1) return address;
  return std::nullopt;
}

Status AddressSet::add(std::string_view network) {
  const auto refuse = [&] {
    return invalid("got \"" + std::string(network.substr(0, 80)) +
                   "\", expected an address or a network such as 10.0.0.0/8 or fd00::/8");
  };
  const std::size_t slash = network.find('/');
  const std::string_view name = network.substr(0, slash);
  const auto address = parse_address(name);
  if (!address) return refuse();
  int bits = kBits;
  if (slash != network.npos) {
    const int before = name.find(':') == name.npos ? kIpv4Prefix : 0;
    const std::string_view digits = network.substr(slash + 1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (read.ec != std::errc{} || read.ptr != digits.data() + digits.size() || bits < 0 ||
        bits > kBits - before) {
      return refuse();
    }
    bits += before;
  }
  networks_.push_back({*address, bits});
  return {};
}

bool AddressSet::contains(const IpAddress& address) const {
  return std::any_of(networks_.begin(), networks_.end(),
                     [&](const Network& network) { return agree(network.address, address, network.bits); });
}

bool is_loopback(const IpAddress& address) {
  static const AddressSet own = [] {
    AddressSet set;
    (void)set.add("127.0.0.0/8");
    (void)set.add("::1");
    return set;
  }();
  return own.contains(address);
}

std::string client_network(std::string_view text) {
  const auto address =
      parse_address(text.substr(0, text.find('%')));  // a link-local address may name its zone
  if (!address) return std::string(text);
  std::array<char, INET6_ADDRSTRLEN> name{};
  constexpr int kWholePrefix = kIpv4Prefix / 8;
  static constexpr IpAddress kIpv4Form{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (agree(*address, kIpv4Form, kIpv4Prefix)) {
    return ::inet_ntop(AF_INET, address->data() + kWholePrefix, name.data(), name.size());
  }
  if (is_loopback(*address)) return "::1";
  IpAddress network = *address;
  std::fill(network.begin() + kClientPrefix / 8, network.end(), std::uint8_t{0});
  return std::string(::inet_ntop(AF_INET6, network.data(), name.data(), name.size())) + "/" +
         std::to_string(kClientPrefix);
}

}  // namespace troupe
