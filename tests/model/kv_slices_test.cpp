// Which bytes of another instance's KV blocks make up a rank's own block.
#include "model/swap/kv_slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe::model {
namespace {

using kernels::KvCache;
using kernels::KvFormat;

constexpr int kLayers = 2;

KvCache slice_shape(KvFormat format, bool drafts_and_ids) {
  KvCache kv{nullptr, DType::bf16, kLayers, 1, 2, format, drafts_and_ids};
  if (drafts_and_ids) kv.tail = 128;
  return kv;
}

KvPart rank_part(const KvCache& kv, int kv_heads, const Shard& shard) {
  KvPart part{kv, kv_heads, shard};
  part.shape.kv_heads = std::max(1, kv_heads / shard.ranks);
  return part;
}

/// The value of a byte of a model's block, the same on every rank that holds it.
std::uint32_t byte_value(int layer, int v, int head, std::size_t byte) {
  return static_cast<std::uint32_t>((((layer * 2 + v) * 16 + head) << 16) + static_cast<int>(byte) + 1);
}

/// What a rank's block holds, byte by byte.
std::vector<std::uint32_t> rank_block(const KvPart& part) {
  const KvCache& kv = part.shape;
  std::vector<std::uint32_t> block(kv.block_bytes());
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int local = 0; local < kv.kv_heads; ++local) {
      // Rank r of R has the heads from H r / R on.
      const int head = part.kv_heads * part.shard.rank / part.shard.ranks + local;
      for (std::size_t byte = 0; byte < kv.piece_bytes(); ++byte) {
        block[kv.key_offset(0, layer, local) + byte] = byte_value(layer, 0, head, byte);
        block[kv.value_offset(0, layer, local) + byte] = byte_value(layer, 1, head, byte);
      }
    }
  }
  for (std::size_t byte = kv.id_offset(); byte < kv.block_bytes(); ++byte)
    block[byte] = byte_value(kLayers, 0, 0, byte - kv.id_offset());
  return block;
}

/// What the slices make of the blocks of `from` ranks. A byte that is written twice, or is none, fails.
std::vector<std::uint32_t> gathered_block(const KvPart& to, int from) {
  std::vector<std::uint32_t> block(to.shape.block_bytes());
  for (const KvSlice& slice : kv_slices(to, from)) {
    EXPECT_TRUE(slice.rank >= 0 && slice.rank < from);
    KvCache kv = to.shape;
    kv.kv_heads = 1;
    const std::vector<std::uint32_t> source = rank_block(rank_part(kv, to.kv_heads, {slice.rank, from}));
    EXPECT_EQ(kv_block_bytes(to, from), source.size());
    for (std::size_t row = 0; row < slice.rows; ++row) {
      for (std::size_t byte = 0; byte < slice.bytes; ++byte) {
        const std::size_t at = slice.to + row * slice.to_pitch + byte,
                          there = slice.from + row * slice.from_pitch + byte;
        if (at >= block.size() || there >= source.size() || block[at] != 0) {
          ADD_FAILURE() << "byte " << at << " of " << block.size() << " from " << there;
          return block;
        }
        block[at] = source[there];
      }
    }
  }
  return block;
}

TEST(KvSlices, EveryByteOfABlockComesFromARankThatHasIt) {
  for (const KvFormat format : {KvFormat::plain, KvFormat::int8}) {
    for (const bool more : {false, true}) {
      for (int heads = 1; heads <= 8; ++heads) {
        for (const int from : {1, 2, 4, 8}) {
          for (const int to : {1, 2, 4, 8}) {
            if (!divides_kv_heads(heads, from) || !divides_kv_heads(heads, to)) continue;
            for (int rank = 0; rank < to; ++rank) {
              const KvPart part = rank_part(slice_shape(format, more), heads, {rank, to});
              ASSERT_EQ(gathered_block(part, from), rank_block(part))
                  << heads << " heads, from " << from << " ranks to rank " << rank << " of " << to;
            }
          }
        }
      }
    }
  }
}

TEST(KvSlices, NumbersThatDoNotDivideEachOtherWorkAsWell) {
  for (int rank = 0; rank < 2; ++rank) {
    const KvPart part = rank_part(slice_shape(KvFormat::plain, true), 6, {rank, 2});
    EXPECT_EQ(gathered_block(part, 3), rank_block(part)) << "three heads from ranks of two";
  }
}

TEST(KvSlices, OneCopyWhereARankHasTheSameHeads) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const KvPart part = rank_part(slice_shape(KvFormat::plain, true), 4, {rank, ranks});
      EXPECT_EQ(kv_slices(part, ranks), (std::vector<KvSlice>{{rank, 0, 0, part.shape.block_bytes()}}));
    }
  }
  const KvPart part = rank_part(slice_shape(KvFormat::plain, false), 2, {1, 2});
  EXPECT_EQ(kv_slices(part, 8), (std::vector<KvSlice>{{4, 0, 0, part.shape.block_bytes()}}));
}

TEST(KvSlices, RanksShareOutTheReplicasOfAHead) {
  const auto rank_read = [](int heads, int rank, int ranks, int from) {
    return kv_slices(rank_part(slice_shape(KvFormat::plain, false), heads, {rank, ranks}), from).front().rank;
  };
  EXPECT_EQ(rank_read(1, 0, 2, 4), 0);
  EXPECT_EQ(rank_read(1, 1, 2, 4), 2);
  EXPECT_EQ(rank_read(2, 3, 4, 8), 6);
  EXPECT_EQ(rank_read(1, 3, 4, 2), 1);
}

TEST(KvSlices, AHeadsRowsAreAPitchApart) {
  // Heads 2 and 3 of four, from a rank that has all of them.
  const KvPart part = rank_part(slice_shape(KvFormat::plain, false), 4, {1, 2});
  const std::size_t piece = part.shape.piece_bytes();
  EXPECT_EQ(kv_slices(part, 1),
            (std::vector<KvSlice>{{0, 2 * piece, 0, 2 * piece, 2 * kLayers, 4 * piece, 2 * piece}}));
}

TEST(KvSlices, WhatCannotBeDivided) {
  EXPECT_TRUE(divides_kv_heads(4, 8));
  EXPECT_TRUE(divides_kv_heads(3, 3));
  EXPECT_FALSE(divides_kv_heads(3, 2));
  EXPECT_FALSE(divides_kv_heads(4, 0));
  EXPECT_FALSE(divides_kv_heads(1, kMostRanks + 1));
}

TEST(KvSlices, ASliceIsCopied) {
  const KvPart whole = rank_part(slice_shape(KvFormat::plain, true), 4, {0, 1});
  std::vector<std::byte> from(whole.shape.block_bytes());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761u >> 11);
  std::vector<std::byte> again(from.size());
  for (int rank = 0; rank < 2; ++rank) {
    const KvPart half = rank_part(whole.shape, 4, {rank, 2});
    std::vector<std::byte> there(half.shape.block_bytes());
    for (const KvSlice& slice : kv_slices(half, 1)) copy_slice(slice, from.data(), there.data());
    for (const KvSlice& slice : kv_slices(whole, 2)) {
      if (slice.rank == rank) copy_slice(slice, there.data(), again.data());
    }
  }
  EXPECT_EQ(again, from) << "to two ranks and back";
}

}  // namespace
}  // namespace troupe::model
