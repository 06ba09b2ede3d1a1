#include "base/percent.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(Percent, AnEscapeIsOneByte) {
  EXPECT_EQ(escaped_byte("%20", 0), 0x20);
  EXPECT_EQ(escaped_byte("a%fFb", 1), 0xFF);
  EXPECT_EQ(escaped_byte("%00", 0), 0);
}

TEST(Percent, WhatIsNoneIsNone) {
  for (const char* text : {"", "%", "%2", "%2g", "%g2", "a20"}) EXPECT_EQ(escaped_byte(text, 0), -1) << text;
  EXPECT_EQ(escaped_byte("%20", 3), -1);
}

}  // namespace
}  // namespace troupe
