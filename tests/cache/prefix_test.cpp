// Blocks that are found again: names of contents, the index, and leases that begin with published blocks.
#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

#include "actors/cache/block_hash.h"
#include "actors/cache/cache_manager.h"

namespace troupe {
namespace {

TEST(BlockHash, IsSipHash24With128BitsAsPublished) {
  // The first vectors of the reference implementation (vectors_sip128): key 00 … 0f, message 00, 01, ….
  const HashKey key{0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};
  std::vector<std::byte> message;
  EXPECT_EQ(siphash(key, message), (BlockHash{0xe6a825ba047f81a3ull, 0x930255c71472f66dull}));
  message.push_back(std::byte{0});
  EXPECT_EQ(siphash(key, message), (BlockHash{0x44af996bd8c187daull, 0x45fc229b11597634ull}));
}

TEST(BlockHash, DependsOnEverythingThatTheKvDependsOn) {
  const BlockHasher hasher({1, 2});
  const std::vector<TokenId> tokens = {1, 2, 3, 4}, other = {1, 2, 4, 3};
  const BlockHash root = hasher.root("");
  const BlockHash block = hasher.next(root, tokens);
  EXPECT_EQ(hasher.next(root, tokens), block);
  EXPECT_NE(hasher.next(root, other), block);
  EXPECT_NE(hasher.next(block, tokens), block) << "what comes before";
  EXPECT_NE(hasher.next(hasher.root("salt"), tokens), block);
  EXPECT_NE(BlockHasher({1, 3}).next(root, tokens), block) << "the instance's key";
  const BlockHash image{5, 6};
  EXPECT_NE(hasher.next(root, tokens, {&image, 1}), block);
  const std::vector<TokenId> as_tokens = {5, 0, 6, 0, 1, 2, 3, 4};
  EXPECT_NE(hasher.next(root, tokens, {&image, 1}), hasher.next(root, as_tokens)) << "an image is no token";
}

TEST(PrefixIndex, AgreesWithAMapUnderRandomOperations) {
  constexpr std::int32_t kBlocks = 64;
  std::mt19937_64 random(5);
  PrefixIndex index(kBlocks);
  std::unordered_map<std::uint64_t, BlockId> map;  // by the low bits, of which few differ: long runs
  for (int i = 0; i < 200'000; ++i) {
    const BlockHash hash{random() % 8, random() % 40};
    const std::uint64_t name = hash.hi << 32 | hash.lo;
    const auto known = map.find(name);
    ASSERT_EQ(index.find(hash), known == map.end() ? kNoBlock : known->second) << i;
    if (known != map.end()) {
      index.erase(hash);
      map.erase(known);
    } else if (map.size() < kBlocks) {
      index.insert(hash, static_cast<BlockId>(i % kBlocks));
      map[name] = static_cast<BlockId>(i % kBlocks);
    }
    ASSERT_EQ(static_cast<std::size_t>(index.size()), map.size());
  }
}

struct PrefixTest : ::testing::Test {
  PrefixTest() { cache.reset(epoch, 10, 64); }

  static RequestKey key(std::uint64_t n) { return {1, n}; }
  static std::vector<BlockHash> hashes(const std::vector<std::uint64_t>& contents) {
    std::vector<BlockHash> out;
    for (std::uint64_t c : contents) out.push_back({1, c});
    return out;
  }
  static HashRange all(const std::vector<std::uint64_t>& contents) {
    return {0, static_cast<std::int32_t>(contents.size())};
  }
  /// A new lease of so many blocks that looks for these contents.
  Grant admit(std::uint64_t k, std::int32_t blocks, const std::vector<std::uint64_t>& contents,
              std::int32_t keep_free = 0) {
    CacheAsks asks{epoch, {}, {}, {{key(k), blocks, keep_free, all(contents)}}, {}, {}, hashes(contents)};
    cache.answer(asks, grants);
    return grants.grants.at(0);
  }
  void publish(std::uint64_t k, std::int32_t first, const std::vector<std::uint64_t>& contents) {
    cache.answer({epoch, {}, {}, {}, {{key(k), first, all(contents)}}, {}, hashes(contents)}, grants);
  }
  void release(std::uint64_t k) { cache.answer({epoch, {key(k)}, {}, {}, {}, {}, {}}, grants); }
  void withdraw_and_release(std::uint64_t k) {
    cache.answer({epoch, {key(k)}, {}, {}, {}, {key(k)}, {}}, grants);
  }
  std::vector<BlockId> table(std::uint64_t k) const {
    return {cache.table(key(k)).begin(), cache.table(key(k)).end()};
  }
  void expect_counts(std::int32_t free, std::int32_t cached, std::int32_t leased) {
    const CacheStatus s = cache.status();
    EXPECT_EQ(s.free, free);
    EXPECT_EQ(s.cached, cached);
    EXPECT_EQ(s.leased, leased);
    EXPECT_TRUE(cache.sound());
  }

