#include "actors/topology.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace troupe {
namespace {

// The page is written by `topology_markdown()`: when this fails, replace the file by what is printed.
TEST(Topology, TheDocumentIsWrittenFromTheTable) {
  std::ifstream file(TROUPE_TEST_DATA "/../../docs/topology.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), topology_markdown());
}

TEST(Topology, EveryRowSaysWhatHappensAndWhy) {
  for (const Role& role : kRoles) {
    EXPECT_STRNE(role.bound, "") << role.name;
    EXPECT_STRNE(role.when_full, "") << role.name;
    EXPECT_STRNE(role.why, "") << role.name;
  }
}

}  // namespace
}  // namespace troupe
