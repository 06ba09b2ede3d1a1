#include "model/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>

namespace troupe::model {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : std::string();
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  const std::size_t digit = text.find_first_of("0123456789");
  if (digit == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + digit, text.data() + text.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

// The number after `key` at the beginning of a line.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(key)) return leading_number(line.substr(key.size()));
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_meminfo(std::string_view text) {
  const std::optional<std::uint64_t> kib = number_after(text, "MemAvailable:");
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

std::optional<std::uint64_t> cgroup_headroom(const fs::path& root, std::string_view group) {
  std::optional<std::uint64_t> least;
  while (!group.empty() && group.front() == '/') group.remove_prefix(1);
  for (fs::path at = root / group;; at = at.parent_path()) {
    const std::string max = read_all(at / "memory.max");
    const std::optional<std::uint64_t> limit = leading_number(max);  // "max" means none
    const std::optional<std::uint64_t> used = leading_number(read_all(at / "memory.current"));
    if (limit && used) {
      const std::uint64_t cache = number_after(read_all(at / "memory.stat"), "inactive_file ").value_or(0);
      const std::uint64_t held = *used - std::min(*used, cache);
      const std::uint64_t left = *limit - std::min(*limit, held);
      least = std::min(least.value_or(left), left);
    }
    if (at == root || !at.has_relative_path()) return least;
  }
}

std::uint64_t available_memory() {
  std::uint64_t available = parse_meminfo(read_all("/proc/meminfo")).value_or(0);
  const std::string groups = read_all("/proc/self/cgroup");  // version 2 has the one line "0::/path"
  if (const std::size_t at = groups.find("0::"); at != std::string::npos) {
    const std::size_t end = std::min(groups.find('\n', at), groups.size());
    const auto left =
        cgroup_headroom("/sys/fs/cgroup", std::string_view(groups).substr(at + 3, end - at - 3));
    if (left) available = std::min(available, *left);
  }
  return available;
}

}  // namespace troupe::model
