#include "gpu/architectures.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

bool code_runs_on(std::string_view architectures, int capability) {
  return code_for(architectures, capability).capability != 0;
}

TEST(Architectures, ArchitectureSpecificCodeRunsOnItsOwnCapabilityOnly) {
  EXPECT_TRUE(code_runs_on("90a", 90));
  for (const int other : {80, 86, 89, 100, 120}) EXPECT_FALSE(code_runs_on("90a", other)) << other;
  EXPECT_TRUE(code_runs_on("90a-real", 90));
}

TEST(Architectures, MachineCodeRunsOnLaterMinorVersions) {
  EXPECT_TRUE(code_runs_on("80-real", 80));
  EXPECT_TRUE(code_runs_on("80-real", 86));
  EXPECT_FALSE(code_runs_on("86-real", 80));
  EXPECT_FALSE(code_runs_on("80-real", 90));
  EXPECT_TRUE(code_runs_on("100-real", 103));
  EXPECT_FALSE(code_runs_on("100-real", 120));
}

TEST(Architectures, PtxRunsOnAllLaterCapabilities) {
  EXPECT_TRUE(code_runs_on("80", 90));
  EXPECT_TRUE(code_runs_on("80-virtual", 120));
  EXPECT_FALSE(code_runs_on("86-virtual", 80));
}

TEST(Architectures, NativeAndAllAreAssumedToFit) {
  for (const char* word : {"native", "all", "all-major"}) EXPECT_TRUE(code_runs_on(word, 90)) << word;
}

TEST(Architectures, OneOfSeveralMustFit) {
  constexpr const char* kAll = "80-real,86-real,89-real,90a-real";
  for (const int one : {80, 86, 89, 90}) EXPECT_TRUE(code_runs_on(kAll, one)) << one;
  EXPECT_TRUE(code_runs_on(kAll, 87));
  EXPECT_FALSE(code_runs_on(kAll, 75));
  EXPECT_FALSE(code_runs_on(kAll, 100));
  EXPECT_FALSE(code_runs_on("", 90));
  EXPECT_FALSE(code_runs_on("80-real,", 90));
}

TEST(Architectures, OnlyArchitectureSpecificCodeIsAccelerated) {
  EXPECT_TRUE(code_for("90a", 90).accelerated);
  EXPECT_TRUE(code_for("90a-real", 90).accelerated);
  EXPECT_TRUE(code_for("80-real,86-real,89-real,90a-real", 90).accelerated);
  EXPECT_TRUE(code_for("90,90a", 90).accelerated);
  EXPECT_TRUE(code_for("90a,90", 90).accelerated);
  for (const char* plain : {"90", "90-real", "80", "80-virtual", "native", "all", "all-major"}) {
    EXPECT_FALSE(code_for(plain, 90).accelerated) << plain;
  }
  EXPECT_FALSE(code_for("80,90a", 100).accelerated);
}

TEST(Architectures, TheHighestCapabilityTheGpuSupportsIsChosen) {
  EXPECT_EQ(code_for("80", 90).capability, 80);
  EXPECT_EQ(code_for("90", 90).capability, 90);
  EXPECT_EQ(code_for("80-real,86-real,89-real,90a-real", 90).capability, 90);
  EXPECT_EQ(code_for("80-virtual,90a", 100).capability, 80);
  EXPECT_EQ(code_for("native", 90).capability, 90);
}

}  // namespace
}  // namespace troupe
