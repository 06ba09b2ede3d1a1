#include "http/api_keys.h"

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
  for (int i = 0; i < 20'000; i += 97) EXPECT_TRUE(known.allow("Bearer key-" + std::to_string(i), "")) << i;
  EXPECT_TRUE(known.allow("", "key-19999"));
  for (const char* wrong : {"", "key-", "key-20000", "key-00", "KEY-1"}) EXPECT_FALSE(known.allow("", wrong)) << wrong;
}

}  // namespace
}  // namespace troupe::http
