#include "gpu/cpu_caches.h"

#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace troupe {
namespace {

namespace fs = std::filesystem;

struct Cache {
  int level = 0;
  std::size_t bytes = 0;
  std::string shared_by;
};

/// The cache in an index folder of a processor; level 0: there is none, or one of instructions alone.
Cache cache_in(const fs::path& folder) {
  const auto word = [&](const char* name) {
    std::string text;
    std::ifstream(folder / name) >> text;
    return text;
  };
  if (word("type") == "Instruction") return {};
  Cache cache;
  std::ifstream(folder / "level") >> cache.level;
  std::string unit;
  std::ifstream(folder / "size") >> cache.bytes >> unit;  // "266240K"
  cache.bytes <<= unit == "M" ? 20 : unit == "K" ? 10 : 0;
  cache.shared_by = word("shared_cpu_list");
  return cache;
}

}  // namespace

std::vector<int> processors_in_use() {
  cpu_set_t all;
  CPU_ZERO(&all);
  std::error_code error;
  for (const auto& task : fs::directory_iterator("/proc/self/task", error)) {
    cpu_set_t of_thread;
    const int id = std::atoi(task.path().filename().c_str());
    if (sched_getaffinity(id, sizeof of_thread, &of_thread) == 0) CPU_OR(&all, &all, &of_thread);
  }
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &all)) processors.push_back(processor);
  return processors;
}

std::size_t last_level_cache_bytes(std::span<const int> processors, const fs::path& root) {
  std::map<std::string, std::size_t> caches;  // by who shares them
  for (const int processor : processors) {
    const fs::path folder = root / ("cpu" + std::to_string(processor)) / "cache";
    Cache last;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      Cache cache = cache_in(entry.path());
      if (cache.level > last.level) last = std::move(cache);
    }
    if (last.level > 0) caches.insert_or_assign(last.shared_by, last.bytes);
  }
  std::size_t bytes = 0;
  for (const auto& [shared_by, size] : caches) bytes += size;
  return bytes;
}

}  // namespace troupe
