// Ranks that encode an item together, each a tower in this process: the bits of one rank, in whatever order
// their pieces run.
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "gpu/cpu.h"
#include "model/ranks/joint_work.h"
#include "model/support/random_tower.h"

namespace troupe::model {
namespace {

using test::RandomTower, test::kTower, test::kTowerHidden;

constexpr int kPatches = 26 * 22;

struct CutItem {
  MediaKind kind;
  PatchGrid grid;
  ItemCut with_two, with_four;
};

// 572 patches are five pieces of at most 128.
const CutItem kItems[] = {
    {MediaKind::image, {1, 26, 22}, ItemCut::rows, ItemCut::rows},
    {MediaKind::image, {1, 2, 2}, ItemCut::whole, ItemCut::whole},
    {MediaKind::image, {1, 4, 100}, ItemCut::rows, ItemCut::whole},
    {MediaKind::image, {1, 2, 130}, ItemCut::rows, ItemCut::whole},
    {MediaKind::image, {1, 26, 22}, ItemCut::rows, ItemCut::rows},
    {MediaKind::video, {2, 26, 22}, ItemCut::rows, ItemCut::rows},
    {MediaKind::video, {4, 2, 2}, ItemCut::frames, ItemCut::whole},
    {MediaKind::video, {6, 26, 20}, ItemCut::frames, ItemCut::rows},
    {MediaKind::video, {8, 4, 6}, ItemCut::frames, ItemCut::frames},
    {MediaKind::video, {18, 2, 4}, ItemCut::frames, ItemCut::frames},
};

/// Ranks with a device and a tower each, whose inboxes hold what must not matter.
class Together {
 public:
  Together(int ranks, DType dtype) {
    const std::size_t packed = packed_bytes(device_, frame_attention_of(kTower, dtype, kPatches));
    bytes_ = tower_inbox_bytes(kTowerHidden, dtype, kPatches, packed, ranks);
    for (int r = 0; r < ranks; ++r) {
      towers_.push_back(std::make_unique<RandomTower<Cpu>>(device_, dtype, kPatches));
      memory_.emplace_back(bytes_, std::byte{0xff});
      inboxes_.push_back(memory_.back().data());
    }
  }

  /// `seed`: of the order in which the ranks' pieces run.
  std::vector<std::vector<float>> encode(const CutItem& item, unsigned seed, ItemCut expected) {
    const int ranks = static_cast<int>(towers_.size());
    EXPECT_EQ(cut_of(item.grid, ranks, kernels::kFrameQueries), expected);
    const auto patches = test::random_patches(item.grid);
    std::vector<Buffer<Cpu>> outs;
    std::vector<int> sent(towers_.size(), 0);
    std::vector<bool> ended(towers_.size(), false);
    for (int r = 0; r < ranks; ++r) {
      auto& tower = *towers_[static_cast<std::size_t>(r)];
      outs.push_back(tower.room_for(item.grid));
      const Status begun = tower.tower().begin(
          item.kind, item.grid, patches, outs.back().data(),
          {.rank = r, .inboxes = inboxes_, .inbox_bytes = bytes_, .least_rows = kernels::kFrameQueries});
      EXPECT_TRUE(begun.ok()) << begun.message;
    }
    std::mt19937 random(seed);
    while (std::ranges::count(ended, true) < ranks) {
      const std::size_t r = random() % towers_.size();
      VisionTower<Cpu>& tower = towers_[r]->tower();
      const bool may = std::ranges::all_of(sent, [&](int n) { return n >= tower.exchanges(); });
      if (ended[r] || !may) continue;
      ended[r] = !tower.advance();
      sent[r] = tower.exchanges();
    }
    EXPECT_EQ(sent[0] > 0, expected != ItemCut::whole);
    std::vector<std::vector<float>> all;
    for (std::size_t r = 0; r < towers_.size(); ++r)
      all.push_back(towers_[r]->read(outs[r].data(), item.grid));
    return all;
  }
  void limit_attention(double operations) {
    for (const auto& tower : towers_) tower->tower().limit_attention(operations);
  }

