// Limits of control groups, from copies of the files of machines with version 1, version 2, and both.
#include "base/control_groups.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/usable_cores.h"
#include "support/temp_directory.h"

namespace troupe {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr const char* kNone = "9223372036854771712\n";  // version 1's "no limit"

class ControlGroups : public ::testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) const {
    const auto at = root() / path;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  /// Version 2: memory.max, memory.current and what of it is dispensable cache.
  void v2(const std::string& group, const std::string& max, std::uint64_t used,
          std::uint64_t cache = 0) const {
    file(group + "/memory.max", max + "\n");
    file(group + "/memory.current", std::to_string(used) + "\n");
    file(group + "/memory.stat", "anon 5\ninactive_file " + std::to_string(cache) + "\nactive_file 7\n");
  }
  void v1(const std::string& group, const std::string& limit, std::uint64_t used,
          std::uint64_t cache = 0) const {
    file(group + "/memory.limit_in_bytes", limit);
    file(group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    file(group + "/memory.stat",
         "cache 1\ninactive_file 0\ntotal_inactive_file " + std::to_string(cache) + "\n");
  }
  std::uint64_t left() const {
    const auto limit = control_group_memory(root());
    return limit ? limit->left : 0;
  }
  std::filesystem::path root() const { return directory_.path(); }

  const test::TempDirectory directory_;
};

constexpr const char* kVersion2 =
    "22 28 0:20 / /proc rw - proc proc rw\n"
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kVersion1 =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

TEST_F(ControlGroups, Version2TheGroupThatLeavesLeastCounts) {
  file("proc/self/mountinfo", kVersion2);
  file("proc/self/cgroup", "0::/a/b\n");
  EXPECT_FALSE(control_group_memory(root()));
  v2("sys/fs/cgroup/a", "1000", 600, 100);
  v2("sys/fs/cgroup/a/b", "max", 600);
  const auto limit = control_group_memory(root());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, 1000u);
  EXPECT_EQ(limit->left, 500u);
  EXPECT_EQ(limit->file, "/sys/fs/cgroup/a/memory.max");
  v2("sys/fs/cgroup/a/b", "700", 600);
  EXPECT_EQ(left(), 100u);
  v2("sys/fs/cgroup/a/b", "500", 600);
  ASSERT_TRUE(control_group_memory(root()));
  EXPECT_EQ(left(), 0u);
}

TEST_F(ControlGroups, Version2MemoryHighIsALimitToo) {
  file("proc/self/mountinfo", kVersion2);
  file("proc/self/cgroup", "0::/a\n");
  v2("sys/fs/cgroup/a", "1000", 100);
  file("sys/fs/cgroup/a/memory.high", "max\n");
  EXPECT_EQ(left(), 900u);
  file("sys/fs/cgroup/a/memory.high", "800\n");
  EXPECT_EQ(left(), 700u);
  EXPECT_EQ(control_group_memory(root())->file, "/sys/fs/cgroup/a/memory.high");
}

