// What the encoder has made: for sequences, and kept beyond them.
#include "model/vision/encoder_outputs.h"

#include <gtest/gtest.h>

#include "gpu/cpu.h"

namespace troupe::model {
namespace {

constexpr BlockHash kRed{1, 1}, kGreen{1, 2}, kBlue{1, 3};

class EncoderOutputsTest : public ::testing::Test {
 protected:
  /// An output of four tokens. True if one with its name was there.
  bool begin(SlotRef slot, int item, const BlockHash& name, std::int64_t tokens = 4) {
    const auto place = outputs_.begin(slot, item, tokens, name);
    EXPECT_TRUE(place.ok());
    return place->filled;
  }
  bool use_once(const BlockHash& name) {
    const bool filled = begin({0, ++generation_}, 0, name);
    outputs_.used({0, generation_}, 0);
    return filled;
  }

  Cpu device_{CpuOptions{.threads = 1}};
  EncoderOutputs<Cpu> outputs_{device_, 16, 8};
  std::uint32_t generation_ = 0;
};

TEST_F(EncoderOutputsTest, WhatWasUsedIsFoundByItsName) {
  EXPECT_FALSE(use_once(kRed));
  EXPECT_TRUE(use_once(kRed));
  EXPECT_FALSE(use_once(kGreen));
  EXPECT_TRUE(use_once(kRed));
  EXPECT_EQ(outputs_.kept_tokens(), 8);
}

TEST_F(EncoderOutputsTest, TheLeastRecentlyUsedGo) {
  use_once(kRed);
  use_once(kGreen);
  use_once(kRed);
  EXPECT_FALSE(use_once(kBlue));
  EXPECT_EQ(outputs_.kept_tokens(), 8);
  EXPECT_TRUE(use_once(kRed));
  EXPECT_FALSE(use_once(kGreen)) << "it had to go";
}

TEST_F(EncoderOutputsTest, OneThatIsLargerThanAllIsNotKept) {
  use_once(kRed);
  begin({0, 9}, 0, kBlue, 9);
  outputs_.used({0, 9}, 0);
  EXPECT_FALSE(begin({0, 10}, 0, kBlue, 9));
  EXPECT_TRUE(use_once(kRed)) << "and drives out no other";
}

TEST_F(EncoderOutputsTest, OnlyWhatWasUsedIsKept) {
  begin({0, 1}, 0, kRed);
  outputs_.drop({0, 1});
  EXPECT_FALSE(begin({0, 2}, 0, kRed));
  outputs_.drop_all();
  EXPECT_FALSE(begin({0, 3}, 0, kRed));
  outputs_.used({0, 3}, 0);
  outputs_.used({0, 3}, 0);
  outputs_.drop_all();
  EXPECT_TRUE(begin({0, 4}, 0, kRed));
}

TEST_F(EncoderOutputsTest, WithoutANameNothingIsKept) {
  use_once({});
  EXPECT_FALSE(use_once({}));
  EXPECT_EQ(outputs_.kept_tokens(), 0);
}

// One that has to go while a sequence uses it stays for that sequence.
TEST_F(EncoderOutputsTest, WhatGoesStaysForWhoUsesIt) {
  begin({0, 1}, 2, kRed);
  void* const rows = outputs_.begin({0, 1}, 2, 4, kRed)->rows;
  *static_cast<char*>(rows) = 7;
  outputs_.used({0, 1}, 2);
  ASSERT_TRUE(begin({1, 1}, 0, kRed));
  use_once(kGreen);
  use_once(kBlue);
  EXPECT_FALSE(begin({2, 1}, 0, kRed));
  EXPECT_EQ(static_cast<char>(*outputs_.rows({1, 1}, 0, 0)), 7);
  outputs_.drop({1, 1});
}

}  // namespace
}  // namespace troupe::model
