#pragma once
// A decoder that decodes nothing: its patches say how often it was asked.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "actors/media/media_process.h"
#include "ipc/memory_file.h"

namespace troupe::testing {

class FakeDecoder final : public PictureDecoder {
 public:
  struct Shared {
    std::atomic<int> asked{0};
    std::atomic<bool> given_up{false};
    PatchGrid grid{1, 4, 4};
    std::function<Status()> outcome = [] { return Status(); };  ///< may wait
    std::atomic<std::int64_t> limit{0};                         ///< max_pixels that it was asked with last
  };
  explicit FakeDecoder(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Result<PreparedPicture> prepare(int, const media::PixelLimits& limits) override {
    shared_->limit = limits.max_pixels;
    const int number = ++shared_->asked;
    if (Status status = shared_->outcome(); !status.ok()) return status;
    const auto bytes = static_cast<std::size_t>(shared_->grid.patches()) * kPatchBytes;
    auto file = ipc::make_constant_file("patches", std::string(bytes, static_cast<char>(number)));
    if (!file.ok()) return file.status();
    return PreparedPicture{shared_->grid, *std::move(file)};
  }
  void give_up() override { shared_->given_up = true; }

 private:
  const std::shared_ptr<Shared> shared_;
};

class FakeVideoDecoder final : public VideoDecoder {
 public:
  struct Shared {
    media::VideoFacts facts{56, 56, 40, 10};
    std::function<Status()> outcome = [] { return Status(); };  ///< of a whole video; may wait
    std::atomic<int> at_once{0}, most_at_once{0};
  };
  explicit FakeVideoDecoder(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Result<media::VideoFacts> probe_video(int) override { return shared_->facts; }
  Result<PreparedPicture> prepare_video(int, const media::VideoFacts& facts, const media::PixelLimits& limits,
                                        const VideoSampling& sampling) override {
    const int now = ++shared_->at_once;
    shared_->most_at_once = std::max(shared_->most_at_once.load(), now);
    Status status = shared_->outcome();
    --shared_->at_once;
    if (!status.ok()) return status;
    const auto frames = media::sampled_frames(facts, sampling);
    const auto grid = media::video_grid(facts, frames->size(), limits);
    auto file = ipc::make_constant_file(
        "patches", std::string(static_cast<std::size_t>(grid->patches()) * kPatchBytes, 'v'));
    if (!file.ok()) return file.status();
    return PreparedPicture{*grid, *std::move(file)};
  }
  void give_up() override {}

 private:
  const std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::testing
