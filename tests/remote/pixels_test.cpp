// Items go from one region to another through frames: whole or not at all, once, and back to the system when
// they have gone at the front.
#include "actors/remote/pixels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "actors/remote/frames.h"

namespace troupe::remote {
namespace {

constexpr std::uint64_t kRegionBytes = 16u << 20;

class PixelsTest : public ::testing::Test {
 protected:
  struct Side {
    ipc::Fd fd = *ipc::PatchRegion::create(kRegionBytes);
    ipc::PatchWriter writer = *ipc::PatchWriter::attach(fd.get());
    std::shared_ptr<const ipc::PatchRegion> region =
        std::make_shared<ipc::PatchRegion>(*ipc::PatchRegion::attach(fd.get()));
  };

  explicit PixelsTest(std::uint64_t most = kRegionBytes) {
    store_ = std::make_shared<PixelStore>(*ipc::PatchWriter::attach(far_.get()), most);
    sink_ = std::make_unique<PixelSink>(store_);
    source_ = std::make_unique<PixelSource>(near_.region);
  }

  static std::vector<std::byte> patches_of(const PatchGrid& grid, unsigned seed) {
    std::vector<std::byte> patches(static_cast<std::size_t>(grid.patches()) * kPatchBytes);
    for (std::size_t i = 0; i < patches.size(); ++i)
      patches[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 16);
    return patches;
  }
  wire::PatchPlace add(const PatchGrid& grid, unsigned seed) {
    return *near_.writer.add(MediaKind::image, grid, patches_of(grid, seed));
  }
  static Submit request(std::initializer_list<wire::PatchPlace> places) {
    Submit made;
    SequenceSpec& sequence = made.sequences.emplace_back();
    for (const wire::PatchPlace& place : places) sequence.media.emplace_back().place = place;
    return made;
  }
  /// What the relay beside the front sends arrives at the one beside the engine. False: it was refused.
  bool carry() {
    FrameReader reader;
    bool good = true;
    for (std::size_t at = 0; at < out_.size();) {
      const auto room = reader.room();
      const std::size_t count = std::min(room.size(), out_.size() - at);
      std::memcpy(room.data(), out_.data() + at, count);
      reader.filled(count);
      at += count;
      Frame frame;
      FrameReader::Got got;
      while ((got = reader.next(false, frame)) == FrameReader::Got::frame) {
        ++frames_;
        good = good && (frame.kind == FrameKind::pixels ? sink_->take_pixels(frame.payload)
                                                        : sink_->take_gone(frame.payload));
      }
      good = good && got != FrameReader::Got::bad;
    }
    out_.clear();
    return good;
  }
  bool send(const Submit& submit) {
    return source_->put_items(submit, out_, [this] { return carry(); }) && carry();
  }
  /// The item at the engine to which a place of the front leads.
  std::optional<ipc::PatchRegion::Item> found(const wire::PatchPlace& place) {
    Submit here = request({place});
    EXPECT_TRUE(sink_->translate(here));
    return far_region_.find(here.sequences[0].media[0].place);
  }
  static bool shows(const std::optional<ipc::PatchRegion::Item>& item, const PatchGrid& grid, unsigned seed) {
    const auto expected = patches_of(grid, seed);
    return item && item->grid == grid && item->kind == MediaKind::image &&
           std::equal(item->patches.begin(), item->patches.end(), expected.begin(), expected.end());
  }

