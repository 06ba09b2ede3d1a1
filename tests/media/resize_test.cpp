// Resizing and cutting against Pillow 12.3.0, bit for bit, with every instruction set of this processor.
#include "media/resize/patches.h"

#include <gtest/gtest.h>

#include "media/pixel_grid.h"
#include "media/support/samples.h"

namespace troupe::media {
namespace {

using testing::Buffer;

/// The pixels that patches hold, row by row.
Buffer rgb_of_patches(const Buffer& patches, const PatchGrid& grid) {
  const int width = grid.columns * kPatchSide, height = grid.rows * kPatchSide;
  Buffer out(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  std::size_t at = 0;
  // Nested in the order of the contract: row / 2, column / 2, row % 2, column % 2, colour, y, x.
  for (int r = 0; r < grid.rows; r += 2)
    for (int c = 0; c < grid.columns; c += 2)
      for (int dr = 0; dr < 2; ++dr)
        for (int dc = 0; dc < 2; ++dc)
          for (int colour = 0; colour < 3; ++colour)
            for (int y = 0; y < kPatchSide; ++y)
              for (int x = 0; x < kPatchSide; ++x)
                out[static_cast<std::size_t>(
                    (((r + dr) * kPatchSide + y) * width + (c + dc) * kPatchSide + x) * 3 + colour)] =
                    patches[at++];
  return out;
}

Buffer resized(const Picture& picture, const PatchGrid& grid, const Passes& with) {
  Buffer patches(patches_bytes(grid));
  resize_to_patches(picture, grid, patches, with);
  return rgb_of_patches(patches, grid);
}

TEST(Resize, GivesTheBitsOfTheReference) {
  for (const auto& noise : testing::sample_json("resize.json", "noise")) {
    SCOPED_TRACE(noise.dump());
    const Picture picture = testing::scene(noise["from"][0], noise["from"][1]);
    const PatchGrid grid{1, noise["to"][1].get<int>() / kPatchSide, noise["to"][0].get<int>() / kPatchSide};
    for (const Passes* with : usable_passes())
      EXPECT_EQ(testing::sha256(resized(picture, grid, *with)), noise["rgb"].get<std::string>())
          << with->name;
  }
}

TEST(Resize, ASideThatStaysIsNotTouched) {
  const Picture picture = testing::scene(84, 56);
  EXPECT_EQ(resized(picture, PatchGrid{1, 4, 6}, passes()), testing::rgb_of(picture));
}

TEST(PixelGrid, IsTheReferencesForEverySize) {
  for (const auto& size : testing::sample_json("resize.json", "sizes")) {
    SCOPED_TRACE(size.dump());
    const auto grid = grid_of(size[1], size[0], {});
    if (size[2] == 0) {
      EXPECT_FALSE(grid.ok());
      continue;
    }
    ASSERT_TRUE(grid.ok()) << grid.status().message;
    EXPECT_EQ(grid->rows * kPatchSide, size[2].get<int>());
    EXPECT_EQ(grid->columns * kPatchSide, size[3].get<int>());
    EXPECT_EQ(grid->frames, 1);
  }
}

TEST(PixelGrid, OfDocumentedSizes) {
  struct Case {
    int height, width, rows, columns;
    std::int64_t tokens;
  };
  for (const Case& c :
       {Case{480, 640, 34, 46, 391}, Case{70, 70, 4, 4, 4}, Case{14, 14, 4, 4, 4}, Case{98, 126, 8, 8, 16},
        Case{1080, 1920, 78, 138, 2691}, Case{4000, 6000, 128, 192, 6144}, Case{10, 400, 2, 28, 14},
        Case{1, 1, 4, 4, 4}, Case{1, 400, 2, 400, 200}, Case{400, 1, 400, 2, 200}}) {
    const auto grid = grid_of(c.width, c.height, {});
    ASSERT_TRUE(grid.ok());
    EXPECT_EQ(*grid, (PatchGrid{1, c.rows, c.columns})) << c.height << " x " << c.width;
    EXPECT_EQ(grid->tokens(), c.tokens);
  }
  EXPECT_EQ(*grid_of(1280, 720, kVideoPixels), (PatchGrid{1, 52, 92}));
  EXPECT_EQ(*grid_of(1920, 1080, kVideoPixels), (PatchGrid{1, 50, 92}));
  EXPECT_EQ(*grid_of(320, 240, kVideoPixels), (PatchGrid{1, 30, 40}));
}

TEST(PixelGrid, RefusesWhatHasNoSizeWithinTheLimits) {
  const auto large = grid_of(400, 1, {.min_pixels = 784, .max_pixels = 100 * 784});
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.status().message,
            "is 400 x 1 pixels, for which there is no size in multiples of 28 with 784 to 78400 pixels");
  EXPECT_FALSE(grid_of(100, 100, {.min_pixels = 1, .max_pixels = 100}).ok());
  EXPECT_FALSE(grid_of(0, 5, {}).ok());
  EXPECT_FALSE(grid_of(5, -1, {}).ok());
}

}  // namespace
}  // namespace troupe::media
