// From base64 to a place in the region, on threads.
#include "actors/media/media_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
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
using testing::FakeVideoDecoder;

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
  ASSERT_EQ(file.files.size(), 1u);
  ASSERT_TRUE(ipc::map_constant_file(file.files[0]->get()).ok()) << "nobody can change it";
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
  void start(int decoders = 1, std::uint64_t region_bytes = 64 << 20) {
    auto fd = ipc::PatchRegion::create(region_bytes);
    ASSERT_TRUE(fd.ok());
    auto writer = ipc::PatchWriter::attach(fd->get());
    auto reader = ipc::PatchRegion::attach(fd->get());
    ASSERT_TRUE(writer.ok() && reader.ok());
    region_ = std::make_shared<ipc::PatchWriter>(*std::move(writer));
    reader_ = std::make_unique<ipc::PatchRegion>(*std::move(reader));
    MediaThreadsSetup setup;
    setup.decoders = decoders;
    setup.make_decoder = [shared = decoder_](std::size_t, const Log&) {
      return std::make_unique<FakeDecoder>(shared);
    };
    setup.make_video_decoder = [shared = video_](std::size_t, const Log&) {
      return std::make_unique<FakeVideoDecoder>(shared);
    };
    setup.fetch = [this](const std::string& url, const std::atomic<bool>& give_up) -> Result<ipc::Fd> {
      if (url.ends_with("/slow")) {
        ++slow_asked_;
        while (!hosts_answer_ && !give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (url != "https://example.com/a")
        return invalid("is a URL that is not fetched", {}, "url_not_allowed");
      return ipc::make_constant_file("fetched", fetched_);
    };
    setup.region = region_;
    setup.contents_key = {5, 6};
    threads_ = std::make_unique<MediaThreads>(setup, [this] { ++notified_; });
    file_ = measure_file(sample_in_base64("jpeg_420.jpg"), {}, {}, {1, 2}).files.at(0);
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

  static http::MediaSource source(std::string base64, MediaKind kind = MediaKind::image) {
    http::MediaSource out;
    out.kind = kind;
    out.file = std::move(base64);
    return out;
  }
  PrepareWork picture(std::uint64_t ticket, std::uint64_t exchange) const {
    return {ticket, {0, exchange}, MediaKind::image, {file_}};
  }

  std::shared_ptr<FakeDecoder::Shared> decoder_ = std::make_shared<FakeDecoder::Shared>();
  std::shared_ptr<FakeVideoDecoder::Shared> video_ = std::make_shared<FakeVideoDecoder::Shared>();
  std::string fetched_;
  std::atomic<bool> hosts_answer_{false};  // slow ones
  std::atomic<int> slow_asked_{0};
  std::shared_ptr<ipc::PatchWriter> region_;
  std::unique_ptr<ipc::PatchRegion> reader_;
  std::atomic<int> notified_{0};
  MediaFile file_;
  MediaOutcomes outcomes_;
  std::unique_ptr<MediaThreads> threads_;
};

// A request whose hosts are slow has some of the threads that fetch, and never all.
TEST_F(MediaThreadsTest, AnotherRequestsUrlsAreFetchedBesideSlowOnes) {
  fetched_ = "no picture";
  start();
  http::MediaSource slow = source({}), quick = source({});
  slow.url = "https://example.com/slow";
  quick.url = "https://example.com/a";
  for (std::uint64_t ticket = 1; ticket <= 50; ++ticket) threads_->measure({ticket, slow, {0, 1}});
  threads_->measure({99, quick, {0, 2}});
  await(1);
  EXPECT_EQ(outcomes_.measured.at(0).first, 99u);
  EXPECT_LE(slow_asked_, 16 / 4);
  hosts_answer_ = true;
  await(51);
}

TEST_F(MediaThreadsTest, AFileIsMeasuredAndAPictureGetsItsPlace) {
  start();
  threads_->measure({7, source(sample_in_base64("png_rgb.png"))});
  threads_->prepare(picture(8, 1));
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
  threads_->prepare(picture(1, 1));
  await(1);
  EXPECT_EQ(outcomes_.prepared[0].second.status.code, Code::unavailable);
  decoder_->outcome = [] { return invalid("is damaged", {}, "invalid_image"); };
  threads_->prepare(picture(2, 1));
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
  threads_->prepare(picture(1, 1));
  while (decoder_->asked == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  threads_->prepare(picture(2, 1));
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
    PrepareWork work = picture(ticket, exchange);
    work.limits.max_pixels = static_cast<std::int64_t>(ticket);
    threads_->prepare(std::move(work));
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
  for (std::uint64_t ticket = 1; ticket < 5; ++ticket) threads_->prepare(picture(ticket, 1));
  threads_.reset();
  EXPECT_LE(decoder_->asked, 1);
}

TEST_F(MediaThreadsTest, WhatAUrlHasIsMeasuredAsIfItHadBeenSent) {
  start();
  const auto bytes = media::testing::sample("png_rgb.png");
  fetched_.assign(bytes.begin(), bytes.end());
  http::MediaSource url = source({});
  url.url = "https://example.com/a";
  threads_->measure({1, url});
  threads_->measure({2, source(sample_in_base64("png_rgb.png"))});
  await(2);
  const MeasuredFile &first = outcomes_.measured[0].second, &second = outcomes_.measured[1].second;
  ASSERT_TRUE(first.status.ok() && second.status.ok());
  EXPECT_EQ(first.contents, second.contents);
  EXPECT_EQ(first.grid, second.grid);
  url.url = "https://example.com/b";
  threads_->measure({3, url});
  await(3);
  EXPECT_EQ(outcomes_.measured[2].second.status.reason, "url_not_allowed");
}

TEST_F(MediaThreadsTest, AVideoIsProbedThenDecoded) {
  start();
  threads_->measure({1, source("AAAA", MediaKind::video)});
  await(1);
  MeasuredFile& file = outcomes_.measured[0].second;
  ASSERT_TRUE(file.status.ok()) << file.status.message;
  EXPECT_EQ(file.grid.frames, 16);
  EXPECT_EQ(file.video.frames, video_->facts.frames);
  threads_->prepare({2, {0, 1}, MediaKind::video, file.files, file.video, kVideoPixels, {}});
  await(2);
  const PreparedPatches& patches = outcomes_.prepared.at(0).second;
  ASSERT_TRUE(patches.status.ok()) << patches.status.message;
  const auto item = reader_->find(patches.place);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->kind, MediaKind::video);
  EXPECT_EQ(decoder_->asked, 0) << "no process for pictures sees it";
}

// What the frames of a video are is known while another one is decoded.
TEST_F(MediaThreadsTest, AVideoIsProbedBesideOneThatIsDecoded) {
  std::atomic<bool> go{false};
  video_->outcome = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  };
  start();
  for (std::uint64_t ticket = 1; ticket < 4; ++ticket)
    threads_->prepare({ticket, {0, ticket}, MediaKind::video, {file_}, video_->facts, kVideoPixels, {}});
  threads_->measure({9, source("AAAA", MediaKind::video)});
  await(1);
  EXPECT_EQ(outcomes_.measured.size(), 1u);
  go = true;
  await(4);
  EXPECT_EQ(video_->most_at_once, 1);
}

TEST_F(MediaThreadsTest, FramesThatArePicturesBecomeOneVideo) {
  start();
  http::MediaSource frames = source({}, MediaKind::video);
  frames.frames.assign(3, sample_in_base64("png_rgb.png"));
  threads_->measure({1, frames});
  await(1);
  MeasuredFile& file = outcomes_.measured[0].second;
  ASSERT_TRUE(file.status.ok()) << file.status.message;
  EXPECT_EQ(file.grid.frames, 4) << "the last counts twice";
  threads_->prepare({2, {0, 1}, MediaKind::video, file.files, {}, {}, {}});
  await(2);
  const auto item = reader_->find(outcomes_.prepared.at(0).second.place);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->grid, (PatchGrid{4, decoder_->grid.rows, decoder_->grid.columns}));
  const auto frame = item->patches.size() / 4;
  EXPECT_TRUE(std::ranges::equal(item->patches.subspan(2 * frame, frame), item->patches.subspan(3 * frame)));
  EXPECT_FALSE(
      std::ranges::equal(item->patches.subspan(frame, frame), item->patches.subspan(2 * frame, frame)));

  frames.frames[1] = sample_in_base64("one_by_400.png");
  threads_->measure({3, frames});
  await(3);
  EXPECT_EQ(outcomes_.measured[1].second.status.message,
            "has a frame, number 1, that has another size than the first");
  frames.frames[1] = "AA!A";
  threads_->measure({4, frames});
  await(4);
  EXPECT_EQ(outcomes_.measured[2].second.status.reason, "invalid_image");
}

}  // namespace
}  // namespace troupe
