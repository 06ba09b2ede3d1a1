// Which card tests may have kernels chosen for.
#include "gpu/gpu_like.h"

#include <gtest/gtest.h>

#include "gpu/cuda.h"

namespace troupe {
namespace {

TEST(GpuLike, ACapabilityHasTheMultiprocessorsOfTheGpu) {
  const Result<Card> ampere = card_like("8.0");
  ASSERT_TRUE(ampere.ok());
  EXPECT_EQ(ampere.value().capability, 80);
  EXPECT_EQ(ampere.value().block_shared_kib, 163);
  EXPECT_EQ(ampere.value().multiprocessors, 0);
  EXPECT_EQ(card_like("8.6").value().block_shared_kib, 99);
}

TEST(GpuLike, ACardHasItsOwn) {
  const Result<Card> card = card_like("A10");
  ASSERT_TRUE(card.ok());
  EXPECT_EQ(card.value().capability, 86);
  EXPECT_EQ(card.value().multiprocessors, 72);
}

TEST(GpuLike, WhatIsNoCardIsRefused) {
  for (const char* name : {"T4", "7.5", "8.7", "H1000", "8"}) {
    const Result<Card> card = card_like(name);
    ASSERT_FALSE(card.ok()) << name;
    EXPECT_NE(card.status().message.find(name), std::string::npos) << card.status().message;
  }
}

TEST(GpuLike, StaysUntilItIsSetAgain) {
  const std::optional<Card> before = gpu_like();
  ASSERT_TRUE(set_gpu_like("L20").ok());
  EXPECT_EQ(gpu_like()->multiprocessors, 92);
  EXPECT_FALSE(cuda_reaches(0, 1)) << "no links are sold for an L20";
  EXPECT_FALSE(set_gpu_like("L21").ok());
  EXPECT_EQ(gpu_like()->multiprocessors, 92) << "a wrong name changes nothing";
  ASSERT_TRUE(set_gpu_like("").ok());
  EXPECT_FALSE(gpu_like().has_value());
  set_gpu_like(before);
}

}  // namespace
}  // namespace troupe
