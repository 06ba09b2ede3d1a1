// Decoded pixels against Pillow's, bit for bit.
#include "media/decode/decode.h"

#include <gtest/gtest.h>

#include "media/prepare.h"
#include "media/resize/patches.h"
#include "media/support/samples.h"

namespace troupe::media {
namespace {

using testing::Buffer;

class Sample : public ::testing::TestWithParam<std::string> {
 protected:
  nlohmann::json expected() const { return testing::sample_json("expected.json", "pictures")[GetParam()]; }
};

TEST_P(Sample, IsDecodedToTheBitsOfTheReference) {
  const Buffer file = testing::sample(GetParam());
  const auto header = read_picture_header(file);
  ASSERT_TRUE(header.ok()) << header.status().message;
  EXPECT_EQ(header->shown_width(), expected()["size"][0].get<int>());
  EXPECT_EQ(header->shown_height(), expected()["size"][1].get<int>());
  const auto picture = decode(file, *header);
  ASSERT_TRUE(picture.ok()) << picture.status().message;
  EXPECT_EQ(picture->width(), header->shown_width());
  EXPECT_EQ(picture->height(), header->shown_height());
  const Buffer rgb = testing::rgb_of(*picture);
  if (const Buffer raw = std::ifstream(testing::sample_path(GetParam() + ".rgb"))
                             ? testing::sample(GetParam() + ".rgb")
                             : Buffer();
      !raw.empty()) {
    EXPECT_EQ(rgb, raw);
  }
  EXPECT_EQ(testing::sha256(rgb), expected()["rgb"].get<std::string>());
}

TEST_P(Sample, BecomesThePatchesOfTheReference) {
  const Buffer file = testing::sample(GetParam());
  const auto header = read_picture_header(file);
  ASSERT_TRUE(header.ok());
  const auto grid = grid_of(header->shown_width(), header->shown_height(), {});
  ASSERT_TRUE(grid.ok());
  const auto wanted = expected()["grid"];
  EXPECT_EQ(*grid, (PatchGrid{wanted[0].get<int>(), wanted[1].get<int>(), wanted[2].get<int>()}));
  Buffer patches(patches_bytes(*grid));
  const auto prepared = prepare_picture(file, {}, {}, patches);
  ASSERT_TRUE(prepared.ok()) << prepared.status().message;
  EXPECT_EQ(*prepared, *grid);
  EXPECT_EQ(testing::sha256(patches), expected()["patches"].get<std::string>());
}

// A cut file is an error wherever it is cut, never a picture of which a part is grey.
TEST_P(Sample, IsRefusedWhenItIsCut) {
  const Buffer file = testing::sample(GetParam());
  std::vector<std::size_t> sizes{file.size() / 4, file.size() / 2, file.size() * 3 / 4,
                                 file.size() - file.size() / 20 - 2};
  if (GetParam() == "gif_animated.gif") sizes.resize(1);  // what is behind the first frame is not read
  for (const std::size_t size : sizes) {
    const Bytes cut = Bytes(file).first(size);
    const auto header = read_picture_header(cut);
    if (!header.ok()) {
      EXPECT_EQ(header.status().reason, "invalid_image") << header.status().message;
      continue;
    }
    const auto picture = decode(cut, *header);
    EXPECT_FALSE(picture.ok()) << size << " of " << file.size() << " bytes";
    EXPECT_EQ(picture.status().reason, "invalid_image") << picture.status().message;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  const auto pictures = testing::sample_json("expected.json", "pictures");
  for (const auto& [name, value] : pictures.items()) out.push_back(name);
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Sample, ::testing::ValuesIn(names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace troupe::media
