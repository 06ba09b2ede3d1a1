// Which frames are taken, what is drawn into them, and that each codec's frames are the right ones, behind
// the filter of system calls, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "actors/media/media_process.h"
#include "ipc/memory_file.h"
#include "media/prepare.h"
#include "media/resize/patches.h"
#include "media/support/kept_process.h"
#include "media/support/samples.h"
#include "media/video/decode_video.h"
#include "media/video/sampling.h"
#include "media/video/stamp.h"

namespace troupe {
namespace {

using media::Picture;
using media::VideoFacts;
using media::testing::Buffer;

Buffer video(const std::string& name) {
  std::ifstream file(std::string(TROUPE_TEST_DATA) + "/videos/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json expected(const char* key) {
  std::ifstream file(std::string(TROUPE_TEST_DATA) + "/videos/expected.json");
  return nlohmann::json::parse(file)[key];
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  const nlohmann::json videos = expected("videos");
  for (const auto& [name, value] : videos.items()) out.push_back(name);
  return out;
}

VideoFacts facts_of(std::int32_t frames, double rate) { return {640, 480, frames, rate}; }

std::vector<std::int32_t> taken(const VideoFacts& facts, const VideoSampling& sampling = {}) {
  auto frames = media::sampled_frames(facts, sampling);
  EXPECT_TRUE(frames.ok());
  return frames.ok() ? *frames : std::vector<std::int32_t>();
}

// numpy: around(arange(0, 300/25, 1/2) * 25)
TEST(VideoSampling, ARateWithinTheLimitsIsKept) {
  const auto frames = taken(facts_of(300, 25));
  EXPECT_EQ(frames.size(), 24u);
  EXPECT_EQ(std::vector(frames.begin(), frames.begin() + 5), (std::vector<std::int32_t>{0, 12, 25, 38, 50}));
  EXPECT_EQ(frames.back(), 288);
}

// numpy: linspace(0, 100, 17).astype(int)
TEST(VideoSampling, AShortVideoIsSpreadOverTheFewestFrames) {
  EXPECT_EQ(taken(facts_of(100, 25)),
            (std::vector<std::int32_t>{0, 6, 12, 18, 25, 31, 37, 43, 50, 56, 62, 68, 75, 81, 87, 93}));
}

TEST(VideoSampling, ALongVideoIsSpreadOverTheMostFrames) {
  const auto frames = taken(facts_of(9000, 30));
  EXPECT_EQ(frames.size(), 180u);
  EXPECT_EQ(frames[1], 50);
  EXPECT_EQ(frames.back(), 8950);
}

TEST(VideoSampling, NoMoreFramesThanThereAre) {
  EXPECT_EQ(taken(facts_of(3, 25)), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(taken(facts_of(1, 25)), (std::vector<std::int32_t>{0}));
}

TEST(VideoSampling, ATargetIsSpreadWhateverTheRate) {
  EXPECT_EQ(taken(facts_of(100, 25), {.fps = -1, .target_frames = 4}),
            (std::vector<std::int32_t>{0, 25, 50, 75}));
  EXPECT_EQ(taken(facts_of(100, 25), {.fps = -1, .target_frames = 4, .choice = FrameChoice::middle}),
            (std::vector<std::int32_t>{12, 37, 62, 87}));
}

// numpy: around(arange(0.25, 12.25, 0.5) * 25), half to even
TEST(VideoSampling, TheMiddleOfEachPart) {
  const auto frames = taken(facts_of(300, 25), {.choice = FrameChoice::middle});
  EXPECT_EQ(std::vector(frames.begin(), frames.begin() + 4), (std::vector<std::int32_t>{6, 19, 31, 44}));
}

TEST(VideoSampling, AVideoWithoutFramesIsRefused) {
  EXPECT_EQ(media::sampled_frames(facts_of(0, 25), {}).status().reason, "invalid_video");
  EXPECT_EQ(media::sampled_frames(facts_of(10, 0), {}).status().reason, "invalid_video");
}

TEST(VideoSampling, AnOddNumberOfFramesIsRoundedUp) {
  EXPECT_EQ(media::video_grid(facts_of(100, 25), 17, kVideoPixels)->frames, 18);
  EXPECT_EQ(media::video_grid(facts_of(100, 25), 16, kVideoPixels)->frames, 16);
  EXPECT_EQ(media::video_grid(facts_of(100, 25), 1, kVideoPixels)->frames, 2);
}

TEST(Stamp, Texts) {
  EXPECT_EQ(media::stamp_text(1.5), "time: 00:00:01.50");
  EXPECT_EQ(media::stamp_text(3725.25), "time: 01:02:05.25");
  EXPECT_EQ(media::stamp_text(59.999), "time: 00:00:60.00");  // as Python's %05.2f has it
}

TEST(Stamp, IsAsLargeAndDarkAsTheReference) {
  auto stamp = media::Stamp::open(media::kStampFont);
  if (!stamp.ok()) GTEST_SKIP() << stamp.status().message;
  for (const auto& wanted : expected("stamps")) {
    SCOPED_TRACE(wanted.dump());
    Picture picture(wanted["size"][0].get<int>(), wanted["size"][1].get<int>());
    std::fill_n(picture.row(0), picture.bytes(), std::uint8_t{128});
    ASSERT_TRUE(stamp->draw(picture, wanted["text"].get<std::string>()));
    int left = picture.width(), top = picture.height(), right = -1, bottom = -1, dark = 0, bright = 0;
    for (int y = 0; y < picture.height(); ++y) {
      for (int x = 0; x < picture.width(); ++x) {
        const int value = picture.row(y)[x * 4];
        dark += value < 64 ? 1 : 0;
        bright += value > 192 ? 1 : 0;
        if (value == 128) continue;
        left = std::min(left, x), right = std::max(right, x);
        top = std::min(top, y), bottom = std::max(bottom, y);
      }
    }
    EXPECT_NEAR(left, wanted["box"][0].get<int>(), 1);
    EXPECT_NEAR(top, wanted["box"][1].get<int>(), 1);
    EXPECT_NEAR(right, wanted["box"][2].get<int>(), 2);
    EXPECT_NEAR(bottom, wanted["box"][3].get<int>(), 1);
    EXPECT_NEAR(dark, wanted["dark"].get<int>(), 4 + wanted["dark"].get<int>() / 20);
    EXPECT_NEAR(bright, wanted["bright"].get<int>(), 4 + wanted["bright"].get<int>() / 20);
  }
}

TEST(Stamp, NothingIsDrawnIntoAPictureThatIsTooSmall) {
  auto stamp = media::Stamp::open(media::kStampFont);
  if (!stamp.ok()) GTEST_SKIP() << stamp.status().message;
  Picture picture(300, 9);
  std::fill_n(picture.row(0), picture.bytes(), std::uint8_t{128});
  EXPECT_TRUE(stamp->draw(picture, "time: 00:00:00.00"));
  EXPECT_TRUE(std::all_of(picture.row(0), picture.row(0) + picture.bytes(), [](auto v) { return v == 128; }));
}

TEST(Stamp, AMissingFontIsNamed) {
  EXPECT_NE(media::Stamp::open("/nowhere.ttf").status().message.find("fonts-roboto-unhinted"),
            std::string::npos);
}

class Videos : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const Status status = media::open_video_libraries(); !status.ok()) GTEST_SKIP() << status.message;
  }
};

/// Mean colours of the quarters of a picture, row by row.
std::vector<std::vector<double>> quarters(const Picture& picture) {
  std::vector<std::vector<double>> out;
  const int height = picture.height() / 2, width = picture.width() / 2;
  for (int quarter = 0; quarter < 4; ++quarter) {
    std::vector<double> mean(3);
    for (int y = quarter / 2 * height; y < (quarter / 2 + 1) * height; ++y)
      for (int x = quarter % 2 * width; x < (quarter % 2 + 1) * width; ++x)
        for (std::size_t c = 0; c < 3; ++c) mean[c] += picture.row(y)[static_cast<std::size_t>(x) * 4 + c];
    for (double& value : mean) value /= height * width;
    out.push_back(mean);
  }
  return out;
}

TEST_P(Videos, FramesAreThoseOfTheReference) {
  const Buffer file = video(GetParam());
  const auto wanted = expected("videos")[GetParam()];
  const auto facts = media::probe_video(file, {});
  ASSERT_TRUE(facts.ok()) << facts.status().message;
  EXPECT_EQ(facts->width, wanted["size"][0].get<int>());
  EXPECT_EQ(facts->height, wanted["size"][1].get<int>());
  EXPECT_EQ(facts->frames, wanted["frames"].get<int>());
  EXPECT_NEAR(facts->frames_per_second, wanted["rate"].get<double>(), 1e-3);
  std::vector<std::int32_t> frames;
  for (const auto& [index, value] : wanted["quarters"].items()) frames.push_back(std::stoi(index));
  std::ranges::sort(frames);
  std::size_t seen = 0;
  const Status status = media::decode_video(
      file, *facts, frames, [&](std::size_t number, std::int32_t index, Picture& frame) -> Status {
        EXPECT_EQ(number, seen++);
        EXPECT_EQ(index, frames[number]);
        const auto means = quarters(frame);
        for (std::size_t q = 0; q < 4; ++q)
          for (std::size_t c = 0; c < 3; ++c)
            EXPECT_NEAR(means[q][c], wanted["quarters"][std::to_string(index)][q][c].get<double>(), 2)
                << "frame " << index << ", quarter " << q << ", colour " << c;
        return {};
      });
  EXPECT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(seen, frames.size());
}

TEST_P(Videos, ACutFileIsRefusedOrStandsForItself) {
  const Buffer file = video(GetParam());
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, file.size() / 3, file.size() * 9 / 10}) {
    const media::Bytes cut(file.data(), size);
    const auto facts = media::probe_video(cut, {});
    if (!facts.ok()) {
      EXPECT_TRUE(facts.status().reason == "invalid_video" || facts.status().reason == "unsupported_video");
      continue;
    }
    const auto frames = media::sampled_frames(*facts, {});
    ASSERT_TRUE(frames.ok());
    std::size_t seen = 0;
    const Status status =
        media::decode_video(cut, *facts, *frames, [&](std::size_t, std::int32_t, Picture&) -> Status {
          ++seen;
          return {};
        });
    EXPECT_TRUE(status.ok() ? seen == frames->size() : status.reason == "invalid_video") << status.message;
  }
}

