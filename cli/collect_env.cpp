#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "base/control_groups.h"
#include "base/usable_cores.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/version.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value in a file of lines "KEY<separator>VALUE", without quotes; empty when there is no such key.
std::string value_in(const std::string& path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    std::erase(value, '"');
    while (value.starts_with(' ') || value.starts_with('\t')) value.erase(0, 1);
    return value;
  }
  return {};
}

/// The instruction sets that select the kernels: those present, then those missing.
std::string instruction_sets() {
  std::istringstream words(value_in("/proc/cpuinfo", "flags", ':'));
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  std::string have;
  std::string lack;
  for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
                           "avx512_bf16", "avx_vnni", "amx_bf16"}) {
    std::string& list = flags.contains(name) ? have : lack;
    list += (list.empty() ? "" : " ") + std::string(name);
  }
  return have + (lack.empty() ? "" : " (without " + lack + ")");
}

std::string gibibytes(const std::string& kib_text) {
  double kib = 0;
  if (std::sscanf(kib_text.c_str(), "%lf", &kib) != 1) return "unknown";
  char out[32];
  std::snprintf(out, sizeof out, "%.1f GiB", kib / (1 << 20));
  return out;
}

std::string memory_limit() {
  const auto limit = control_group_memory();
  if (!limit) return "none";
  return gibibytes(std::to_string(limit->bytes >> 10)) + " in " + limit->file;
}

std::string cuda_driver() {
  const std::string driver = first_line("/proc/driver/nvidia/version");
  if (driver.empty()) return "none";
  int devices = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error))
    devices += entry.is_directory();
  return std::to_string(devices) + " GPUs, " + driver;
}

std::string cores() {
  std::set<std::string> physical;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/cpu", error)) {
    const std::string topology = entry.path().string() + "/topology/";
    if (!fs::exists(topology, error)) continue;
    physical.insert(first_line(topology + "physical_package_id") + "/" + first_line(topology + "core_id"));
  }
  const std::string threads = std::to_string(usable_cores()) + " usable";
  return physical.empty() ? threads : threads + ", " + std::to_string(physical.size()) + " physical cores";
}

void line(const char* name, const std::string& value) {
  std::printf("%-14s %s\n", name, printable(value).c_str());
}

}  // namespace

int collect_env_main(int argc, char** argv) {
  const Synopsis synopsis{"collect-env", "what a bug report should say about this machine",
                          "troupe collect-env", "  troupe collect-env\n"};
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, {}, words)) return *code;
  utsname system{};
  ::uname(&system);
  line("troupe", version());
  line("GPU code", gpu_code());
  line("system", value_in("/etc/os-release", "PRETTY_NAME", '='));
  line("kernel", std::string(system.sysname) + " " + system.release + " " + system.machine);
  line("processor", value_in("/proc/cpuinfo", "model name", ':'));
  line("cores", cores());
  line("instructions", instruction_sets());
  line("memory", gibibytes(value_in("/proc/meminfo", "MemTotal", ':')) + ", " +
                     gibibytes(value_in("/proc/meminfo", "MemAvailable", ':')) + " available, limit " +
                     memory_limit());
  line("huge pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  line("cuda driver", cuda_driver());
  line("compiler", __VERSION__);
  line("c library", ::gnu_get_libc_version());
  line("libraries", libraries());
  return 0;
}

}  // namespace troupe::cli
