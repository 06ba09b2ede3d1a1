// Patches of images in shared memory: what a worker may use of them when the front removes items or is
// replaced.
#include "ipc/patch_region.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>
#include <vector>

#include "ipc/patch_writer.h"

namespace troupe::ipc {
namespace {

constexpr std::uint64_t kPage = PatchRegion::kAlignment;
constexpr PatchGrid kSmall{1, 2, 2};  // one page
constexpr PatchGrid kLarge{1, 4, 4};  // three pages

std::vector<std::byte> patches_of(const PatchGrid& grid, int value) {
  return std::vector<std::byte>(static_cast<std::size_t>(grid.patches()) * kPatchBytes, std::byte(value));
}

class PatchRegionTest : public ::testing::Test {
 protected:
  PatchWriter writer() {
    auto made = PatchWriter::attach(fd_.get());
    EXPECT_TRUE(made.ok()) << made.status().message;
    return std::move(*made);
  }
  PatchRegion reader() {
    auto made = PatchRegion::attach(fd_.get());
    EXPECT_TRUE(made.ok()) << made.status().message;
    return std::move(*made);
  }
  static PatchPlace add(PatchWriter& writer, const PatchGrid& grid, int value) {
    const auto place = writer.add(MediaKind::image, grid, patches_of(grid, value));
    EXPECT_TRUE(place.ok()) << place.status().message;
    return place.ok() ? *place : PatchPlace{};
  }
  std::uint64_t resident() const {
    struct stat stat {};
    EXPECT_EQ(fstat(fd_.get(), &stat), 0);
    return static_cast<std::uint64_t>(stat.st_blocks) * 512;
  }