TEST(DamagedVideo, IsNotSaidToBeOfAnotherKind) {
  if (const Status status = media::open_video_libraries(); !status.ok()) GTEST_SKIP() << status.message;
  for (const char* name : {"h264.mp4", "mjpeg.avi", "vp9.webm"}) {
    const Buffer file = video(name);
    const media::Bytes cut(file.data(), 40);
    const auto facts = media::probe_video(cut, {});
    ASSERT_FALSE(facts.ok()) << name;
    EXPECT_EQ(facts.status().reason, "invalid_video") << name << " " << facts.status().message;
  }
}

TEST_P(Videos, BecomePatchesBehindTheFilter) {
  const Buffer bytes = video(GetParam());
  auto file = ipc::make_constant_file("video", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ASSERT_TRUE(file.ok());
  media::testing::KeptProcess process({.executable = TROUPE_MEDIA_CHILD, .videos = true});
  const auto facts = process.probe_video(file->get());
  ASSERT_TRUE(facts.ok()) << facts.status().message;
  const auto prepared = process.prepare_video(file->get(), *facts, kVideoPixels, {});
  if (prepared.status().code == Code::unsupported) GTEST_SKIP() << prepared.status().message;  // no font
  ASSERT_TRUE(prepared.ok()) << prepared.status().message;
  const auto frames = media::sampled_frames(*facts, {});
  EXPECT_EQ(prepared->grid, *media::video_grid(*facts, frames->size(), kVideoPixels));

  auto stamp = media::Stamp::open(media::kStampFont);
  Buffer here(media::patches_bytes(prepared->grid)), there(here.size());
  ASSERT_TRUE(media::prepare_video(bytes, {}, kVideoPixels, {}, *stamp, here).ok());
  ASSERT_EQ(pread(prepared->patches.get(), there.data(), there.size(), 0),
            static_cast<ssize_t>(there.size()));
  EXPECT_EQ(here, there);
  const std::size_t frame = here.size() / static_cast<std::size_t>(prepared->grid.frames);
  if (frames->size() % 2 == 1) {
    EXPECT_TRUE(std::equal(here.end() - static_cast<std::ptrdiff_t>(frame), here.end(),
                           here.end() - 2 * static_cast<std::ptrdiff_t>(frame)));
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, Videos, ::testing::ValuesIn(names()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
});

using Refused = Videos;

TEST_F(Refused, ACodecThatIsNotReadIsNamed) {
  const Status status = media::probe_video(video("prores.mov"), {}).status();
  EXPECT_EQ(status.reason, "unsupported_video");
  EXPECT_NE(status.message.find("prores"), std::string::npos) << status.message;
}

TEST_F(Refused, SoundAlone) {
  EXPECT_EQ(media::probe_video(video("sound.m4a"), {}).status().reason, "invalid_video");
}

TEST_F(Refused, WhatIsNoVideo) {
  const Buffer text(1000, 'x');
  EXPECT_EQ(media::probe_video(text, {}).status().reason, "unsupported_video");
}

TEST_F(Refused, AContainerThatIsNotRead) {
  EXPECT_EQ(media::probe_video(video("h264.ts"), {}).status().reason, "unsupported_video");
}

// A playlist names other files: its container is not opened.
TEST_F(Refused, APlaylist) {
  const std::string text =
      "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
  EXPECT_EQ(media::probe_video({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, {})
                .status()
                .reason,
            "unsupported_video");
}

TEST_F(Refused, FramesThatAreTooLarge) {
  EXPECT_EQ(media::probe_video(video("h264.mp4"), {.pixels = 96 * 64 - 1}).status().reason,
            "image_too_large");
}

TEST_F(Refused, APictureWhereAVideoIsExpected) {
  const Buffer bytes = media::testing::sample("png_rgb.png");
  auto file = ipc::make_constant_file("video", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  media::testing::KeptProcess process({.executable = TROUPE_MEDIA_CHILD, .videos = true});
  EXPECT_NE(process.probe_video(file->get()).status().message.find("PNG"), std::string::npos);
}

TEST_F(Refused, AProcessForPicturesReadsNoVideo) {
  const Buffer bytes = video("h264.mp4");
  auto file = ipc::make_constant_file("video", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  media::testing::KeptProcess process({.executable = TROUPE_MEDIA_CHILD});
  EXPECT_FALSE(process.probe_video(file->get()).ok());
}

}  // namespace
}  // namespace troupe
