// What is slow is named once for each op, with its shape, its way and the reason.
#include "model/step_choices.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/support/shapes.h"

namespace troupe::model {
namespace {

using kernels::cuda::kH200;

TEST(SlowChoices, NothingOfAPublishedShape) {
  EXPECT_TRUE(slow_choices(test::small_ernie(), DType::bf16, kH200).empty());
}

TEST(SlowChoices, AWideGroupDecodesSlowly) {
  ModelSpec spec = test::small_ernie();
  spec.heads = 24;  // of 2 KV heads
  const auto lines = slow_choices(spec, DType::bf16, kH200);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0],
      "attention of decode steps (24 heads, 2 KV heads of 128 bfloat16, 8 rows of 8 sequences): generic "
      "(more than 8 q heads for each KV head)");
}

TEST(SlowChoices, EachOpOnce) {
  const auto lines = slow_choices(test::small_ernie(), DType::f32, kH200);
  const auto count = [&](const std::string& begin) {
    return std::count_if(lines.begin(), lines.end(), [&](const auto& l) { return l.starts_with(begin); });
  };
  EXPECT_EQ(count("qkv of "), 1);
  EXPECT_EQ(count("attention of "), 1);
  EXPECT_EQ(count("down of "), 1);
  EXPECT_EQ(count("sampling of "), 0);
}

TEST(SlowChoices, AnOddVocabularyLeavesSharedMemory) {
  ModelSpec spec = test::small_ernie();
  spec.vocab = 200003;
  const auto lines = slow_choices(spec, DType::bf16, kH200);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("sampling of decode steps (vocabulary of 200003): ")) << lines[0];
}

}  // namespace
}  // namespace troupe::model
