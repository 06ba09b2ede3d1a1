#include "base/contain.h"

#include <gtest/gtest.h>

#include <new>

#include "support/thrown_fault.h"

namespace troupe {
namespace {

TEST(Contain, WorkThatEndsIsOk) {
  bool done = false;
  EXPECT_TRUE(contain({}, "here", "r", [&] { done = true; }).ok());
  EXPECT_TRUE(done);
}

TEST(Contain, WhatIsThrownBecomesAStatusThatDoesNotTellIt) {
  const Status fault = contain({}, "here", "r", [] { throw std::runtime_error("secret"); });
  EXPECT_EQ(fault.code, Code::internal);
  EXPECT_NE(fault.message.find("here"), std::string::npos);
  EXPECT_EQ(fault.message.find("secret"), std::string::npos);
  EXPECT_EQ(contain({}, "here", "r", [] { throw 7; }).code, Code::internal);
  EXPECT_EQ(contain({}, "here", "r", [] { throw std::bad_alloc(); }).code, Code::unavailable);
}

TEST(Contain, ATestMakesWorkThrowAtItsPlace) {
  const testing::ThrownFault fault("here", 2);
  EXPECT_TRUE(contain({}, "elsewhere", "r", [] {}).ok());
  EXPECT_FALSE(contain({}, "here", "r", [] {}).ok());
  EXPECT_FALSE(contain({}, "here", "r", [] {}).ok());
  EXPECT_TRUE(contain({}, "here", "r", [] {}).ok());
  EXPECT_EQ(fault.thrown(), 2);
}

}  // namespace
}  // namespace troupe
