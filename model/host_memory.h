#pragma once
// How much memory this process may still allocate.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::model {

struct HostMemory {
  HostMemory(std::uint64_t bytes = 0) : available(bytes) {}

  std::uint64_t available = 0;  ///< bytes that may still be allocated
  std::uint64_t reserved = 0;   ///< of them: for what is no weight, activation or KV block
  std::string limit;  ///< " under the limit of 1.00 GiB in FILE", when a control group leaves less than the
                      ///< machine; else empty
};

/// The smaller of MemAvailable and what the limits of the control groups leave (base/control_groups.h). 0
/// when the system reports neither. Nothing is reserved. `root` is where /proc and /sys are found.
HostMemory host_memory(const std::filesystem::path& root = "/");

/// What a server holds beside weights, activations and KV blocks: its engine and supervisor, tokenizer,
/// rings, buffers of requests, the process that compiles forms, and the programs' own pages. The demo model's
/// takes 57 MiB without load.
inline constexpr std::uint64_t kServerBytes = std::uint64_t{128} << 20;

/// MemAvailable in bytes; `text` is the content of /proc/meminfo.
std::optional<std::uint64_t> parse_meminfo(std::string_view text);

}  // namespace troupe::model
