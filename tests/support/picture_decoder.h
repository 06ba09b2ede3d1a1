#pragma once
// A decoder that decodes nothing: its patches say how often it was asked.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
    std::mutex mutex;
    std::vector<std::int64_t> limits;  ///< max_pixels that it was asked with; guarded by mutex
  };
  explicit FakeDecoder(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Result<PreparedPicture> prepare(int, const media::PixelLimits& limits) override {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->limits.push_back(limits.max_pixels);
    }
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

}  // namespace troupe::testing
