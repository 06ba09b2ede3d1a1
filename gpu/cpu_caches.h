#pragma once
// The caches of the processors that a program runs on.
#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace troupe {

/// Processors that one or another thread of this process may run on, in rising order.
std::vector<int> processors_in_use();

/// Bytes of the last-level caches of `processors`, together: one that several share counts once. 0 where the
/// kernel does not say. A virtual machine shows the host's, of which it may have a share. Reads files.
std::size_t last_level_cache_bytes(std::span<const int> processors,
                                   const std::filesystem::path& root = "/sys/devices/system/cpu");

}  // namespace troupe
