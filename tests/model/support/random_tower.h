#pragma once
// A vision tower of random weights, the same on every device, with heads of 80 dimensions as the released
// models have them.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "kernels/fill_random.h"
#include "model/vision/tower.h"

namespace troupe::model::test {

inline constexpr int kTowerHidden = 96;
inline constexpr VisionSpec kTower{.depth = 2, .width = 160, .heads = 2, .intermediate = 416};

/// The grid's patches.
inline std::vector<std::uint8_t> random_patches(const PatchGrid& grid) {
  std::vector<std::uint8_t> patches(static_cast<std::size_t>(grid.patches()) * kPatchBytes);
  std::mt19937 random(9);
  for (std::uint8_t& byte : patches) byte = static_cast<std::uint8_t>(random());
  return patches;
}

template <Device D>
class RandomTower {
 public:
  RandomTower(D& device, DType dtype, int patches) : device_(device), dtype_(dtype) {
    Arena counting;
    VisionWeights::make(kTower, kTowerHidden, dtype, counting);
    memory_ = *Buffer<D>::make(device, counting.used(), "weights");
    Arena arena(memory_.view());
    weights_ = VisionWeights::make(kTower, kTowerHidden, dtype, arena);
    std::uint32_t seed = 1;
    for (const VisionTensor& tensor : vision_tensors(kTower, kTowerHidden, weights_)) {
      ++seed;
      if (tensor.matrix != nullptr) {
        kernels::run(
            device, kernels::FillRandom{
                        .into = *tensor.matrix, .outputs = tensor.outputs, .seed = seed, .deviation = 0.08f});
        continue;
      }
      std::mt19937 random(seed);
      std::normal_distribution<float> normal(tensor.scales ? 1.0f : 0.0f, 0.2f);
      std::vector<float> values(static_cast<std::size_t>(tensor.inputs));
      for (float& value : values) value = normal(random);
      device.upload(const_cast<float*>(*tensor.vector), values.data(), values.size() * sizeof(float));
      device.sync();
    }
    tower_ = std::make_unique<VisionTower<D>>(
        *VisionTower<D>::make(device, kTower, kTowerHidden, 1e-5f, dtype, weights_, patches));
  }

  VisionTower<D>& tower() { return *tower_; }
  const VisionWeights& weights() const { return weights_; }

  /// Memory for embeddings.
  Buffer<D> room_for(const PatchGrid& grid) {
    return *Buffer<D>::make(device_, static_cast<std::size_t>(grid.tokens()) * row_bytes(), "embeddings");
  }
  std::vector<float> read(const void* embeddings, const PatchGrid& grid) {
    const auto tokens = static_cast<std::size_t>(grid.tokens());
    std::vector<std::byte> bytes(tokens * row_bytes());
    device_.download(bytes.data(), embeddings, bytes.size());
    device_.sync();
    std::vector<float> values;
    for (std::size_t i = 0; i < tokens * kTowerHidden; ++i) {
      const std::size_t row = i / kTowerHidden, column = i % kTowerHidden;
      values.push_back(load_element(bytes.data(), dtype_, row * kernels::padded(kTowerHidden) + column));
    }
    return values;
  }

  std::vector<float> encode(MediaKind kind, const PatchGrid& grid) {
    const std::vector<std::uint8_t> patches = random_patches(grid);
    const auto out = room_for(grid);
    const Status begun = tower_->begin(kind, grid, patches, out.data());
    EXPECT_TRUE(begun.ok()) << begun.message;
    while (tower_->advance()) {
    }
    return read(out.data(), grid);
  }

 private:
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(kernels::padded(kTowerHidden)) * size_of(dtype_);
  }

  D& device_;
  DType dtype_;
  Buffer<D> memory_;
  VisionWeights weights_;
  std::unique_ptr<VisionTower<D>> tower_;
};

}  // namespace troupe::model::test
