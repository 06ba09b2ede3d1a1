#include "model/cuda/decode_buckets.h"

#include <gtest/gtest.h>

namespace troupe::model {
namespace {

TEST(DecodeBuckets, EveryBatchHasOneThatIsHardlyLarger) {
  for (const int most : {1, 3, 8, 9, 32, 100, 256, 300, 512, 1024}) {
    const std::vector<int> sizes = decode_buckets(most);
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
    EXPECT_EQ(std::adjacent_find(sizes.begin(), sizes.end()), sizes.end());
    EXPECT_EQ(sizes.back(), most);
    for (int rows = 1; rows <= most; ++rows) {
      const int size = sizes[bucket_of(sizes, rows)];
      EXPECT_GE(size, rows);
      EXPECT_LE(size - rows, rows / 4) << rows;
      if (rows <= 8) {
        EXPECT_EQ(size, rows);
      }
    }
  }
}

TEST(DecodeBuckets, TwoHundredFiftySixRowsTakeFewGraphs) {
  EXPECT_EQ(decode_buckets(256),
            (std::vector<int>{1,  2,  3,  4,  5,  6,  7,  8,  10,  12,  14,  16,  20,  24,
                              28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256}));
}

TEST(DecodeBuckets, TwelveMoreForUpToAThousandRows) {
  EXPECT_EQ(decode_buckets(1024).size(), decode_buckets(256).size() + 12);
}

}  // namespace
}  // namespace troupe::model
