#include "cli/restart_target.h"

#include <gtest/gtest.h>

namespace troupe::cli {
namespace {

const std::vector<std::string> kOneEngine{"front", "engine", "worker-0", "text-0", "media-0", "video-0"};
const std::vector<std::string> kTwoEngines{"front", "engine-0", "engine-1"};

std::string target(const std::string& word, std::optional<int> index = {},
                   const std::vector<std::string>& processes = kOneEngine) {
  const auto name = restart_target(word, index, processes);
  return name.ok() ? *name : "! " + name.status().message;
}

TEST(RestartTarget, AKindAndItsNumber) {
  EXPECT_EQ(target("front"), "front");
  EXPECT_EQ(target("engine"), "engine");
  EXPECT_EQ(target("engine", 0), "engine");
  EXPECT_EQ(target("engine", {}, kTwoEngines), "engine-0");
  EXPECT_EQ(target("engine", 1, kTwoEngines), "engine-1");
  for (const std::string kind : {"worker", "text", "media", "video"}) {
    EXPECT_EQ(target(kind), kind + "-0");
    EXPECT_EQ(target(kind, 3), kind + "-3");
  }
}

TEST(RestartTarget, ANameAsStatusShowsIt) {
  for (const std::string name : {"worker-1", "text-0", "media-0", "video-12"}) EXPECT_EQ(target(name), name);
  EXPECT_EQ(target("engine-1", {}, kTwoEngines), "engine-1");
}

TEST(RestartTarget, OthersAreRefused) {
  EXPECT_EQ(target("engine", 1), "! --index 1: there is one engine");
  EXPECT_EQ(target("engine-1"), "! there is no engine-1: there is one engine");
  EXPECT_EQ(target("media-0", 1), "! --index 1: media-0 has its number already");
  for (const std::string word : {"supervisor", "medias-0", "media-", "media-x", "-1", "7", ""}) {
    EXPECT_EQ(
        target(word),
        "! \"" + word + "\" cannot be restarted: allowed are engine, front, media, text, video and worker");
  }
}

}  // namespace
}  // namespace troupe::cli
