// The order of K and V within a block on the GPU is the one that kernels/cuda/product/layout.h describes, and
// every element has a place of its own.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/product/layout.h"

namespace troupe::kernels::cuda {
namespace {

TEST(KvLayout, ChunksOfSixteenBytesAreSwizzledByToken) {
  for (const int head_dim : {64, 128, 192}) {
    std::vector<int> times(std::size_t(kBlockTokens * head_dim));
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int d = 0; d < head_dim; ++d) {
        const int at = KvColumn(true, head_dim, d).at(t);
        ASSERT_EQ(at, kv_index(true, head_dim, t, d));
        ASSERT_TRUE(at >= 0 && at < kBlockTokens * head_dim) << head_dim << ": " << t << ", " << d;
        ++times[std::size_t(at)];
        // [head_dim / 64][64 tokens][8 chunks][8]
        EXPECT_EQ(at / (64 * kBlockTokens), d / 64);
        EXPECT_EQ(at / 64 % kBlockTokens, t);
        EXPECT_EQ(at / 8 % 8, (d / 8 % 8) ^ (t % 8));
        EXPECT_EQ(at % 8, d % 8);
      }
    }
    EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << head_dim;
  }
}

TEST(KvLayout, EveryCodeHasAPlaceInItsTokensRow) {
  for (const int head_dim : {48, 64, 96, 128, 192, 256}) {
    for (int t = 0; t < kBlockTokens; ++t) {
      std::vector<int> times(static_cast<std::size_t>(head_dim));
      for (int d = 0; d < head_dim; ++d) {
        const int at = kv_code_index(head_dim, t, d) - t * head_dim;
        ASSERT_TRUE(at >= 0 && at < head_dim) << head_dim << ": " << t << ", " << d;
        ++times[std::size_t(at)];
        EXPECT_EQ(at % 16, d % 16);
      }
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << head_dim;
    }
  }
  // Eight tokens' chunks of the same dimensions fill all 128 bytes that shared memory reads at once.
  for (const int head_dim : {64, 128, 256}) {
    for (int first = 0; first < kBlockTokens; first += 8) {
      for (int d = 0; d < head_dim; d += 16) {
        int banks = 0;
        for (int t = first; t < first + 8; ++t) banks |= 1 << kv_code_index(head_dim, t, d) / 16 % 8;
        EXPECT_EQ(banks, 0xff) << head_dim << ": " << first << ", " << d;
      }
    }
  }
}

TEST(KvLayout, WithoutSwizzleRowsAreInOrder) {
  for (const int head_dim : {16, 80, 128}) {
    for (const int t : {0, 1, 63}) {
      for (const int d : {0, 7, head_dim - 1}) EXPECT_EQ(kv_index(false, head_dim, t, d), t * head_dim + d);
    }
  }
  EXPECT_TRUE(swizzled(DType::bf16, 128));
  EXPECT_FALSE(swizzled(DType::bf16, 80)) << "no whole halves";
  EXPECT_FALSE(swizzled(DType::f32, 128)) << "no tensor cores";
}

}  // namespace
}  // namespace troupe::kernels::cuda