  Side near_;
  ipc::Fd far_ = *ipc::PatchRegion::create(kRegionBytes);
  ipc::PatchRegion far_region_ = *ipc::PatchRegion::attach(far_.get());
  std::shared_ptr<PixelStore> store_;
  std::unique_ptr<PixelSink> sink_;
  std::unique_ptr<PixelSource> source_;
  std::vector<std::byte> out_;
  int frames_ = 0;
};

class FewPixelsTest : public PixelsTest {
 protected:
  FewPixelsTest() : PixelsTest(1 << 20) {}
};

const PatchGrid kSmall{1, 4, 4}, kLarge{1, 100, 80};  // of 9 KiB, and of 4.5 MiB

TEST_F(PixelsTest, ItemsArriveWholeHoweverManyFramesTheyTake) {
  const auto small = add(kSmall, 1), large = add(kLarge, 2);
  ASSERT_TRUE(send(request({small, large})));
  EXPECT_TRUE(shows(found(small), kSmall, 1));
  EXPECT_TRUE(shows(found(large), kLarge, 2));
  EXPECT_EQ(frames_, 1 + 5);
}

TEST_F(PixelsTest, AnItemIsSentOnceForAllRequests) {
  const auto small = add(kSmall, 1);
  ASSERT_TRUE(send(request({small, small})) && send(request({small})));
  EXPECT_EQ(frames_, 1);
  source_->restart();  // another connection
  sink_->clear();
  EXPECT_EQ(store_->used(), 0u);
  EXPECT_FALSE(found(small));
  ASSERT_TRUE(send(request({small})));
  EXPECT_TRUE(shows(found(small), kSmall, 1));
}

TEST_F(PixelsTest, WhatHasGoneAtTheFrontGoesAtTheEngineAndItsPlaceMeansTheNextItem) {
  const auto first = add(kSmall, 1);
  ASSERT_TRUE(send(request({first})));
  near_.writer.remove(first);
  const auto second = add(kSmall, 2);
  ASSERT_EQ(second.offset, first.offset);
  ASSERT_TRUE(send(request({second})));
  EXPECT_FALSE(found(first));
  EXPECT_TRUE(shows(found(second), kSmall, 2));
  near_.writer.remove(second);
  source_->put_gone(out_);
  ASSERT_TRUE(carry());
  EXPECT_FALSE(found(second));
  EXPECT_EQ(store_->used(), 0u);
}

TEST_F(PixelsTest, AnItemThatIsRemovedWhileItIsSentNeverGetsWhole) {
  const auto large = add(kLarge, 1);
  int pieces = 0;
  ASSERT_TRUE(source_->put_items(request({large}), out_, [&] {
    if (++pieces == 2) near_.writer.remove(large);
    return carry();
  }));
  EXPECT_EQ(pieces, 2);
  EXPECT_FALSE(found(large));
  const auto next = add(kLarge, 2);
  ASSERT_TRUE(send(request({next})));
  EXPECT_FALSE(found(large));
  EXPECT_TRUE(shows(found(next), kLarge, 2));
  EXPECT_EQ(store_->used(), ipc::PatchRegion::bytes_of(kLarge));
}

TEST_F(PixelsTest, AnItemThatIsNotThereAnyMoreIsNoErrorOfTheFront) {
  const auto gone = add(kSmall, 1);
  near_.writer.remove(gone);
  ASSERT_TRUE(send(request({gone})));
  EXPECT_FALSE(found(gone));
  EXPECT_EQ(frames_, 0);
}

TEST_F(FewPixelsTest, AnItemWithoutRoomIsDroppedAndHoldsUpNoOther) {
  const auto large = add(kLarge, 1), small = add(kSmall, 2);
  ASSERT_TRUE(send(request({large, small})));
  EXPECT_FALSE(found(large));
  EXPECT_TRUE(shows(found(small), kSmall, 2));
  EXPECT_EQ(store_->used(), ipc::PatchRegion::bytes_of(kSmall));
}

TEST_F(PixelsTest, WhatAFrontMayNotSendIsRefused) {
  const auto payload = [](const PixelPiece& piece, std::size_t bytes) {
    std::vector<std::byte> made(sizeof piece + bytes);
    std::memcpy(made.data(), &piece, sizeof piece);
    return made;
  };
  const auto bytes = static_cast<std::size_t>(kSmall.patches()) * kPatchBytes;
  const PixelPiece good{{4096, 1}, 0, MediaKind::image, {}, kSmall};
  PixelPiece late = good, overflowing = good, strange = good, placeless = good;
  late.first = 8;
  overflowing.grid = {1 << 20, 1 << 20, 1 << 20};
  strange.kind = static_cast<MediaKind>(9);
  placeless.place.generation = 0;
  for (const PixelPiece& piece : {late, overflowing, strange, placeless})
    EXPECT_FALSE(sink_->take_pixels(payload(piece, 8)));
  EXPECT_FALSE(sink_->take_pixels(payload(good, bytes + 1))) << "more than the grid has";
  sink_->clear();
  EXPECT_FALSE(sink_->take_pixels(payload(good, 0)));
  EXPECT_TRUE(sink_->take_pixels(payload(good, bytes)));
  EXPECT_FALSE(sink_->take_pixels(payload(good, bytes))) << "it is there";
  const wire::PatchPlace unknown{8192, 3};
  EXPECT_FALSE(sink_->take_gone(std::as_bytes(std::span(&unknown, 1))));
  PixelSink blind(nullptr);
  EXPECT_FALSE(blind.take_pixels(payload(good, bytes)));
}

}  // namespace
}  // namespace troupe::remote
