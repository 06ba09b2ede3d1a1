#pragma once
// What the control groups of this process allow it: memory, and time on processors. Both versions, and
// machines with both; every group from the process's own to the topmost that can be seen counts. `root` is
// where /proc and /sys are found.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troupe {

struct MemoryLimit {
  std::uint64_t bytes = 0;  ///< the limit
  std::uint64_t left =
      0;             ///< what the group may still take; page cache that the kernel can drop counts as free
  std::string file;  ///< that sets the limit: "/sys/fs/cgroup/a/memory.max"
};

/// The limit that leaves least: memory.max and memory.high of version 2, memory.limit_in_bytes of version 1.
/// None when no group has a limit.
std::optional<MemoryLimit> control_group_memory(const std::filesystem::path& root = "/");

/// How many processors the process may use at once: the smallest quota (cpu.max; cpu.cfs_quota_us of version
/// 1), and the processors of its cpuset. 1.5 is one and a half. None when nothing is limited.
std::optional<double> control_group_processors(const std::filesystem::path& root = "/");

}  // namespace troupe
