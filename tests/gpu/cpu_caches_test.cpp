#include "gpu/cpu_caches.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "gpu/ceilings.h"
#include "support/temp_directory.h"

namespace troupe {
namespace {

class CpuCaches : public ::testing::Test {
 protected:
  void add(int processor, int index, int level, const char* type, const char* size, const char* shared_by) {
    const auto folder =
        root_.path() / ("cpu" + std::to_string(processor)) / "cache" / ("index" + std::to_string(index));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "level") << level << "\n";
    std::ofstream(folder / "type") << type << "\n";
    std::ofstream(folder / "size") << size << "\n";
    std::ofstream(folder / "shared_cpu_list") << shared_by << "\n";
  }
  std::size_t bytes(std::vector<int> processors) { return last_level_cache_bytes(processors, root_.path()); }

  test::TempDirectory root_;
};

TEST_F(CpuCaches, ThatAreSharedCountOnce) {
  for (const int processor : {0, 1, 2, 3}) {
    const char* pair = processor < 2 ? "0-1" : "2-3";
    add(processor, 0, 1, "Data", "48K", std::to_string(processor).c_str());
    add(processor, 1, 1, "Instruction", "32K", std::to_string(processor).c_str());
    add(processor, 2, 2, "Unified", "2048K", std::to_string(processor).c_str());
    add(processor, 3, 3, "Unified", processor < 2 ? "32768K" : "96M", pair);
  }
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(bytes({0, 1}), 32 * kMiB);
  EXPECT_EQ(bytes({2}), 96 * kMiB);
  EXPECT_EQ(bytes({0, 1, 2, 3}), 128 * kMiB);
}

TEST_F(CpuCaches, TheLastLevelMayBeTheSecond) {
  add(0, 0, 1, "Data", "64K", "0");
  add(0, 1, 2, "Unified", "1024K", "0");
  add(0, 2, 3, "Instruction", "9999K", "0");
  EXPECT_EQ(bytes({0}), std::size_t{1} << 20);
  EXPECT_EQ(bytes({0, 7}), std::size_t{1} << 20) << "of processor 7 nothing is known";
  EXPECT_EQ(bytes({}), 0u);
}

TEST(ProcessorsInUse, AreThoseOfAllThreads) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const std::vector<int> processors = processors_in_use();
  EXPECT_TRUE(std::ranges::is_sorted(processors));
  for (int i = 0; i < CPU_SETSIZE; ++i)
    EXPECT_TRUE(!CPU_ISSET(i, &set) || std::ranges::binary_search(processors, i)) << i;
}

TEST(BytesBeyondCaches, AreTwiceTheCachesUpToALimit) {
  const std::size_t caches = last_level_cache_bytes(processors_in_use());
  EXPECT_EQ(bytes_beyond_caches(0), std::min(2 * caches, std::size_t{1} << 30));
  EXPECT_EQ(bytes_beyond_caches(std::size_t{5} << 30), std::size_t{5} << 30);
}

}  // namespace
}  // namespace troupe
