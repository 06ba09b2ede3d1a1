#include "gpu/isa.h"

namespace troupe {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx: return "amx";
  }
  return "unknown";
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect_cpu();
  return features;
}

const std::string& amx_refused() {
  static const std::string refused = cpu_features().amx ? ask_for_amx() : std::string();
  return refused;
}

[[gnu::weak]] bool emulates_amx() { return false; }

bool usable(Isa isa) {
  const CpuFeatures& cpu = cpu_features();
  if (isa != Isa::amx) return isa <= cpu.best;
  if (cpu.amx && amx_refused().empty()) return true;
  return cpu.best == Isa::avx512_bf16 && emulates_amx();
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(Isa::amx); ++i) {
    if (usable(static_cast<Isa>(i))) isas.push_back(static_cast<Isa>(i));
  }
  return isas;
}

}  // namespace troupe