 private:
  Cpu device_{{.threads = 2, .pin = false}};
  std::size_t bytes_ = 0;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> inboxes_;
  std::vector<std::unique_ptr<RandomTower<Cpu>>> towers_;
};

class ItemCuts : public ::testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(ItemCuts, HaveTheBitsOfOneRank) {
  const auto [ranks, dtype] = GetParam();
  Cpu device({.threads = 2, .pin = false});
  RandomTower<Cpu> one(device, dtype, kPatches);
  Together together(ranks, dtype);
  unsigned seed = 0;
  for (const CutItem& item : kItems) {
    const auto expected = one.encode(item.kind, item.grid);
    const ItemCut cut = ranks == 4   ? item.with_four
                        : ranks == 2 ? item.with_two
                                     : cut_of(item.grid, ranks, kernels::kFrameQueries);
    for (const double limit : {std::numeric_limits<double>::infinity(), 1.0}) {
      together.limit_attention(limit);
      const auto got = together.encode(item, ++seed, cut);
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(got[static_cast<std::size_t>(r)], expected)
            << "rank " << r << ", " << item.grid.frames << " × " << item.grid.rows << " × "
            << item.grid.columns;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ItemCuts, ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(DType::bf16, DType::f32)),
    [](const auto& info) {
      return std::to_string(std::get<0>(info.param)) + "_" + to_string(std::get<1>(info.param));
    });

TEST(ItemCut, SmallItemsStayWhole) {
  EXPECT_EQ(cut_of({1, 78, 138}, 1), ItemCut::whole);
  EXPECT_EQ(cut_of({1, 78, 138}, 2), ItemCut::rows);
  EXPECT_EQ(cut_of({1, 78, 138}, 8), ItemCut::rows);
  EXPECT_EQ(cut_of({1, 34, 46}, 2), ItemCut::whole) << "782 rows each";
  EXPECT_EQ(cut_of({2, 34, 46}, 2), ItemCut::whole) << "one pair of frames";
  EXPECT_EQ(cut_of({4, 34, 46}, 2), ItemCut::frames);
}

TEST(ItemCut, RowsAreWholeUnitsAndAllAreThere) {
  for (int rows = 4; rows < 3000; rows += 4) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RowRange own = rows_of_rank(rows, rank, ranks);
        ASSERT_EQ(own.first, next);
        ASSERT_TRUE(own.first % kernels::kFrameQueries == 0 || own.count == 0);
        ASSERT_LE(own.count, (rows / ranks / kernels::kFrameQueries + 2) * kernels::kFrameQueries);
        next += own.count;
      }
      ASSERT_EQ(next, rows);
    }
  }
}

// ---- What ranks tell each other

class JointWorkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto memory = create_rank_memory(kRanks);
    ASSERT_TRUE(memory.ok());
    memory_ = *memory;
    for (int r = 0; r < kRanks; ++r) {
      meetings_[r].emplace(*RankMeeting::attach(memory_, {r, kRanks}));
      ranks_[r].emplace(*meetings_[r]);
    }
  }
  void TearDown() override { ::close(memory_); }
  JointWork& rank(int r) { return *ranks_[r]; }

  static constexpr int kRanks = 3;
  using Way = JointWork::Way;
  int memory_ = -1;
  std::optional<RankMeeting> meetings_[kRanks];
  std::optional<JointWork> ranks_[kRanks];
};

TEST_F(JointWorkTest, AnItemBeginsWhenAllHaveComeToIt) {
  rank(0).begin(0, false);
  rank(1).begin(0, true);
  EXPECT_EQ(rank(0).way(), Way::open);
  rank(2).begin(0, false);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(rank(r).way(), Way::together) << "also for who has it";
  rank(1).sent(1);
  rank(2).sent(2);
  EXPECT_TRUE(rank(0).have_sent(1));
  EXPECT_FALSE(rank(0).have_sent(2));
  EXPECT_EQ(rank(2).way(), Way::together) << "asked late";
  EXPECT_FALSE(rank(1).have_sent(1));

  // Who has done with the item, because it has been dropped, keeps nobody waiting.
  rank(1).begin(1, false);
  EXPECT_TRUE(rank(0).have_sent(2));
  EXPECT_EQ(rank(1).way(), Way::open);
}

TEST_F(JointWorkTest, WhatAllHaveIsNotEncoded) {
  for (int r = 0; r < kRanks; ++r) rank(r).begin(7, true);
  EXPECT_EQ(rank(0).way(), Way::cached);
  rank(0).begin(8, false);
  EXPECT_EQ(rank(1).way(), Way::cached) << "rank 0 is ahead";
}

TEST_F(JointWorkTest, WhereARankTakesNoPartTheOthersAreAlone) {
  rank(0).begin(3, false);
  rank(1).begin(3, true);
  rank(2).refuse(3);
  EXPECT_EQ(rank(0).way(), Way::alone);
  EXPECT_EQ(rank(2).way(), Way::alone);
  EXPECT_EQ(rank(1).way(), Way::cached);
  rank(2).begin(5, false);
  EXPECT_EQ(rank(0).way(), Way::alone);
}

TEST_F(JointWorkTest, NumbersWrapAndEpochsDoNotMix) {
  constexpr std::uint32_t kLast = 0xffffff;
  for (int r = 0; r < kRanks; ++r) rank(r).begin(kLast, false);
  rank(0).begin(kLast + 1, false);
  EXPECT_EQ(rank(0).way(), Way::open);
  EXPECT_TRUE(rank(1).have_sent(0));
  rank(1).begin(kLast + 1, false);
  rank(2).begin(kLast + 1, false);
  EXPECT_EQ(rank(0).way(), Way::together);

  for (auto& meeting : meetings_) meeting->begin_epoch(2);
  rank(0).begin(0, false);
  EXPECT_EQ(rank(0).way(), Way::open) << "the others' notes are of the epoch before";
  EXPECT_FALSE(rank(0).have_sent(0));
  rank(1).begin(0, false);
  rank(2).begin(0, false);
  EXPECT_EQ(rank(0).way(), Way::together);
}

}  // namespace
}  // namespace troupe::model
