#pragma once

#include <cstdint>

namespace troupe {

/// Which kind of item a prompt's visual tokens come from.
enum class MediaKind : std::uint8_t { image = 1, video = 2 };

/// Of one picture, or of each frame of a video, behind the resize. Both are inclusive.
struct PixelLimits {
  std::int64_t min_pixels = 4 * 28 * 28;
  std::int64_t max_pixels = 6177 * 28 * 28;

  friend bool operator==(const PixelLimits&, const PixelLimits&) = default;
};

/// Of a video's frames, where nothing else is said.
inline constexpr PixelLimits kVideoPixels{299 * 28 * 28, 1196 * 28 * 28};

inline constexpr int kPatchSide = 14;  ///< pixels of a patch's side
inline constexpr int kPatchBytes =
    3 * kPatchSide * kPatchSide;      ///< uint8 red, green, blue planes of one patch
inline constexpr int kMergeSide = 2;  ///< patches of a token's side (spatial_conv_size)
inline constexpr int kTokenPatches = kMergeSide * kMergeSide;  ///< of one frame
inline constexpr int kMergeFrames = 2;  ///< frames of a video's token (temporal_conv_size)

/// How many patches an image or a video has in each direction. `rows` and `columns` are multiples of
/// kMergeSide. An image has one frame, and a video a multiple of kMergeFrames. Patches lie in the order
/// frame, row / 2, column / 2, row % 2, column % 2, so the four patches of a token are neighbours.
struct PatchGrid {
  std::int32_t frames = 0;
  std::int32_t rows = 0;
  std::int32_t columns = 0;

  [[nodiscard]] std::int64_t patches() const noexcept { return std::int64_t(frames) * rows * columns; }
  /// Steps of time that tokens have: an image's one frame stands for itself and its successor.
  [[nodiscard]] std::int32_t token_frames() const noexcept {
    return (frames + kMergeFrames - 1) / kMergeFrames;
  }
  [[nodiscard]] std::int32_t token_rows() const noexcept { return rows / kMergeSide; }
  [[nodiscard]] std::int32_t token_columns() const noexcept { return columns / kMergeSide; }
  [[nodiscard]] std::int64_t tokens() const noexcept {
    return std::int64_t(token_frames()) * token_rows() * token_columns();
  }
  friend bool operator==(const PatchGrid&, const PatchGrid&) = default;
};

/// Patches of the largest frame to which images are resized by default.
inline constexpr int kMostFramePatches =
    static_cast<int>(PixelLimits{}.max_pixels / (kPatchSide * kPatchSide));

/// Whether an item of the kind can have such a grid, and its frames at most so many patches.
constexpr bool can_be(MediaKind kind, const PatchGrid& grid, std::int64_t frame_patches) noexcept {
  const auto merges = [](std::int32_t n, int unit) { return n >= unit && n % unit == 0; };
  return ((kind == MediaKind::image && grid.frames == 1) ||
          (kind == MediaKind::video && merges(grid.frames, kMergeFrames))) &&
         merges(grid.rows, kMergeSide) && merges(grid.columns, kMergeSide) &&
         std::int64_t{grid.rows} * grid.columns <= frame_patches;
}

}  // namespace troupe
