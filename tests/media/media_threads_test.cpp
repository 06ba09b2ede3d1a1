// From base64 to a place in the region, on threads.
#include "actors/media/media_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <semaphore>
#include <thread>

#include "actors/media/media_files.h"
#include "media/support/samples.h"
#include "support/base64.h"
#include "support/patience.h"
#include "support/picture_decoder.h"

namespace troupe {
namespace {

using testing::FakeDecoder;

std::string sample_in_base64(const char* name) {
  const auto bytes = media::testing::sample(name);
  return testing::base64_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

TEST(MeasuredFiles, HaveTheSizeThatTheirHeaderPromises) {
  const std::string text = sample_in_base64("jpeg_420.jpg");
  const MeasuredFile file = measure_file(text, {}, {}, {1, 2});
  ASSERT_TRUE(file.status.ok()) << file.status.message;
  EXPECT_EQ(file.bytes, media::testing::sample("jpeg_420.jpg").size());
  EXPECT_GT(file.grid.tokens(), 0);
  ASSERT_TRUE(file.file && ipc::map_constant_file(file.file->get()).ok()) << "nobody can change it";
  EXPECT_EQ(measure_file(text, {}, {}, {1, 2}).contents, file.contents);
  EXPECT_NE(measure_file(text, {}, {}, {1, 3}).contents, file.contents);
  EXPECT_NE(measure_file(sample_in_base64("jpeg_444.jpg"), {}, {}, {1, 2}).contents, file.contents);
  const PixelLimits low{.min_pixels = 4 * 28 * 28, .max_pixels = 8 * 28 * 28};
  const MeasuredFile small = measure_file(text, low, {}, {1, 2});
  EXPECT_TRUE(small.grid.tokens() >= 4 && small.grid.tokens() <= 8) << small.grid.tokens();
}

TEST(MeasuredFiles, RefusalsContinueTheNameOfTheField) {
  const auto refusal = [](std::string_view text, const media::PictureBounds& bounds = {}) {
    return measure_file(text, {}, bounds, {}).status;
  };
  Status status = refusal("iVBO*w0KGgo");
  EXPECT_EQ(status.message, "is not base64 at offset 4: '*' is not allowed there");
  EXPECT_EQ(status.reason, "invalid_image");
  EXPECT_EQ(refusal("aGVsbG8=").reason, "invalid_image");
  EXPECT_EQ(refusal(sample_in_base64("jpeg_420.jpg"), {.pixels = 10}).reason, "image_too_large");
  EXPECT_EQ(refusal(sample_in_base64("jpeg_420.jpg"), {.bytes = 10}).reason, "image_too_large");
}

TEST(MeasuredFiles, ContentsAreKindGridAndBytes) {
  const std::string bytes(588 * 8, 'x');
  const auto view = std::as_bytes(std::span(bytes));
  const BlockHash name = contents_of(MediaKind::image, {1, 2, 4}, view, {1, 2});
  EXPECT_EQ(contents_of(MediaKind::image, {1, 2, 4}, view, {1, 2}), name);
  EXPECT_NE(contents_of(MediaKind::video, {1, 2, 4}, view, {1, 2}), name);
  EXPECT_NE(contents_of(MediaKind::image, {1, 4, 2}, view, {1, 2}), name);
  EXPECT_NE(contents_of(MediaKind::image, {1, 2, 4}, view, {1, 3}), name);
  const std::string others(588 * 8, 'y');
  EXPECT_NE(contents_of(MediaKind::image, {1, 2, 4}, std::as_bytes(std::span(others)), {1, 2}), name);
}

class MediaThreadsTest : public ::testing::Test {
 protected:
  void start(int decoders = 1, std::uint64_t region_bytes = 1 << 20) {
    auto fd = ipc::PatchRegion::create(region_bytes);
    ASSERT_TRUE(fd.ok());
    auto writer = ipc::PatchWriter::attach(fd->get());
    auto reader = ipc::PatchRegion::attach(fd->get());
    ASSERT_TRUE(writer.ok() && reader.ok());
    region_ = std::make_shared<ipc::PatchWriter>(*std::move(writer));
    reader_ = std::make_unique<ipc::PatchRegion>(*std::move(reader));
    MediaThreadsSetup setup;
    setup.decoders = decoders;
    setup.make_decoder = [shared = decoder_](const Log&) { return std::make_unique<FakeDecoder>(shared); };
    setup.region = region_;
    setup.contents_key = {5, 6};
    threads_ = std::make_unique<MediaThreads>(setup, [this] { ++notified_; });
    file_ = measure_file(sample_in_base64("jpeg_420.jpg"), {}, {}, {1, 2}).file;
  }

  /// Waits until so many outcomes have come in all.
  void await(std::size_t count) {
    const TimePoint end = Clock::now() + test::kPatience;
    while (outcomes_.measured.size() + outcomes_.prepared.size() < count && Clock::now() < end) {
      MediaOutcomes more = threads_->take();
      for (auto& one : more.measured) outcomes_.measured.push_back(std::move(one));
      for (auto& one : more.prepared) outcomes_.prepared.push_back(std::move(one));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(outcomes_.measured.size() + outcomes_.prepared.size(), count);
  }

  std::shared_ptr<FakeDecoder::Shared> decoder_ = std::make_shared<FakeDecoder::Shared>();
  std::shared_ptr<ipc::PatchWriter> region_;
  std::unique_ptr<ipc::PatchRegion> reader_;
  std::atomic<int> notified_{0};
  MediaFile file_;
  MediaOutcomes outcomes_;
  std::unique_ptr<MediaThreads> threads_;
};

TEST_F(MediaThreadsTest, AFileIsMeasuredAndAPictureGetsItsPlace) {
  start();
  threads_->measure({7, sample_in_base64("png_rgb.png"), {}});
  threads_->prepare({8, {0, 1}, file_, {}});
  await(2);
  EXPECT_GE(notified_, 1);
  EXPECT_EQ(outcomes_.measured.at(0).first, 7u);
  EXPECT_TRUE(outcomes_.measured[0].second.status.ok());
  const PreparedPatches& patches = outcomes_.prepared.at(0).second;
  ASSERT_TRUE(patches.status.ok()) << patches.status.message;
  const auto item = reader_->find(patches.place);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->grid, decoder_->grid);
  EXPECT_EQ(contents_of(MediaKind::image, item->grid, item->patches, {5, 6}), patches.contents);
  threads_->remove(patches.place);
  const TimePoint end = Clock::now() + test::kPatience;
  while (reader_->holds(patches.place) && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(reader_->find(patches.place));
}

TEST_F(MediaThreadsTest, ARefusalOfTheDecoderAndAFullRegionAreTold) {
  start(1, 4096);
  threads_->prepare({1, {0, 1}, file_, {}});
  await(1);
  EXPECT_EQ(outcomes_.prepared[0].second.status.code, Code::unavailable);
  decoder_->outcome = [] { return invalid("is damaged", {}, "invalid_image"); };
  threads_->prepare({2, {0, 1}, file_, {}});
  await(2);
  EXPECT_EQ(outcomes_.prepared[1].second.status.message, "is damaged");
  EXPECT_EQ(region_->used(), 0u);
}

TEST_F(MediaThreadsTest, ADroppedPictureIsNotDecodedAndIsAnsweredAllTheSame) {
  std::atomic<bool> go{false};
  decoder_->outcome = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  };
  start();
  threads_->prepare({1, {0, 1}, file_, {}});
  while (decoder_->asked == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  threads_->prepare({2, {0, 1}, file_, {}});
  threads_->drop(1);  // has begun
  threads_->drop(2);
  await(1);
  EXPECT_EQ(outcomes_.prepared[0].first, 2u);
  EXPECT_EQ(outcomes_.prepared[0].second.status.code, Code::cancelled);
  go = true;
  await(2);
  EXPECT_EQ(outcomes_.prepared[1].first, 1u);
  EXPECT_TRUE(outcomes_.prepared[1].second.status.ok());
  EXPECT_EQ(decoder_->asked, 1);
}

TEST_F(MediaThreadsTest, ARequestWithOnePictureDoesNotWaitForOneWithMany) {
  std::counting_semaphore<> go(0);  // pictures that may be finished
  decoder_->outcome = [&] {
    go.acquire();
    return Status();
  };
  const auto await_asked = [&](int count) {
    while (decoder_->asked < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto prepare = [&](std::uint64_t ticket, std::uint64_t exchange) {
    threads_->prepare({ticket, {0, exchange}, file_, {.max_pixels = static_cast<std::int64_t>(ticket)}});
  };
  start(2);
  prepare(1, 1);
  prepare(2, 1);
  await_asked(2);
  prepare(3, 1);
  prepare(4, 2);
  go.release();
  await_asked(3);
  EXPECT_EQ(decoder_->limit, 4) << "the other request has none at work";
  go.release(100);
  await(4);
}

TEST_F(MediaThreadsTest, TheEndDoesNotWaitForWork) {
  decoder_->outcome = [&] {
    while (!decoder_->given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return failure(Code::unavailable, "is not decoded");
  };
  start();
  for (std::uint64_t ticket = 1; ticket < 5; ++ticket) threads_->prepare({ticket, {0, 1}, file_, {}});
  threads_.reset();
  EXPECT_LE(decoder_->asked, 1);
}

}  // namespace
}  // namespace troupe
