#pragma once
// How much memory this process may still take.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace troupe::model {

/// The least of what the system calls available and what the process's control groups leave. 0 when the
/// system does not tell.
std::uint64_t available_memory();

/// Value in bytes of MemAvailable in the text of /proc/meminfo.
std::optional<std::uint64_t> parse_meminfo(std::string_view text);

/// The least that a version 2 control group and those above it leave: memory.max less memory.current, of
/// which the page cache (inactive_file) counts as free. Nothing when no group has a limit. `root` is where
/// the hierarchy is mounted, `group` the process's own path below it.
std::optional<std::uint64_t> cgroup_headroom(const std::filesystem::path& root, std::string_view group);

}  // namespace troupe::model
