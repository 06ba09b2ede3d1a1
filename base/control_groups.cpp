#include "base/control_groups.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace troupe {
namespace {

namespace fs = std::filesystem;

// Version 1 writes "no limit" as the largest number of whole pages, a little less than 2^63.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

std::string read_all(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : std::string();
}

/// The number that `text` begins with; none of "max" and of "-1".
std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

/// The number behind "KEY " at the beginning of a line.
std::uint64_t number_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key) && line.substr(key.size()).starts_with(' ')) {
      return number_in(line.substr(key.size() + 1)).value_or(0);
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return 0;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

bool lists(const std::string& names, std::string_view name) {
  const std::vector<std::string> all = split(names, ',');
  return std::ranges::find(all, name) != all.end();
}

/// A path of mountinfo, in which "\040" is a blank.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 3 >= text.size()) {
      out += text[i];
      continue;
    }
    out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return out;
}

/// A hierarchy, or the part of one, that can be read below a directory.
struct Mount {
  std::string top;        ///< the group that the directory shows
  std::string directory;  ///< where it is mounted
};

/// Where a hierarchy is mounted: that of version 2 for an empty `controller`.
std::vector<Mount> mounts_of(const fs::path& root, std::string_view controller) {
  std::vector<Mount> mounts;
  for (const std::string& line : split(read_all(root / "proc/self/mountinfo"), '\n')) {
    // "31 23 0:28 TOP DIRECTORY rw,relatime [optional fields] - TYPE SOURCE OPTIONS"
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const std::vector<std::string> before = split(line.substr(0, dash), ' ');
    const std::vector<std::string> behind = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || behind.size() < 3) continue;
    const bool fits =
        controller.empty() ? behind[0] == "cgroup2" : behind[0] == "cgroup" && lists(behind[2], controller);
    if (fits) mounts.push_back({unescaped(before[3]), unescaped(before[4])});
  }
  if (!mounts.empty()) return mounts;
  return {{"/", controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller)}};
}

/// The path of `group` below the mount's directory; none when it lies elsewhere.
std::optional<fs::path> below(const Mount& mount, const std::string& group) {
  if (group.find("..") != group.npos) return std::nullopt;  // outside of the control group namespace
  if (mount.top == "/") return fs::path(group).relative_path();
  if (group == mount.top) return fs::path();
  if (group.starts_with(mount.top + "/")) return fs::path(group.substr(mount.top.size() + 1));
  return std::nullopt;
}

/// Directories of the process's group of `controller` and of those above it, without `root` in front. An
/// empty `controller` is version 2.
std::vector<fs::path> groups_of(const fs::path& root, std::string_view controller) {
  std::vector<fs::path> groups;
  for (const std::string& line : split(read_all(root / "proc/self/cgroup"), '\n')) {
    // "4:memory,freezer:/a/b"; version 2 has the line "0::/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? !controllers.empty() : !lists(controllers, controller)) continue;
    const std::string group = line.substr(second + 1);
    const std::vector<Mount> mounts = mounts_of(root, controller);
    const std::size_t found = groups.size();
    for (const Mount& mount : mounts) {
      const auto path = below(mount, group);
      if (!path) continue;
      fs::path at = fs::path(mount.directory);
      groups.push_back(at);
      for (const fs::path& name : *path) groups.push_back(at /= name);
    }
    // A container may see its own group as the top, and still be told the machine's name of it.
    if (groups.size() == found) groups.emplace_back(mounts.front().directory);
  }
  return groups;
}

fs::path in(const fs::path& root, const fs::path& directory, const char* file) {
  return root / directory.relative_path() / file;
}

/// Keeps the limit of a file if it leaves less than the one before.
void tighten(std::optional<MemoryLimit>& least, const fs::path& root, const fs::path& group,
             const char* limit_file, const char* used_file, const char* cache_key) {
  const auto limit = number_in(read_all(in(root, group, limit_file)));
  const auto used = number_in(read_all(in(root, group, used_file)));
  if (!limit || *limit >= kNoLimit || !used) return;
  const std::uint64_t cache = number_of(read_all(in(root, group, "memory.stat")), cache_key);
  const std::uint64_t held = *used - std::min(*used, cache);
  const std::uint64_t left = *limit - std::min(*limit, held);
  if (!least || left < least->left) least = MemoryLimit{*limit, left, (group / limit_file).string()};
}

/// "50000 100000": half a processor.
std::optional<double> share(std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period) {
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

/// How many numbers "0-3,8" lists.
std::optional<double> count_of(const std::string& ranges) {
  double count = 0;
  for (const std::string& range : split(ranges, ',')) {
    const auto first = number_in(range);
    const std::size_t dash = range.find('-');
    const auto last = dash == range.npos ? first : number_in(std::string_view(range).substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    count += static_cast<double>(*last - *first + 1);
  }
  return count > 0 ? std::optional(count) : std::nullopt;
}

}  // namespace

std::optional<MemoryLimit> control_group_memory(const fs::path& root) {
  std::optional<MemoryLimit> least;
  for (const fs::path& group : groups_of(root, "")) {
    tighten(least, root, group, "memory.max", "memory.current", "inactive_file");
    tighten(least, root, group, "memory.high", "memory.current", "inactive_file");
  }
  for (const fs::path& group : groups_of(root, "memory")) {
    tighten(least, root, group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
  }
  return least;
}

std::optional<double> control_group_processors(const fs::path& root) {
  std::optional<double> least;
  const auto consider = [&](std::optional<double> processors) {
    if (processors) least = std::min(least.value_or(*processors), *processors);
  };
  for (const fs::path& group : groups_of(root, "")) {
    const std::string max = read_all(in(root, group, "cpu.max"));  // "max 100000": no quota
    const std::size_t blank = max.find(' ');
    if (blank != max.npos)
      consider(share(number_in(max), number_in(std::string_view(max).substr(blank + 1))));
    consider(count_of(read_all(in(root, group, "cpuset.cpus.effective"))));
  }
  for (const fs::path& group : groups_of(root, "cpu")) {
    consider(share(number_in(read_all(in(root, group, "cpu.cfs_quota_us"))),
                   number_in(read_all(in(root, group, "cpu.cfs_period_us")))));
  }
  for (const fs::path& group : groups_of(root, "cpuset")) {
    consider(count_of(read_all(in(root, group, "cpuset.effective_cpus"))));
    consider(count_of(read_all(in(root, group, "cpuset.cpus"))));
  }
  return least;
}

}  // namespace troupe
