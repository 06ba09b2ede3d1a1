#include "http/server/api_keys.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::http {
namespace {

// The time for a key does not depend on how many there are.
TEST(ApiKeys, OfManyEachIsKnown) {
  std::vector<std::string> keys;
  for (int i = 0; i < 20'000; ++i) keys.push_back("key-" + std::to_string(i));
  const ApiKeys known(keys);
  EXPECT_TRUE(known.required());
  for (int i = 0; i < 20'000; i += 97)
    EXPECT_EQ(known.access("Bearer key-" + std::to_string(i), ""), Access::client) << i;
  EXPECT_EQ(known.access("", "key-19999"), Access::client);
  for (const char* wrong : {"", "key-", "key-20000", "key-00", "KEY-1"})
    EXPECT_EQ(known.access("", wrong), Access::none) << wrong;
}

}  // namespace
}  // namespace troupe::http
