#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "gpu/isa.h"

namespace troupe {
namespace {

std::string brand() {
  char text[49] = {};
  unsigned words[4];
  for (unsigned i = 0; i < 3; ++i) {
    if (__get_cpuid(0x80000002u + i, &words[0], &words[1], &words[2], &words[3]) == 0) return "x86-64";
    std::memcpy(text + 16 * i, words, 16);
  }
  std::string name(text);
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

/// AMX-BF16 and AMX-TILE.
bool has_amx() {
  constexpr unsigned kAmx = 1u << 22 | 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmx) == kAmx;
}

}  // namespace

// Linux gives a thread memory for its tiles only if its process asked for them; without that the first tile
// instruction is a SIGILL.
std::string ask_for_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return {};
  return std::generic_category().message(errno);
}

CpuFeatures detect_cpu() {
  __builtin_cpu_init();
  CpuFeatures found;
  found.model = brand();
  found.intel = __builtin_cpu_is("intel") != 0;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    found.best = Isa::avx2;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    found.avx_vnni = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1u) != 0;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      found.avx512_vnni = __builtin_cpu_supports("avx512vnni");
      const bool bf16 = __builtin_cpu_supports("avx512bf16");
      found.best = !found.avx512_vnni ? Isa::avx512 : bf16 ? Isa::avx512_bf16 : Isa::avx512_vnni;
      found.amx = found.best == Isa::avx512_bf16 && has_amx();
    }
  }
  return found;
}

}  // namespace troupe
