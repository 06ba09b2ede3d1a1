#pragma once
// How much memory this process may still allocate.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace troupe::model {

/// Bytes that this process may still allocate: the smaller of MemAvailable and what the limits of its control
/// groups leave. 0 when the system reports neither.
std::uint64_t available_memory();

/// MemAvailable in bytes; `text` is the content of /proc/meminfo.
std::optional<std::uint64_t> parse_meminfo(std::string_view text);

/// Bytes that a version 2 control group and its ancestors leave: the smallest of memory.max - memory.current,
/// where page cache (inactive_file) counts as free. std::nullopt when no group has a limit. `root` is where
/// the hierarchy is mounted, `group` the process's own path below it.
std::optional<std::uint64_t> cgroup_headroom(const std::filesystem::path& root, std::string_view group);

}  // namespace troupe::model
