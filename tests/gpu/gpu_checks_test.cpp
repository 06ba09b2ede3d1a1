#include "gpu/gpu_checks.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(CheckDriver, OfTheSameMajorVersionOrLater) {
  for (const int driver : {13000, 13010, 14000}) EXPECT_TRUE(check_driver(driver, 13000).ok()) << driver;
  EXPECT_TRUE(check_driver(13000, 13020).ok()) << "minor versions are compatible";
}

TEST(CheckDriver, TooOldOrNone) {
  EXPECT_EQ(check_driver(12080, 13010).message,
            "The NVIDIA driver is too old: it offers CUDA 12.8, and CUDA 13.0 or newer is needed.");
  EXPECT_EQ(check_driver(12080, 13010).code, Code::unsupported);
  EXPECT_EQ(check_driver(0, 13010).message,
            "No NVIDIA driver is loaded on this machine, so there is no GPU to use.");
}

TEST(CheckCapability, RunsTheCodeOfTheBuild) {
  EXPECT_TRUE(check_capability(0, 90, "90a").ok());
  EXPECT_TRUE(check_capability(0, 86, "80-real,90a").ok());
  EXPECT_TRUE(check_capability(0, 120, "90a,90-virtual").ok()) << "PTX is translated for later ones";
}

TEST(CheckCapability, NoCodeForIt) {
  EXPECT_EQ(check_capability(1, 86, "90a").message,
            "GPU 1 has compute capability 8.6, for which this build has no code: it was made for 90a "
            "(TROUPE_CUDA_ARCHITECTURES of cmake).");
  EXPECT_FALSE(check_capability(0, 120, "80-real,90a").ok());
}

TEST(CheckCapability, TooOldWhateverTheCode) {
  EXPECT_EQ(check_capability(0, 75, "75-virtual").message,
            "GPU 0 has compute capability 7.5; 8.0 or higher is needed.");
  EXPECT_EQ(check_capability(0, 70, "90a").code, Code::unsupported);
}

}  // namespace
}  // namespace troupe
