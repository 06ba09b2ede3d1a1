#include "base/address_set.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rate_limit.h"

namespace troupe {
namespace {

AddressSet set_of(std::initializer_list<const char*> networks) {
  AddressSet set;
  for (const char* network : networks) EXPECT_TRUE(set.add(network).ok()) << network;
  return set;
}

bool has(const AddressSet& set, const char* address) {
  const auto parsed = parse_address(address);
  EXPECT_TRUE(parsed) << address;
  return parsed && set.contains(*parsed);
}

TEST(AddressSet, HoldsAddressesAndNetworks) {
  const AddressSet set = set_of({"10.0.0.0/8", "192.168.1.7", "fd00::/9", "::ffff:172.16.0.0/108"});
  EXPECT_TRUE(has(set, "10.255.0.1"));
  EXPECT_FALSE(has(set, "11.0.0.1"));
  EXPECT_TRUE(has(set, "192.168.1.7"));
  EXPECT_FALSE(has(set, "192.168.1.6"));
  EXPECT_TRUE(has(set, "fd7f::1"));
  EXPECT_FALSE(has(set, "fd80::1"));
  EXPECT_TRUE(has(set, "172.31.0.1"));
  EXPECT_FALSE(has(AddressSet(), "10.0.0.1"));
  EXPECT_TRUE(has(set_of({"0.0.0.0/0"}), "8.8.8.8"));
  EXPECT_FALSE(has(set_of({"0.0.0.0/0"}), "2001:db8::1"));
}

TEST(AddressSet, AnIpv4AddressIsItsIpv6Form) {
  EXPECT_EQ(parse_address("127.0.0.1"), parse_address("::ffff:127.0.0.1"));
  EXPECT_TRUE(has(set_of({"10.0.0.0/8"}), "::ffff:10.1.2.3"));
}

TEST(AddressSet, RefusesWhatIsNoNetworkAndNamesIt) {
  for (const char* wrong : {"", "localhost", "10.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1",
                            "10.0.0.0/8x", "::/129", "/8", "10.0.0.0/4294967304", "10.0.0.1:80", "[::1]"}) {
    AddressSet set;
    const Status status = set.add(wrong);
    EXPECT_EQ(status.code, Code::invalid_argument) << wrong;
    EXPECT_NE(status.message.find("\"" + std::string(wrong) + "\""), std::string::npos) << status.message;
    EXPECT_TRUE(set.empty());
  }
}

TEST(AddressSet, KnowsLoopback) {
  for (const char* own : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(is_loopback(*parse_address(own))) << own;
  for (const char* other : {"128.0.0.1", "::2", "0.0.0.0", "::"})
    EXPECT_FALSE(is_loopback(*parse_address(other))) << other;
}

TEST(ClientNetwork, IsTheAddressOfIpv4AndTheFirst64BitsOfIpv6) {
  const std::pair<const char*, const char*> rows[] = {
      {"203.0.113.5", "203.0.113.5"},
      {"::ffff:203.0.113.5", "203.0.113.5"},
      {"2001:db8:0:7::1", "2001:db8:0:7::/64"},
      {"2001:DB8:0:7:ffff:ffff:ffff:ffff", "2001:db8:0:7::/64"},
      {"2001:db8:0:8::1", "2001:db8:0:8::/64"},
      {"fe80::1%eth0", "fe80::/64"},
      {"::1", "::1"},
      {"127.1.2.3", "127.1.2.3"},
      {"", ""},
      {"unix", "unix"},
  };
  for (const auto& [address, network] : rows) EXPECT_EQ(client_network(address), network) << address;
}

TEST(RateLimit, LetsOneThroughInEachPeriodAndCountsTheOthers) {
  RateLimit limit(std::chrono::seconds(1));
  const TimePoint start = Clock::now();
  EXPECT_EQ(limit.admit(start), 1u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.admit(start + std::chrono::milliseconds(100 * i)), 0u);
  EXPECT_EQ(limit.admit(start + std::chrono::seconds(1)), 6u);
  EXPECT_EQ(limit.admit(start + std::chrono::seconds(1)), 0u);
}

}  // namespace
}  // namespace troupe
