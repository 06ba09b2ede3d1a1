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

GpuFeatures features(std::string_view architectures, int capability) {
  return features_of(code_for(architectures, capability), capability);
}

TEST(Features, OfAHopper) {
  const GpuFeatures all{.clusters = true, .wgmma = true, .programmatic = true, .fp8 = true};
  EXPECT_EQ(features("90a", 90), all);
  EXPECT_EQ(features("80-real,86-real,89-real,90a,90-virtual", 90), all);
  EXPECT_EQ(features("90", 90), (GpuFeatures{.programmatic = true, .fp8 = true}))
      << "bulk copies and clusters are compiled for 90a alone";
}

TEST(Features, OfOthers) {
  constexpr std::string_view kAll = "80-real,86-real,89-real,90a,90-virtual";
  EXPECT_EQ(features(kAll, 80), GpuFeatures{});
  EXPECT_EQ(features(kAll, 86), GpuFeatures{});
  EXPECT_EQ(features(kAll, 89), GpuFeatures{.fp8 = true});
  EXPECT_EQ(features(kAll, 120), (GpuFeatures{.programmatic = true, .fp8 = true})) << "runs PTX of 9.0";
}

TEST(Features, AreThoseOfTheCodeAndNotOfTheCard) {
  EXPECT_EQ(features("80", 89), GpuFeatures{}) << "code for 8.0 has no fp8";
  EXPECT_EQ(features("80", 90), GpuFeatures{});
  EXPECT_EQ(features("90a", 80), GpuFeatures{}) << "no code at all";
}

}  // namespace
}  // namespace troupe