  std::uint32_t epoch = 1;
  CacheManager cache;
  CacheGrants grants;
};

TEST_F(PrefixTest, PublishedBlocksAreFoundWhileHeldAndAfterwards) {
  admit(1, 4, {11, 12, 13});
  const std::vector<BlockId> first = table(1);
  publish(1, 0, {11, 12});
  expect_counts(6, 0, 4);
  EXPECT_EQ(admit(2, 4, {11, 12, 13}).cached, 2) << "the third is not full yet";
  EXPECT_EQ(table(2)[0], first[0]);
  EXPECT_EQ(table(2)[1], first[1]);
  EXPECT_NE(table(2)[2], first[2]);
  expect_counts(4, 0, 6);
  release(1);
  release(2);
  expect_counts(8, 2, 0);
  EXPECT_EQ(admit(3, 2, {11, 99}).cached, 1);
  EXPECT_EQ(table(3)[0], first[0]);
}

TEST_F(PrefixTest, AGapEndsTheSearch) {
  admit(1, 3, {});
  publish(1, 1, {12, 13});
  EXPECT_EQ(admit(2, 3, {11, 12, 13}).cached, 0) << "the first block's contents are not there";
}

TEST_F(PrefixTest, NothingIsFoundWithoutNames) {
  admit(1, 2, {});
  publish(1, 0, {11, 12});
  EXPECT_EQ(admit(2, 2, {}).cached, 0);
}

TEST_F(PrefixTest, CachedBlocksAreGivenAwayOldestAndLastOfTheirPrefixFirst) {
  admit(1, 4, {});
  publish(1, 0, {11, 12, 13, 14});
  admit(2, 4, {});
  publish(2, 0, {21, 22, 23, 24});
  const std::vector<BlockId> one = table(1), two = table(2);
  release(1);
  release(2);
  expect_counts(2, 8, 0);
  admit(3, 4, {});  // both free ones, then the end of the older prefix
  EXPECT_EQ(table(3)[2], one[3]);
  EXPECT_EQ(table(3)[3], one[2]);
  EXPECT_EQ(cache.status().evicted, 2);
  EXPECT_EQ(admit(4, 4, {11, 12, 13, 14}).cached, 2);
  EXPECT_EQ(table(4)[2], two[3]) << "its own beginning was in use again";
  expect_counts(0, 2, 8);
}

TEST_F(PrefixTest, WhatIsFoundDoesNotCountAsRoomForTheRest) {
  admit(1, 6, {});
  publish(1, 0, {1, 2, 3, 4, 5, 6});
  release(1);
  expect_counts(4, 6, 0);
  admit(2, 4, {});
  expect_counts(0, 6, 4);
  EXPECT_TRUE(admit(3, 7, {1, 2, 3, 4, 5, 6}).refused);
  EXPECT_TRUE(admit(3, 6, {1, 2, 3, 4, 5, 6}, 1).refused) << "one was to stay available";
  expect_counts(0, 6, 4);
  EXPECT_EQ(admit(3, 6, {1, 2, 3, 4, 5, 6}).cached, 6);
  expect_counts(0, 0, 10);
}

TEST_F(PrefixTest, OfTwoEqualBlocksOneIsFoundAndTheOtherFreedOrTakesItsPlace) {
  admit(1, 1, {});
  admit(2, 1, {});
  publish(1, 0, {7});
  publish(2, 0, {7});
  const BlockId second = table(2)[0];
  release(2);
  expect_counts(9, 0, 1);
  admit(3, 1, {});
  publish(3, 0, {7});
  const BlockId third = table(3)[0];
  release(1);
  expect_counts(8, 1, 1);
  admit(4, 9, {});  // evicts the one that was found
  expect_counts(0, 0, 10);
  release(3);
  expect_counts(0, 1, 9);
  EXPECT_EQ(admit(5, 1, {7}).cached, 1);
  EXPECT_EQ(table(5)[0], third);
  EXPECT_EQ(second, third) << "freed blocks are taken again";
}

TEST_F(PrefixTest, AChildOfAForkSharesAndPublishesLikeItsParent) {
  admit(1, 3, {});
  publish(1, 0, {11, 12});
  cache.answer({epoch, {}, {{key(1), key(2), 150, 4, 0}}, {}, {}, {}, {}}, grants);
  ASSERT_FALSE(grants.grants[0].refused);
  publish(2, 2, {13});
  release(1);
  EXPECT_EQ(admit(3, 3, {11, 12, 13}).cached, 3);
}

TEST_F(PrefixTest, AResetForgetsEverythingAndWhatLeasesHoldIsNotPublishedLater) {
  admit(1, 3, {});
  publish(1, 0, {11, 12});
  admit(2, 1, {});
  publish(2, 0, {21});
  release(2);
  expect_counts(6, 1, 3);
  EXPECT_EQ(cache.reset_prefixes(), 3);
  expect_counts(7, 0, 3);
  publish(1, 2, {13});
  cache.answer({epoch, {}, {{key(1), key(3), 140, 3, 0}}, {}, {}, {}, {}}, grants);
  publish(3, 2, {14});
  EXPECT_EQ(admit(4, 3, {11, 12, 13}).cached, 0);
  publish(4, 0, {11, 12, 13});
  release(1);
  release(3);
  release(4);
  expect_counts(7, 3, 0);
  EXPECT_EQ(admit(5, 3, {11, 12, 13}).cached, 3);
}

TEST_F(PrefixTest, WithdrawnBlocksAreForgottenUnlessOthersHoldThem) {
  admit(1, 3, {});
  publish(1, 0, {11, 12, 13});
  admit(2, 1, {11});
  withdraw_and_release(1);
  expect_counts(9, 0, 1);
  EXPECT_EQ(admit(3, 3, {11, 12, 13}).cached, 1);
}

TEST_F(PrefixTest, ANewEpochKnowsNothing) {
  admit(1, 2, {});
  publish(1, 0, {11, 12});
  release(1);
  cache.reset(++epoch, 10, 64);
  EXPECT_EQ(admit(2, 2, {11, 12}).cached, 0);
  EXPECT_EQ(cache.status().evicted, 0);
}

TEST_F(PrefixTest, CountsHoldUnderRandomOperationsAndContentsAreWhatTheirNamesSay) {
  std::mt19937 random(4);
  cache.reset(++epoch, 40, 64);
  std::vector<std::uint64_t> written(40);  // per block: the contents that its last writer put there
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> texts;  // of live leases, by block
  std::uint64_t next = 0;
  for (int i = 0; i < 300'000; ++i) {
    const int what = static_cast<int>(random() % 8);
    if (what < 3) {
      // One of few texts, so that prefixes meet; a text's block k is named by the text and k.
      const std::uint64_t text = random() % 12;
      const std::int32_t blocks = 1 + static_cast<std::int32_t>(random() % 8);
      std::vector<std::uint64_t> contents;
      for (std::uint64_t b = 0; b < static_cast<std::uint64_t>(blocks); ++b) {
        contents.push_back(b < 2 ? 100 + b : text * 1000 + b + 1);  // all texts begin with the same two
      }
      const Grant grant = admit(++next, blocks, contents);
      if (grant.refused) continue;
      for (std::int32_t b = 0; b < grant.cached; ++b) {
        const std::size_t at = static_cast<std::size_t>(b);
        ASSERT_EQ(written[static_cast<std::size_t>(table(next)[at])], contents[at]) << "at operation " << i;
      }
      for (std::size_t b = static_cast<std::size_t>(grant.cached); b < contents.size(); ++b) {
        written[static_cast<std::size_t>(table(next)[b])] = contents[b];
      }
      texts[next] = contents;
    } else if (texts.empty()) {
      continue;
    } else {
      const std::uint64_t some = std::next(texts.begin(), random() % texts.size())->first;
      if (what < 5) {
        const std::size_t n = 1 + random() % texts[some].size();
        publish(some, 0, {texts[some].begin(), texts[some].begin() + static_cast<std::ptrdiff_t>(n)});
      } else {
        what < 7 ? release(some) : withdraw_and_release(some);
        texts.erase(some);
      }
    }
    if (random() % 5000 == 0) cache.reset_prefixes();
    if (i % 16 == 0) {
      ASSERT_TRUE(cache.sound()) << "at operation " << i;
    }
  }
  for (const auto& [k, text] : texts) release(k);
  const CacheStatus s = cache.status();
  EXPECT_EQ(s.free + s.cached, 40);
  EXPECT_GT(s.evicted, 1000);
}

}  // namespace
}  // namespace troupe
