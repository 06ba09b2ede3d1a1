#include "model/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "base/control_groups.h"
#include "model/bytes_text.h"

namespace troupe::model {

std::optional<std::uint64_t> parse_meminfo(std::string_view text) {
  constexpr std::string_view kKey = "MemAvailable:";
  const std::size_t at = text.starts_with(kKey) ? 0 : text.find("\n" + std::string(kKey));
  const std::size_t digit = at == text.npos ? at : text.find_first_of("0123456789", at);
  if (digit == text.npos) return std::nullopt;
  std::uint64_t kib = 0;
  const auto [end, error] = std::from_chars(text.data() + digit, text.data() + text.size(), kib);
  return error == std::errc{} ? std::optional(kib * 1024) : std::nullopt;
}

HostMemory host_memory(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::ostringstream text;
  text << file.rdbuf();
  HostMemory memory = parse_meminfo(text.str()).value_or(0);
  const auto group = control_group_memory(root);
  if (group && (memory.available == 0 || group->left < memory.available)) {
    memory.available = group->left;
    memory.limit = " under the limit of " + bytes_text(group->bytes) + " in " + group->file;
  }
  return memory;
}

}  // namespace troupe::model