  Fd fd_ = *PatchRegion::create(4 * kPage);
};

TEST_F(PatchRegionTest, AReaderFindsWhatWasWritten) {
  PatchWriter writer = this->writer();
  const PatchRegion reader = this->reader();
  const auto place = writer.add(MediaKind::video, {2, 2, 4}, patches_of({2, 2, 4}, 9));
  ASSERT_TRUE(place.ok());
  const auto item = reader.find(*place);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->kind, MediaKind::video);
  EXPECT_EQ(item->grid, (PatchGrid{2, 2, 4}));
  EXPECT_EQ(std::vector(item->patches.begin(), item->patches.end()), patches_of({2, 2, 4}, 9));
  EXPECT_TRUE(reader.holds(*place));
}

TEST_F(PatchRegionTest, AReaderHearsThatAnItemWentWhileItWasRead) {
  PatchWriter writer = this->writer();
  const PatchRegion reader = this->reader();
  const PatchPlace first = add(writer, kSmall, 1);
  ASSERT_TRUE(reader.find(first));
  writer.remove(first);
  EXPECT_FALSE(reader.holds(first));
  EXPECT_FALSE(reader.find(first));
  const PatchPlace second = add(writer, kSmall, 2);
  EXPECT_EQ(second.offset, first.offset);
  EXPECT_FALSE(reader.holds(first));
  EXPECT_FALSE(reader.find(first));
  writer.remove(first);  // which is another item's place by now
  EXPECT_TRUE(reader.holds(second));
}

TEST_F(PatchRegionTest, TheItemsOfAnEarlierWriterAreGone) {
  PatchWriter writer = this->writer();
  const PatchRegion reader = this->reader();
  const PatchPlace first = add(writer, kSmall, 1);
  PatchWriter next = this->writer();
  EXPECT_FALSE(reader.holds(first));
  EXPECT_FALSE(reader.find(first));
  EXPECT_EQ(next.used(), 0u);
  const PatchPlace second = add(next, kSmall, 2);
  EXPECT_NE(second.generation, first.generation);
  EXPECT_TRUE(reader.holds(second));
}

TEST_F(PatchRegionTest, MemoryIsBoundedAndGivenBack) {
  PatchWriter writer = this->writer();
  EXPECT_EQ(writer.capacity(), 4 * kPage);
  const PatchPlace large = add(writer, kLarge, 1);
  EXPECT_EQ(writer.used(), 3 * kPage);
  const auto refused = writer.add(MediaKind::image, kLarge, patches_of(kLarge, 2));
  EXPECT_EQ(refused.status().code, Code::unavailable);
  EXPECT_NE(refused.status().message.find("12288"), std::string::npos) << refused.status().message;
  const std::uint64_t before = resident();
  writer.remove(large);
  EXPECT_EQ(writer.used(), 0u);
  EXPECT_LE(resident() + 3 * kPage, before);
}

TEST_F(PatchRegionTest, FreePiecesAreJoinedAndTheShortestIsTaken) {
  PatchWriter writer = this->writer();
  std::vector<PatchPlace> places;
  for (int i = 0; i < 4; ++i) places.push_back(add(writer, kSmall, i));
  writer.remove(places[0]);
  writer.remove(places[2]);
  EXPECT_EQ(writer.add(MediaKind::image, kLarge, patches_of(kLarge, 1)).status().code, Code::unavailable);
  writer.remove(places[1]);  // now the first three pages are one piece
  const PatchPlace large = add(writer, kLarge, 5);
  EXPECT_EQ(large.offset, places[0].offset);
  writer.remove(large);
  writer.remove(places[3]);
  const PatchPlace small = add(writer, kSmall, 6);
  writer.remove(add(writer, kLarge, 7));
  EXPECT_EQ(small.offset, kPage);
}

TEST_F(PatchRegionTest, RandomItemsNeverOverlap) {
  fd_ = *PatchRegion::create(64 * kPage);
  PatchWriter writer = this->writer();
  const PatchRegion reader = this->reader();
  std::mt19937 draw(7);
  std::vector<std::pair<PatchPlace, int>> items;
  for (int i = 0; i < 4000; ++i) {
    if (!items.empty() && draw() % 2 == 0) {
      std::swap(items[draw() % items.size()], items.back());
      writer.remove(items.back().first);
      items.pop_back();
      continue;
    }
    const PatchGrid grid{1, 2 * std::int32_t(1 + draw() % 4), 2 * std::int32_t(1 + draw() % 4)};
    const int value = static_cast<int>(draw() % 256);
    if (const auto place = writer.add(MediaKind::image, grid, patches_of(grid, value)); place.ok()) {
      items.emplace_back(*place, value);
    }
    for (const auto& [place, expected] : items) {
      const auto item = reader.find(place);
      ASSERT_TRUE(item);
      ASSERT_EQ(item->patches.front(), std::byte(expected));
      ASSERT_EQ(item->patches.back(), std::byte(expected));
    }
  }
  for (const auto& [place, value] : items) writer.remove(place);
  EXPECT_EQ(writer.used(), 0u);
  EXPECT_TRUE(writer.add(MediaKind::image, {1, 2, 216}, patches_of({1, 2, 216}, 1)).ok())
      << "one free piece again";
}

TEST_F(PatchRegionTest, PlacesThatAreNoneAreNotFound) {
  PatchWriter writer = this->writer();
  const PatchRegion reader = this->reader();
  const PatchPlace place = add(writer, kSmall, 1);
  for (const PatchPlace& other :
       {PatchPlace{}, PatchPlace{0, place.generation}, PatchPlace{place.offset + 1, place.generation},
        PatchPlace{place.offset, place.generation + 1}, PatchPlace{kPage * 100, place.generation},
        PatchPlace{UINT64_MAX - kPage + 1, place.generation}}) {
    EXPECT_FALSE(reader.find(other)) << other.offset;
    EXPECT_FALSE(reader.holds(other)) << other.offset;
  }
}

TEST(PatchRegion, OnlyRegionsAreAttached) {
  EXPECT_FALSE(PatchRegion::create(0).ok());
  const Fd other = *make_memory_file("other", 3 * kPage);
  EXPECT_EQ(PatchRegion::attach(other.get()).status().code, Code::invalid_argument);
  const Fd region = *PatchRegion::create(1);
  EXPECT_TRUE(PatchRegion::attach(region.get()).ok());
}

}  // namespace
}  // namespace troupe::ipc
