#include "base/media_positions.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace troupe {
namespace {

std::string text(const MediaPositions& positions, int from, int to) {
  std::string out;
  for (int i = from; i < to; ++i) {
    const TokenPosition p = positions.at(i);
    out += std::to_string(p.time) + "," + std::to_string(p.row) + "," + std::to_string(p.column) + " ";
  }
  return out;
}

MediaItem image(int first, int rows, int columns) { return {MediaKind::image, {1, rows, columns}, first}; }
MediaItem video(int first, int frames, int rows, int columns) {
  return {MediaKind::video, {frames, rows, columns}, first};
}

TEST(MediaPositions, TextStandsWhereItIs) {
  const MediaPositions none;
  EXPECT_EQ(text(none, 0, 3), "0,0,0 1,1,1 2,2,2 ");
  EXPECT_EQ(none.shift(), 0);
  EXPECT_TRUE(none.empty());
}

// Two words, a boundary, an image of 2 × 2 tokens, a boundary, a word.
TEST(MediaPositions, AnImageTakesItsLongerSide) {
  const MediaItem items[] = {image(3, 4, 4)};
  const MediaPositions positions(items);
  EXPECT_EQ(text(positions, 0, 9), "0,0,0 1,1,1 2,2,2 3,3,3 3,3,4 3,4,3 3,4,4 5,5,5 6,6,6 ");
  EXPECT_EQ(positions.shift(), -2);
  const MediaItem wide[] = {image(0, 2, 8)};
  EXPECT_EQ(text(MediaPositions(wide), 0, 6), "0,0,0 0,0,1 0,0,2 0,0,3 4,4,4 5,5,5 ");
}

TEST(MediaPositions, AVideoTakesItsStepsOfTimeIfTheyAreMore) {
  const MediaItem few[] = {video(1, 4, 2, 6)};
  EXPECT_EQ(text(MediaPositions(few), 0, 9), "0,0,0 1,1,1 1,1,2 1,1,3 2,1,1 2,1,2 2,1,3 4,4,4 5,5,5 ");
  const MediaItem many[] = {video(1, 10, 2, 4)};
  const MediaPositions positions(many);
  EXPECT_EQ(text(positions, 9, 13), "5,1,1 5,1,2 6,6,6 7,7,7 ");
  EXPECT_EQ(positions.shift(), -5);
}

TEST(MediaPositions, ItemsFollowEachOther) {
  const MediaItem items[] = {image(1, 4, 4), image(5, 2, 2), video(8, 4, 4, 2)};
  const MediaPositions positions(items);
  EXPECT_EQ(text(positions, 4, 14), "1,2,2 3,3,3 4,4,4 5,5,5 6,6,6 6,7,6 7,6,6 7,7,6 8,8,8 9,9,9 ");
  EXPECT_EQ(positions.at(1000).time, 1000 + positions.shift());
  // From any index the answer is the same as from the beginning.
  std::vector<MediaItem> far;
  for (int i = 0; i < 50; ++i) far.push_back(image(10 + 20 * i, 4, 6));
  EXPECT_EQ(MediaPositions(far).at(10 + 20 * 49).time, 10 + 20 * 49 - 49 * 3);
}

TEST(LocateMedia, RunsOfPlaceholdersAreTheItems) {
  constexpr TokenId kPatch = 9;
  const std::vector<TokenId> ids{1, 9, 9, 2, 9, 9, 9, 9, 3};
  const MediaGrid one{MediaKind::image, {1, 2, 4}}, small{MediaKind::image, {1, 2, 2}},
      film{MediaKind::video, {6, 2, 2}};
  const auto found = locate_media(ids, kPatch, std::vector{one, small, film});
  ASSERT_TRUE(found.ok()) << found.status().message;
  EXPECT_EQ(*found, (std::vector<MediaItem>{image(1, 2, 4), image(4, 2, 2), video(5, 6, 2, 2)}));
  EXPECT_TRUE(locate_media(std::vector<TokenId>{1, 2}, kPatch, {})->empty());

  const auto refused = [&](const std::vector<MediaGrid>& grids) {
    const auto wrong = locate_media(ids, kPatch, grids);
    return wrong.ok() ? "" : wrong.status().message;
  };
  EXPECT_NE(refused({one, film}).find("1 placeholders more than the tokens of its 2 items"),
            std::string::npos);
  EXPECT_NE(refused({film, film}).find("Item 0 of the prompt has 3 tokens, and there are 2 "),
            std::string::npos);
  EXPECT_NE(refused({one, small, film, one}).find("Item 3 "), std::string::npos);
  EXPECT_NE(refused({MediaGrid{}}).find("has 0 tokens"), std::string::npos);
}

}  // namespace
}  // namespace troupe
