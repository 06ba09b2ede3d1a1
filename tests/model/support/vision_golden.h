#pragma once
// Prompts with images and videos, and what transformers computes of them
// (tools/generate/make_vision_goldens.py).
#include <span>
#include <string>
#include <vector>

#include "base/media_positions.h"
#include "model/support/golden.h"

namespace troupe::model::test {

struct VisionGolden {
  std::vector<TokenId> ids;
  std::vector<TokenPosition> positions;
  std::vector<std::uint8_t> kinds;
  std::vector<MediaItem> items;
  std::vector<std::uint8_t> patches;  ///< of all items
  std::vector<float> tower, embeddings, logits;
  std::vector<TokenId> greedy;

  std::span<const std::uint8_t> patches_of(std::size_t item) const {
    std::size_t first = 0;
    for (std::size_t i = 0; i < item; ++i) first += bytes_of(items[i]);
    return std::span(patches).subspan(first, bytes_of(items[item]));
  }
  static std::size_t bytes_of(const MediaItem& item) {
    return static_cast<std::size_t>(item.grid.patches()) * kPatchBytes;
  }
};

inline VisionGolden load_vision_golden(const std::string& prompt) {
  const auto file = Checkpoint::open_file(golden_directory("vision_small") / "golden.safetensors");
  const auto name = [&](const char* part) { return prompt + "." + part; };
  VisionGolden golden{.ids = values<std::int32_t>(*file, name("ids").c_str())};
  const auto positions = values<std::int32_t>(*file, name("positions").c_str());
  for (std::size_t i = 0; i < positions.size(); i += 3)
    golden.positions.push_back({positions[i], positions[i + 1], positions[i + 2]});
  for (const std::int32_t kind : values<std::int32_t>(*file, name("types").c_str()))
    golden.kinds.push_back(static_cast<std::uint8_t>(kind));
  golden.logits = values<float>(*file, name("logits").c_str());
  golden.greedy = values<std::int32_t>(*file, name("greedy").c_str());
  if (file->find(name("items")) == nullptr) return golden;
  const auto items = values<std::int32_t>(*file, name("items").c_str());
  for (std::size_t i = 0; i < items.size(); i += 5) {
    golden.items.push_back(
        {static_cast<MediaKind>(items[i]), {items[i + 1], items[i + 2], items[i + 3]}, items[i + 4]});
  }
  golden.patches = values<std::uint8_t>(*file, name("patches").c_str());
  golden.tower = values<float>(*file, name("tower").c_str());
  golden.embeddings = values<float>(*file, name("embeddings").c_str());
  return golden;
}

/// max |a - b| / max |b|.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_TRUE(std::isfinite(a[i]));
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return difference / largest;
}

}  // namespace troupe::model::test