TEST_F(ControlGroups, Version1IsReadWithItsGroupsAbove) {
  file("proc/self/mountinfo", kVersion1);
  file("proc/self/cgroup",
       "9:name=systemd:/\n4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n");
  v1("sys/fs/cgroup/memory", kNone, 5000 * kMiB);
  v1("sys/fs/cgroup/memory/docker", kNone, 4000 * kMiB);
  v1("sys/fs/cgroup/memory/docker/abc", kNone, 300 * kMiB);
  EXPECT_FALSE(control_group_memory(root())) << "huge numbers are no limits";
  v1("sys/fs/cgroup/memory/docker/abc", std::to_string(1024 * kMiB) + "\n", 300 * kMiB, 100 * kMiB);
  EXPECT_EQ(left(), 824 * kMiB);
  EXPECT_EQ(control_group_memory(root())->file, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes");
  v1("sys/fs/cgroup/memory/docker", std::to_string(4100 * kMiB) + "\n", 4000 * kMiB);
  EXPECT_EQ(left(), 100 * kMiB) << "what neighbours hold below the same group counts";
}

TEST_F(ControlGroups, BothVersionsOnOneMachine) {
  file("proc/self/mountinfo",
       std::string(kVersion1) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  file("proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/\n0::/user\n");
  v1("sys/fs/cgroup/memory/job", "900\n", 100);
  EXPECT_EQ(left(), 800u);
  v2("sys/fs/cgroup/unified/user", "500", 200);
  EXPECT_EQ(left(), 300u);
}

TEST_F(ControlGroups, AContainerSeesItsOwnGroupAsTheTop) {
  // A namespace of control groups: the group is called "/".
  file("proc/self/mountinfo", kVersion2);
  file("proc/self/cgroup", "0::/\n");
  v2("sys/fs/cgroup", "1000", 400);
  EXPECT_EQ(left(), 600u);
  // No namespace: the machine's name of the group, which is mounted as the top.
  file("proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  file("proc/self/cgroup", "4:memory:/docker/abc\n0::/docker/abc\n");
  v1("sys/fs/cgroup/memory", "700\n", 100);
  EXPECT_EQ(left(), 600u);
  file("proc/self/cgroup", "4:memory:/docker/abc/below\n");
  v1("sys/fs/cgroup/memory/below", "300\n", 100);
  EXPECT_EQ(left(), 200u);
  // A name that is not below what is mounted.
  file("proc/self/cgroup", "4:memory:/../other\n");
  EXPECT_EQ(left(), 600u);
}

TEST_F(ControlGroups, MountsWithBlanksAndMissingFiles) {
  file("proc/self/mountinfo", "30 23 0:26 / /sys/fs/c\\040group rw - cgroup2 cgroup2 rw\n");
  file("proc/self/cgroup", "0::/a\n");
  v2("sys/fs/c group/a", "1000", 400);
  EXPECT_EQ(left(), 600u);
  std::filesystem::remove(root() / "proc/self/mountinfo");
  v2("sys/fs/cgroup/a", "1000", 300);
  EXPECT_EQ(left(), 700u) << "the usual place";
  std::filesystem::remove_all(root() / "proc");
  EXPECT_FALSE(control_group_memory(root()));
  EXPECT_FALSE(control_group_processors(root()));
}

TEST_F(ControlGroups, QuotasOfProcessorTime) {
  file("proc/self/mountinfo", kVersion2);
  file("proc/self/cgroup", "0::/a/b\n");
  file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(control_group_processors(root()));
  file("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(control_group_processors(root()), 2.5);
  file("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(control_group_processors(root()), 0.5);
  EXPECT_EQ(usable_cores(root()), 1u) << "at least one";
  file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  file("sys/fs/cgroup/a/b/cpuset.cpus.effective", "3\n");
  EXPECT_EQ(control_group_processors(root()), 1.0);
  file("sys/fs/cgroup/a/b/cpuset.cpus.effective", "0-3,8\n");
  EXPECT_EQ(control_group_processors(root()), 2.5);
}

TEST_F(ControlGroups, QuotasOfVersion1) {
  file("proc/self/mountinfo", kVersion1);
  file("proc/self/cgroup", "3:cpuset:/\n1:cpu,cpuacct:/docker/abc\n");
  file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(control_group_processors(root()));
  file("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(control_group_processors(root()), 1.5);
  EXPECT_EQ(usable_cores(root()), 1u);
  file("sys/fs/cgroup/cpuset/cpuset.cpus", "0\n");
  EXPECT_EQ(control_group_processors(root()), 1.0);
}

TEST(UsableCores, AffinityCounts) {
  const test::TempDirectory empty;
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(usable_cores(empty.path()), static_cast<unsigned>(CPU_COUNT(&before)));
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(empty.path()), 1u);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace troupe
